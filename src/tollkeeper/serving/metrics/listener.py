"""The admin address: `/metrics`, and `/ops` for a person, apart from what the world reaches (contract 2).

An address that is taken is no reason not to sell: it is logged, and the process goes on without metrics.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

import structlog

from tollkeeper.api import envelope, error_envelope, new_request_id, send_refusal
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.serving.http.server import HttpServer, ListenError, listen
from tollkeeper.serving.metrics.metrics import CONTENT_TYPE
from tollkeeper.web.operations import HEADERS, is_own_host, ops_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from litestar.types import HTTPScope
    from litestar.types import Send as LitestarSend

    from tollkeeper.serving.http.asgi import Message, Receive, Send
    from tollkeeper.serving.metrics.operator_page import OperatorPage
    from tollkeeper.web.assets import Assets

_LOG = structlog.get_logger("tollkeeper.serving")
_DRAIN_SECONDS: Final = 1


@asynccontextmanager
async def serving_metrics(
    address: tuple[str, int] | None, text: Callable[[], Awaitable[bytes]], assets: Assets, page: OperatorPage
) -> AsyncIterator[None]:
    """Answers GET /metrics with `text` at this address until the block ends; nothing where there is none."""
    async with AsyncExitStack() as parts:
        if address is not None:
            try:
                listening = listen(*address, "metrics_address")
            except ListenError as error:
                _LOG.error("metrics_not_served", reason=str(error))
            else:
                parts.callback(listening.close)
                server = HttpServer(_app(text, assets, page, address[0]), listening, drain_seconds=_DRAIN_SECONDS)
                await parts.enter_async_context(server)
                _LOG.info("metrics_served", url=server.url + "/metrics")
        yield


def _app(
    text: Callable[[], Awaitable[bytes]], assets: Assets, page: OperatorPage, address: str
) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        del receive
        request_id = new_request_id()
        lines: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
        body = b""
        host = next((str(value, "latin-1") for name, value in scope["headers"] if name == b"host"), "")
        is_read, is_own = scope["method"] in {"GET", "HEAD"}, is_own_host(host, address)
        if is_read and is_own and scope["path"].startswith("/assets/"):
            await _serve_asset(assets, scope, send)
            return
        if scope["path"] == "/metrics" and scope["method"] in {"GET", "HEAD"}:
            status, lines, body = 200, ((b"content-type", CONTENT_TYPE),), await text()
        elif scope["path"] == "/ops" and is_read and is_own:
            metrics, role = (await text()).decode(), page.settings.role.value
            status, lines, body = 200, HEADERS, ops_page(metrics, await page.facts(), assets, role)
        elif scope["path"] == "/healthz":
            status, body = 200, envelope({"status": "ok"})
        else:
            error = ApiError(Code.NOT_FOUND, "this address has /metrics, /healthz and /ops, and nothing else")
            status, body = error.status, error_envelope(error, request_id)
        headers = [
            *lines,
            (b"content-length", str(len(body)).encode()),
            (b"x402-version", b"1"),
            (b"x-request-id", request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app


async def _serve_asset(assets: Assets, scope: Message, send: Send) -> None:
    try:
        await assets.serve(cast("HTTPScope", scope), cast("LitestarSend", send))
    except ApiError as error:
        await send_refusal(send, error, new_request_id(), scope["headers"])
