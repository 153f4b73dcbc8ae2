"""How a request reaches the facilitator: over HTTP, or within the process where `serve` runs gateway and hub."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from tollkeeper.gateway.hub_client import HubUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import ASGIApp

ANSWER_SIZE_BYTES: Final = 1024 * 1024


class HttpTransport:
    """A facilitator at a URL."""

    def __init__(self, hub_url: str) -> None:
        self._base = hub_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """See `hub_client.Transport`. Redirects are not followed: a payment goes where the operator said."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        try:
            async with self._session.request(
                method, self._base + path, headers=headers, data=body, timeout=timeout, allow_redirects=False
            ) as answer:
                parts: list[bytes] = []
                async for part in answer.content.iter_any():
                    parts.append(part)
                    if sum(map(len, parts)) > ANSWER_SIZE_BYTES:
                        raise HubUnreachableError("the answer is too large")
                return answer.status, b"".join(parts)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HubUnreachableError(type(error).__name__) from error

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()


class AsgiTransport:
    """A hub in this process: the same request, without a socket."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """See `hub_client.Transport`."""
        status = 0
        parts: list[bytes] = []
        asked = False

        async def receive() -> Any:  # noqa: ANN401 - an ASGI message
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # this client never disconnects
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:  # noqa: ANN401 - an ASGI message
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw_headers.append((b"content-length", str(len(body)).encode()))
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": raw_headers,
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
        }
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._app(scope, receive, send)
        except TimeoutError as error:
            raise HubUnreachableError("timeout") from error
        return status, b"".join(parts)

    async def close(self) -> None:
        """Nothing to let go of: the hub is closed by whoever opened it."""
