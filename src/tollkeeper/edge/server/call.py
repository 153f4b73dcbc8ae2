"""One request that is answered without ASGI: what came in, and the one way to answer it (contract 4.2, performance).

Made by `protocol.StrictProtocol` for the paths that its listener's `CallHandler` takes, in the order in which they
came; the same connection carries ASGI requests too. Driven by callbacks, no task of its own. Whatever a handler does,
the caller gets an answer or a closed connection. Decides nothing about payments.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import msgspec
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tollkeeper.api import clock_ms, error_envelope, header_pairs, new_request_id_at
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.heads import RequestHead
from tollkeeper.edge.server.client_liveness import CONTINUE
from tollkeeper.edge.server.joined_writes import JOINED_SIZE_BYTES
from tollkeeper.edge.shared.body_chunks import Part, add_part

# Of a body that nobody has asked for yet; beyond it the connection is not read.
AHEAD_SIZE_BYTES: Final = 64 * 1024
JSON_LINE: Final = b"content-type: application/json\r\n"
END_OF_HEAD: Final = b"\r\n\r\n"
CLOSING_END_OF_HEAD: Final = b"\r\nconnection: close\r\n\r\n"
LAST_LINES: Final = b"x402-version: 1\r\nx-request-id: "  # of each head before the request id
FAULT: Final = "something went wrong on our side; requestId names the log line"
_BY_RESET: Final = struct.pack("ii", 1, 0)  # how a socket that lingers for no time is closed
_NOBODY_WAITS: Final = asyncio.Event()  # uvicorn sets the event of whatever it takes for its own request

log = structlog.get_logger("tollkeeper.edge")

Place: TypeAlias = Any  # a handler's own, of a request's path and query


class BodySink(Protocol):
    """Receiver of a request's body."""

    def on_request_body(self, data: bytes) -> None:
        """A part of the body, without framing."""

    def on_request_end(self) -> None:
        """The body is complete."""

    def refuse(self, error: Exception) -> None:
        """The rest of it cannot be read."""


class BodySource(Protocol):
    """Source of a request's body, which gives it when it is asked for."""

    def body_to(self, sink: BodySink) -> None:
        """Give the body to `sink` from now on."""

    def pause_body(self) -> None:
        """Give no more for now; a little may still come."""

    def resume_body(self) -> None:
        """Give more."""


class AnsweredRequest(Protocol):
    """A request that was answered, as those see it who count. `status` 0: its caller left before."""

    head: RequestHead
    method: str
    request_id: str
    status: int
    duration_us: int


class AnsweredAtOnce(AnsweredRequest, Protocol):
    """A request whose answer needed no call."""

    answer: bytes
    started_ns: int


class CallHandler(Protocol):
    """Handler that answers calls; one for all connections of a listener."""

    def place_of(self, target: bytes) -> Place | None:
        """Return where requests for this raw path and query go; None where the handler takes none for it."""

    def at_once(self, head: RequestHead, place: Place, peer: str) -> AnsweredAtOnce | None:
        """Make the whole answer to a plain request from this address, if it needs no call; it is sent."""

    def begin(self, call: InboundCall) -> None:
        """Answer `call`, now or later; its turn on the connection has come."""

    def ended(self, call: AnsweredRequest) -> None:
        """The answer is written, or there will be none (`call.status` 0), or none that is whole."""


class Connection(Protocol):
    """Members of a connection that a call needs."""

    transport: asyncio.Transport
    flow: FlowControl
    peer: str  # the caller's address

    def end(self) -> None:
        """The connection's last answer was written; close it so that the caller can read it."""

    def on_response_complete(self) -> None:
        """The answer was written; the next request may have its turn."""


