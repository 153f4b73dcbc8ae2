"""The admin address: `/metrics`, apart from what the world reaches (contract 2).

An address that is taken is no reason not to sell: it is logged, and the process goes on without metrics.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import envelope, error_envelope, new_request_id
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.serving.http.server import HttpServer, ListenError, listen
from tollkeeper.serving.metrics.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tollkeeper.serving.http.asgi import Message, Receive, Send

_LOG = structlog.get_logger("tollkeeper.serving")
_DRAIN_SECONDS: Final = 1


@asynccontextmanager
async def serving_metrics(address: tuple[str, int] | None, text: Callable[[], Awaitable[bytes]]) -> AsyncIterator[None]:
    """Answers GET /metrics with `text` at this address until the block ends; nothing where there is none."""
    async with AsyncExitStack() as parts:
        if address is not None:
            try:
                listening = listen(*address, "metrics_address")
            except ListenError as error:
                _LOG.error("metrics_not_served", reason=str(error))
            else:
                parts.callback(listening.close)
                server = HttpServer(_app(text), listening, drain_seconds=_DRAIN_SECONDS)
                await parts.enter_async_context(server)
                _LOG.info("metrics_served", url=server.url + "/metrics")
        yield


def _app(text: Callable[[], Awaitable[bytes]]) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        del receive
        request_id = new_request_id()
        kind, body = b"application/json", b""
        if scope["path"] == "/metrics" and scope["method"] in {"GET", "HEAD"}:
            status, kind, body = 200, CONTENT_TYPE, await text()
        elif scope["path"] == "/healthz":
            status, body = 200, envelope({"status": "ok"})
        else:
            error = ApiError(Code.NOT_FOUND, "this address has /metrics and /healthz, and nothing else")
            status, body = error.status, error_envelope(error, request_id)
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"x402-version", b"1"),
            (b"x-request-id", request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app
