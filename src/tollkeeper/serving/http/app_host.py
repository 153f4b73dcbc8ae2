"""The dashboard's own host, where that is not the gateway's: nothing of a stranger's is answered there (contract 11).

What a PayGate's target says, a file that is sold, the API: none of it may come from the origin that holds the owners'
sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.api import new_request_id, own_headers, send_refusal
from tollkeeper.core.api.errors import ApiError, Code

if TYPE_CHECKING:
    from tollkeeper.core.http.heads import RequestHead
    from tollkeeper.edge.server.call import AnsweredAtOnce, CallHandler, InboundCall, Place
    from tollkeeper.serving.http.asgi import Application, Message, Receive, Send

_OWN: Final = ("/app", "/assets")


class AppHost:
    """In front of everything: at the dashboard's host there are its pages and their scripts alone."""

    def __init__(self, app_url: str, app: Application, calls: CallHandler) -> None:
        self._host = urlsplit(app_url).netloc.lower().encode()
        self._app = app
        self._calls = calls
        self.place_of = calls.place_of
        self.ended = calls.ended

    def begin(self, call: InboundCall) -> None:
        """Begin a call of a PayGate, unless it names this host."""
        if call.head.header.get(b"host", b"").lower() == self._host:
            call.refuse(_nothing())
        else:
            self._calls.begin(call)

    def at_once(self, head: RequestHead, place: Place, peer: str) -> AnsweredAtOnce | None:
        """Answer a plain request at once, unless it names this host."""
        return None if head.value_of(b"host").lower() == self._host else self._calls.at_once(head, place, peer)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http" or self._host not in _hosts(scope):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if any(path == own or path.startswith(own + "/") for own in _OWN):
            await self._app(scope, receive, send)
        elif path == "/":
            request_id = new_request_id()
            headers = [*own_headers(request_id, scope["headers"]), (b"location", b"/app"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await send_refusal(send, _nothing(), new_request_id(), scope["headers"])


def _hosts(scope: Message) -> list[bytes]:
    return [value.lower() for name, value in scope["headers"] if name == b"host"]


def _nothing() -> ApiError:
    return ApiError(Code.NOT_FOUND, "there is nothing at this path: this host is the dashboard's")