class InboundCall(msgspec.Struct, eq=False):
    """A request whose head was checked. Made by `accepted`.

    Each has all of its fields in places of its own, filled in one go: the interpreter would look up by name what stands
    beside a default of the class, and twenty assignments cost as much as a short answer. By some of their names
    uvicorn's protocol asks the newest request how it stands.
    """

    _connection: Connection
    _handler: CallHandler
    head: RequestHead
    place: Place
    method: str
    request_id: str
    started_ns: int
    keep_alive: bool = True
    _takes_chunks: bool = True
    waiting_for_100_continue: bool = False
    _is_body_complete: bool = False
    _ahead: list[Part] | None = None
    _ahead_bytes: int = 0
    _ahead_left_bytes: int = 0
    _sink: BodySink | None = None
    _body_fault: ApiError | None = None
    _has_begun: bool = False
    is_body_paused: bool = False
    status: int = 0
    duration_us: int = 0
    response_started: bool = False
    response_complete: bool = False
    disconnected: bool = False
    _is_chunked: bool = False
    _ends_with_connection: bool = False  # an answer has begun whose end nothing else shows
    on_gone: Callable[[], None] | None = None  # called once, where no answer can be sent any more

    message_event: ClassVar[asyncio.Event] = _NOBODY_WAITS

    @staticmethod
    def accepted(  # noqa: PLR0917 - by place, as below
        connection: Connection,
        handler: CallHandler,
        head: RequestHead,
        place: Place,
        keep_alive: bool = True,  # noqa: FBT001, FBT002 - by place: one for each request
        takes_chunks: bool = True,  # noqa: FBT001, FBT002 - as above
        waits_to_continue: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> InboundCall:
        """A request that came now."""
        request_id, started_ns = new_request_id_at(clock_ms()), time.perf_counter_ns()
        return InboundCall(
            connection,
            handler,
            head,
            place,
            head.method,
            request_id,
            started_ns,
            keep_alive,
            takes_chunks,
            waits_to_continue,
            head.content_length == 0,
        )

    # Its head is the caller's secret.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, {self.request_id})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("request_id", self.request_id)]

    @property
    def peer(self) -> str:
        """The caller's address."""
        return self._connection.peer

    # What a handler calls

    def answer(
        self, status: int, lines: bytes, body: bytes = b"", *, length_bytes: int | None = -1, has_date: bool = False
    ) -> None:
        """Send the whole answer; dropped where the caller is gone. Never waits: the transport holds what is not taken.

        `lines` are encoded header lines, without those of framing. `length_bytes` is what `Content-Length` says, the
        body's own unless given; None leaves it out (204, 304). `has_date`: the lines have a `Date`.
        """
        if self.response_started or self.disconnected:
            return
        head = self._head(status, lines, len(body) if length_bytes == -1 else length_bytes, has_date=has_date)
        if body and self.method != "HEAD":
            head.append(body)
        self._connection.transport.write(b"".join(head))
        self._complete()

    def answer_parts(self, status: int, lines: bytes, parts: list[bytes], length_bytes: int, *, has_date: bool) -> None:
        """Answer as `answer` does, with a body in several parts, which are not copied into one."""
        if self.response_started or self.disconnected:
            return
        head = self._head(status, lines, length_bytes, has_date=has_date)
        transport = self._connection.transport
        if self.method == "HEAD" or not parts:
            transport.write(b"".join(head))
        elif length_bytes <= JOINED_SIZE_BYTES:
            transport.write(b"".join([*head, *parts]))
        else:
            transport.writelines([b"".join(head), *parts])
        self._complete()

    def refuse(
        self, error: ApiError, lines: bytes = b"", body: bytes | None = None, type_lines: bytes = JSON_LINE
    ) -> None:
        """Answer with specification 7's body, or with `body`, which `type_lines` describe."""
        own = b"".join([b"%b: %b\r\n" % pair for pair in header_pairs(error.headers)])
        envelope = error_envelope(error, self.request_id) if body is None else body
        self.answer(error.status, type_lines + own + lines, envelope)

    def fail(self, fault: BaseException) -> None:
        """Answer 500, or close where an answer has begun. `fault` is logged, never shown."""
        log.error("unhandled", exc_info=fault, request_id=self.request_id)
        if self.response_started:
            self.abort()
        else:
            self.refuse(ApiError(Code.INTERNAL_ERROR, FAULT))

    def guard(self, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - the function's own
        """Call `function`; what it raises answers the call. For every callback that somebody else calls."""
        try:
            function(*arguments)
        except ApiError as error:
            if self.response_started:
                self.fail(error)
            else:
                self.refuse(error)
        except Exception as fault:  # noqa: BLE001 - whatever it was, this caller must not wait for ever
            self.fail(fault)

    # An answer in parts

    def start(self, status: int, lines: bytes, length_bytes: int | None, *, has_date: bool) -> None:
        """Send the head of an answer whose body follows through `write`.

        A body of unknown length goes in chunks, and to a caller who knows none until the connection's end.
        """
        if not self.disconnected:
            if length_bytes is None:
                self._is_chunked = self._takes_chunks
                self._ends_with_connection = not self._takes_chunks
                self.keep_alive = self.keep_alive and self._takes_chunks
                lines += b"transfer-encoding: chunked\r\n" if self._takes_chunks else b""
            self._connection.transport.write(b"".join(self._head(status, lines, length_bytes, has_date=has_date)))

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the caller does not read."""
        if not self.disconnected:
            if self.method != "HEAD":
                self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
            await self._connection.flow.drain()

    def end(self) -> None:
        """The last part of the body was written."""
        if not self.disconnected:
            if self._is_chunked:
                self._connection.transport.write(b"0\r\n\r\n")
            self._complete()

    def abort(self) -> None:
        """Close the connection; the answer stays incomplete, and shows it: by a reset where nothing else would."""
        transport, needs_reset = self._connection.transport, self._ends_with_connection and not self.disconnected
        if needs_reset and (line := transport.get_extra_info("socket")) is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BY_RESET)
        transport.abort()

    def leave_unfinished(self) -> None:
        """The answer stays incomplete, and shows it; those before it, which may not have been read, still arrive."""
        if self._ends_with_connection:
            self.abort()
        elif not self.disconnected:
            self.keep_alive = False
            self._complete()

    def whole_body(self) -> bytes | None:
        """The body where it is all there already, to be taken once, in place of `body_to`; else None."""
        if not self._is_body_complete or self._sink is not None:
            return None
        ahead, self._ahead = self._ahead, None
        self._ahead_bytes = 0
        return b"" if ahead is None else bytes(ahead[0]) if len(ahead) == 1 else b"".join(ahead)

    # The body: `BodySource`

    def body_to(self, sink: BodySink) -> None:
        """Give the body to `sink`. Asks a caller to send the body if the caller waits for that."""
        self._sink = sink
        if self.waiting_for_100_continue:
            self.waiting_for_100_continue = False
            self._connection.transport.write(CONTINUE)
        ahead, self._ahead = self._ahead, None
        self._ahead_bytes = 0
        for part in ahead or ():
            sink.on_request_body(bytes(part))
        if self._is_body_complete:
            sink.on_request_end()
        elif self._body_fault is not None:
            sink.refuse(self._body_fault)
        elif not self.is_body_paused:
            self._connection.flow.resume_reading()

    def pause_body(self) -> None:
        """Stop reading the body until `resume_body`."""
        if not self._is_body_complete:
            self.is_body_paused = True
            self._connection.flow.pause_reading()

    def resume_body(self) -> None:
        """Go on reading the body."""
        self.is_body_paused = False
        self._ahead_left_bytes = 0
        if not self._is_body_complete and not self.disconnected:
            self._connection.flow.resume_reading()

    # What the connection calls

    def begin(self) -> None:
        """This call's turn has come."""
        self._has_begun = True
        try:
            self._handler.begin(self)
        except Exception as fault:  # noqa: BLE001 - as in `guard`
            self.guard(_raise, fault)

    def read_ahead(self, size_bytes: int) -> None:
        """So much more of a body that is paused is passed on all the same."""
        if size_bytes:
            self._ahead_left_bytes = size_bytes
            self._connection.flow.resume_reading()

    def feed(self, data: bytes) -> None:
        """A part of the body came in."""
        if self.response_complete or self.disconnected:
            return
        if self._sink is not None:
            if self._ahead_left_bytes:
                self._ahead_left_bytes = max(0, self._ahead_left_bytes - len(data))
                if not self._ahead_left_bytes:
                    self._connection.flow.pause_reading()
            self.guard(self._sink.on_request_body, data)
            return
        if self._ahead is None:
            self._ahead = [data]
        else:
            add_part(self._ahead, data)
        self._ahead_bytes += len(data)
        if self._ahead_bytes > AHEAD_SIZE_BYTES:
            self._connection.flow.pause_reading()

    def feed_end(self) -> None:
        """The body is complete; one that has none was so from the start."""
        if self._is_body_complete:
            return
        self._is_body_complete = True
        if self.response_complete or self.disconnected:
            return
        if self._connection.flow.read_paused and self._has_begun:
            self._connection.flow.resume_reading()  # else nobody would learn that the caller left
        if self._sink is not None:
            self.guard(self._sink.on_request_end)

    @property
    def is_begun(self) -> bool:
        """Has its turn come, so that it may be paid for by now?"""
        return self._has_begun

    def break_body(self, error: ApiError) -> None:
        """The rest of the body cannot be read: who takes it is told so, once, now or when it asks.

        An answer that has begun goes on where its target has said all of it, and is left unfinished where it has not.
        """
        if self._body_fault is None and not (self.response_complete or self.disconnected):
            self._body_fault = error
            if self._sink is not None:
                self.guard(self._sink.refuse, error)

    def lose(self) -> None:
        """There is nobody to answer any more."""
        if self.response_complete or self.disconnected:
            return
        self.disconnected = True
        self._ahead = None
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            self.guard(on_gone)
        if self._has_begun:
            self._tell_ended()

    # How an answer ends

    def _head(self, status: int, lines: bytes, length_bytes: int | None, *, has_date: bool) -> list[bytes]:
        """Begin the answer; return its head in parts."""
        self.response_started = True
        self.status = status
        head = [STATUS_LINE[status], lines]
        if length_bytes is not None:
            head.append(b"content-length: %d\r\n" % length_bytes)
        if not has_date:
            head.append(http_date(int(time.time())))
        head += LAST_LINES, self.request_id.encode(), END_OF_HEAD if self.keep_alive else CLOSING_END_OF_HEAD
        return head

    def _complete(self) -> None:
        self.response_complete = True
        self.on_gone = self._sink = self._ahead = None
        if not self.keep_alive:
            self._connection.end()
        self._tell_ended()
        self._connection.on_response_complete()

    def _tell_ended(self) -> None:
        self.duration_us = (time.perf_counter_ns() - self.started_ns) // 1000
        try:
            self._handler.ended(self)
        except Exception:  # a log line that fails is no reason to fail the call
            log.exception("call_end_failed", request_id=self.request_id)


def _raise(fault: BaseException) -> None:
    raise fault


@lru_cache(maxsize=1)
def http_date(now_seconds: int) -> bytes:
    """The header line `Date`; made once a second."""
    return b"date: %b\r\n" % formatdate(now_seconds, usegmt=True).encode()
