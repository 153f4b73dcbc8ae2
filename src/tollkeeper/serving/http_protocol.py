"""uvicorn's HTTP/1.1 reader with limits that it lacks: a bounded head, in bounded time, and refusals in our own words.

A head that is far too large is cut off before it fills memory (a smaller excess is refused by `api.Shell`), one that
does not arrive in time ends its connection, and bytes that are no HTTP get specification 7's body (security A-33,
A-58).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tollkeeper.api import error_envelope, new_request_id
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.limits import REQUEST_HEAD_SIZE_BYTES

if TYPE_CHECKING:
    import asyncio

# Room for what Shell refuses with a complete answer; what one read brings besides is bounded by the transport.
_HEAD_SIZE_BYTES: Final = 4 * REQUEST_HEAD_SIZE_BYTES
HEAD_SECONDS: Final = 30
_REASONS: Final = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **named)
        self._reads_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """A new connection has to say something in time."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of a head; those of a body are flow-controlled elsewhere."""
        if self._reads_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._await_head()
        super().data_received(data)
        if self._reads_head and self._head_bytes > _HEAD_SIZE_BYTES and not self.transport.is_closing():
            self._refuse(ApiError(Code.HEADERS_TOO_LARGE, "the request head is too large"))

    def on_headers_complete(self) -> None:
        """The parser's callback: the head is whole."""
        self._reads_head = False
        self._head_arrived()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The parser's callback: what follows is another head."""
        self._reads_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser refused the bytes."""
        del msg
        self._refuse(ApiError(Code.INVALID_PARAMETER, "this is not an HTTP/1.1 request"))

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing() and not self._is_answering():
            self.transport.close()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn declares
        return cycle is not None and not cycle.response_complete

    def _refuse(self, error: ApiError) -> None:
        """Answer and end the connection; without an answer where one to an earlier request is under way."""
        if self._is_answering():
            self.cycle.keep_alive = False
            self.transport.pause_reading()
            return
        request_id = new_request_id()
        body = error_envelope(error, request_id)
        head = (
            b"HTTP/1.1 %d %b\r\n" % (error.status, _REASONS[error.status])
            + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            + b"x402-version: 1\r\nx-request-id: %b\r\nconnection: close\r\n\r\n" % request_id.encode()
        )
        self.transport.write(head + body)
        self.transport.close()
