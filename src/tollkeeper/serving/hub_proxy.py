"""The hub under `/hub` where it is a process of its own: requests are passed on to it (contract 1).

It answers, headers and all; where it cannot be reached the answer is a 503. Bodies are small here, so they are read
whole, within the hub's own limit. What this module does not do: look at anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

from tollkeeper.api import read_body, receive_chunks
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.serving.http_server import render_refusal

if TYPE_CHECKING:
    from tollkeeper.serving.access import Message, Receive, Send

# Of one connection, and what the other connection's writer makes by itself.
_NOT_PASSED: Final = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect"}
)
_PATIENCE_SECONDS: Final = 60  # longer than the hub waits for any outcome


class HubProxy:
    """An ASGI application that is the hub at `url`; `close` it at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serves one request."""
        try:
            status, headers, content = await self._ask(scope, receive)
        except ConnectionResetError:  # the caller is gone
            return
        except ApiError as error:
            status, headers, content = render_refusal(error)
        named = dict(headers)
        scope["state"]["request_id"] = named.get(b"x-request-id", b"").decode("latin-1")
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": False})

    async def _ask(self, scope: Message, receive: Receive) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """The hub's answer. Raises: UNAVAILABLE, PAYLOAD_TOO_LARGE; ConnectionResetError where the caller left."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=_PATIENCE_SECONDS),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        body = await read_body(receive_chunks(receive), scope["headers"])
        query = scope["query_string"].decode("latin-1")
        url = URL(self._url + scope["raw_path"].decode("latin-1") + ("?" + query if query else ""), encoded=True)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name.lower() not in _NOT_PASSED
        ]
        try:
            async with self._session.request(
                scope["method"],
                url,
                headers=headers,
                data=body or None,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(Code.UNAVAILABLE, "the payment hub cannot be reached at the moment") from error
        answered = [
            (name.lower(), value) for name, value in answer.raw_headers if name.lower() not in _NOT_PASSED | {b"date"}
        ]
        has_no_body = scope["method"] == "HEAD" or answer.status in {204, 304}
        length = answer.headers.get("Content-Length") if has_no_body else str(len(content))
        if length is not None:
            answered.append((b"content-length", length.encode()))
        return answer.status, answered, content

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
