"""The hub under `/hub` where it is a process of its own: requests are passed on to it (contract 1).

It answers, headers and all; where it cannot be reached the answer is a 503. Bodies are small here, so they are read
whole, within the hub's own limit. On the way requests have names of their own, as the gateway's (decision 0054), and
the caller is answered by the name that it gave. What this module does not do: look at anything else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tollkeeper.api import CORRELATION_ID, correlation_of, read_body, receive_chunks
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.gateway.hub_client import HubUnreachableError
from tollkeeper.gateway.transports import HttpTransport
from tollkeeper.serving.http_server import render_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from tollkeeper.core.forwarding import Header
    from tollkeeper.serving.access import Message, Receive, Send

T = TypeVar("T")

# Of one connection, and what the other connection's writer makes by itself.
_NOT_PASSED: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"expect",
        CORRELATION_ID,
    }
)
_PATIENCE_SECONDS: Final = 60  # longer than the hub waits for any outcome
_BEGINNING: Final = ("/settle", "/transfer")
_LOOK_SECONDS: Final = 0.25  # how often it is seen whether a caller is still there


class _UnaskableError(ApiError):
    def __init__(self) -> None:
        message = "who sends no more over HTTP/1.0 cannot be asked whether it waits: send the same again, and keep open"
        super().__init__(Code.UNAVAILABLE, message, headers={"Retry-After": "1"})


class HubProxy:
    """An ASGI application that is the hub at `url`; `close` it at the end."""

    def __init__(self, url: str) -> None:
        self._transport = HttpTransport(url)

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
        headers += correlation_of(scope["headers"])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": False})

    async def _ask(self, scope: Message, receive: Receive) -> tuple[int, list[Header], bytes]:
        """The hub's answer. Raises: UNAVAILABLE, PAYLOAD_TOO_LARGE; ConnectionResetError where the caller left."""
        body = await read_body(receive_chunks(receive), scope["headers"])
        query = scope["query_string"]
        path = scope["raw_path"] + (b"?" + query if query else b"")
        lines = [(name, value) for name, value in scope["headers"] if name.lower() not in _NOT_PASSED]
        method = scope["method"]
        is_begun_once = scope["path"].endswith(_BEGINNING) and all(name != b"idempotency-key" for name, _ in lines)
        exchange = self._transport.exchange(method, path, lines, body, _PATIENCE_SECONDS)
        try:
            head, content = await _while_awaited(exchange, scope["state"], is_begun_once=is_begun_once)
        except _UnaskableError:
            raise
        except (ApiError, HubUnreachableError) as error:
            raise ApiError(Code.UNAVAILABLE, "the payment hub cannot be reached at the moment") from error
        except ValueError as error:
            raise ApiError(Code.NOT_FOUND, "there is nothing at this path") from error
        answered = [(name.lower(), value) for name, value in head.headers]
        passed = [line for line in answered if line[0] not in _NOT_PASSED | {b"date"}]
        has_no_body = method == "HEAD" or head.status in {204, 304}
        length = dict(answered).get(b"content-length") if has_no_body else b"%d" % len(content)
        if length is not None:
            passed.append((b"content-length", length))
        return head.status, passed, content

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()


async def _while_awaited(
    exchange: Coroutine[Any, Any, T], state: Mapping[str, Callable[[], bool]], *, is_begun_once: bool
) -> T:
    """Its result. Where the caller leaves it is broken off, so that the hub sees that too.

    `is_begun_once`: it begins what only its caller is told of; so it is where that one may have left (`hub.callers`).
    Raises: ConnectionResetError; _UnaskableError for who may have left; what it raises.
    """
    has_left, may_have_left = state.get("has_left", _never), state.get("may_have_left", _never)
    asking = asyncio.ensure_future(exchange)
    try:
        while not (await asyncio.wait({asking}, timeout=_LOOK_SECONDS))[0]:
            if has_left():
                msg = "the caller went away"
                raise ConnectionResetError(msg)
            if is_begun_once and may_have_left():
                raise _UnaskableError
        return asking.result()
    finally:
        asking.cancel()


def _never() -> bool:
    return False
