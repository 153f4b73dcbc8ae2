"""One connection to a target: HTTP/1.1 on httptools, driven by callbacks (security A-42, performance 5).

Carries one exchange at a time and says when it can carry the next. Never follows a redirect, never decompresses,
never decides what a failure means for a call. Whatever goes wrong, in the target or in a callback, ends in
`on_failure`: an exception that left a protocol callback would leave a caller waiting for ever.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from select import POLLIN, poll
from typing import Final, NamedTuple, TypeAlias, cast

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from tollkeeper.core.api.errors import Code
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.heads import (
    BodyEnd,
    FramingError,
    ResponseFraming,
    ResponseHead,
    keeps_alive,
    promised_seconds,
    read_response_head,
)
from tollkeeper.core.limits import HEADERS_MAX
from tollkeeper.edge.shared.turns import PARTS_AT_ONCE, rest
from tollkeeper.edge.shared.whole_messages import whole_answers
from tollkeeper.edge.target.exchange import Exchange, TargetFailure
from tollkeeper.edge.target.spool import BATCH_SIZE_BYTES

# Of a head, and of what stands between two parts of a body (chunk extensions) or after it (trailers).
HEAD_SIZE_BYTES: Final = 64 * 1024
_SURELY_SMALL_BYTES: Final = HEAD_SIZE_BYTES - HEADERS_MAX  # a line's end may be shorter by a byte than it counts
INFORMATIONAL_MAX: Final = 10
_INFORMATIONAL: Final = (b"HTTP/1.1 1", b"HTTP/1.0 1")  # how such a response begins
_SWITCHING: Final = (b"HTTP/1.1 101", b"HTTP/1.0 101")
_MUCH_SIZE_BYTES: Final = 64 * 1024  # where so much of a body comes at once there is mostly more

_REST_SIZE_BYTES: Final = 1024 * 1024  # of what came before a reset
_PART_SIZE_BYTES: Final = 64 * 1024

log = structlog.get_logger("tollkeeper.edge")


class TargetKey(NamedTuple):
    """Facts that two exchanges must share to share a connection.

    `address` was checked; `server_name` is the URL's host.
    """

    scheme: str
    address: str
    port: int
    server_name: str


# Idle connections that serve the same exchanges, the newest last. The `pool`'s, at hand for each connection.
Lane: TypeAlias = "deque[TargetConnection]"


class TargetConnection(asyncio.Protocol):
    """A connection to a target; tells the pool by `on_idle` that it is free again, and by `on_lost` that it is gone."""

    __slots__ = (
        "_arrivals",
        "_came",
        "_chatter",
        "_complete",
        "_exchange",
        "_framing",
        "_has_served",
        "_head_bytes",
        "_headers",
        "_heard",
        "_informational",
        "_is_in_record",
        "_is_plain",
        "_lead",
        "_left_bytes",
        "_method",
        "_on_idle",
        "_on_lost",
        "_parser",
        "_promised_seconds",
        "_reading_paused",
        "_request_sent",
        "_reusable",
        "_write",
        "key",
        "lane",
        "socket_number",
        "transport",
    )

    def __init__(
        self,
        key: TargetKey,
        lane: Lane,
        on_idle: Callable[[TargetConnection, int | None], None],
        on_lost: Callable[[TargetConnection], None],
    ) -> None:
        """`on_idle` is told, too, how many seconds its target promised to keep it, if any."""
        self.key = key
        self.lane = lane
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._exchange: Exchange | None = None
        self._parser: HttpResponseParser | None = None
        self.transport: asyncio.Transport
        self.socket_number = -1
        self._write: Callable[[bytes], None]
        self._has_served = False
        self._reading_paused = False
        self._is_plain = True  # its socket's bytes are those of the exchange
        self._is_in_record = False  # of TLS: more has come than was handed on
        self._arrivals: poll  # asks the system about this one socket
        self._came: list[bytes] = []  # of the body, and not yet handed on
        self._method = ""
        self._request_sent = self._heard = False
        self._reset()

    def _reset(self) -> None:
        """Know nothing of a response any more that was read piece by piece; those in one piece leave this as it is."""
        if self._parser is None:
            self._parser = HttpResponseParser(self)
        self._headers: list[Header] = []
        self._head_bytes = self._chatter = self._informational = 0
        self._lead: bytes | None = b""  # of what came before the response's own head; None once that has begun
        self._framing: ResponseFraming | None = None
        self._left_bytes = 0  # to come of a body of known length: taken past the parser
        self._complete = self._reusable = False
        self._promised_seconds: int | None = None  # by the target's Keep-Alive header

    # What a driver calls

    def begin(self, exchange: Exchange, method: str) -> None:
        """Start an exchange; the connection must be free. The request follows through `write`."""
        if self._exchange is not None:
            raise RuntimeError("the connection is carrying an exchange")
        self._exchange, self._method = exchange, method
        self._request_sent = self._heard = False

    def send(self, exchange: Exchange, method: str, request: bytes) -> None:
        """`begin`, `write` and `end_request` at once, for a request that is there to its last byte."""
        self.begin(exchange, method)
        self._request_sent = True
        self._write(request)

    def carries(self, exchange: Exchange) -> bool:
        """Return True if `exchange` is still on this connection."""
        return self._exchange is exchange

    def is_closing(self) -> bool:
        """Return True if nothing can be written any more."""
        return self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send a part of the request; with framing, as it goes on the wire.

        Never waits: what the target does not take the transport holds, and the exchange is told to pause.
        """
        self._write(data)

    def end_request(self) -> None:
        """The request was written to its last byte."""
        self._request_sent = True

    def pause_reading(self) -> None:
        """Take no more of the response for now."""
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more of the response."""
        if self._reading_paused:
            self._reading_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection at once and tell the exchange nothing more."""
        self._exchange = None
        self.transport.abort()

    def drop(self) -> None:
        """Drop the connection at once; an exchange on it fails."""
        self._fail(Code.UPSTREAM_UNREACHABLE, "the gateway closed its connections to targets")

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of a head, or a trailer, which is dropped. Raises FramingError beyond the limit."""
        if self._framing is None:
            self._headers.append((name, value))
            if len(self._headers) > HEADERS_MAX:
                raise FramingError("the head has too many headers")
        else:
            self._check_size(len(name) + len(value) + 4)

    def _check_size(self, more_bytes: int) -> None:
        """Count so much more of a head, or of the trailers. Raises FramingError beyond the limit."""
        self._head_bytes += more_bytes
        if self._head_bytes > HEAD_SIZE_BYTES:
            raise FramingError("the head or the trailers are too long")

    def on_headers_complete(self) -> None:
        """The response's own head is complete. Raises FramingError for one that is refused."""
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None or self._complete:
            return
        if self._chatter > _SURELY_SMALL_BYTES:
            self._check_size(sum(len(name) + len(value) + 4 for name, value in self._headers))
        version = parser.get_http_version()
        head = read_response_head(self._method, parser.get_status_code(), version, self._headers)
        self._framing = framing = head.framing
        self._head_bytes = 0
        is_kept = parser.should_keep_alive() and keeps_alive(version, head)
        self._reusable = is_kept and framing.end is not BodyEnd.CLOSE
        if b"keep-alive" in head.header:
            self._promised_seconds = promised_seconds(head)
        if self._method == "HEAD":
            # The parser waits for the body that Content-Length announces; it is thrown away with that wait. Of one in
            # chunks it would be silent about what comes of it.
            self._complete = True
            self._parser = None
            self._reusable = self._reusable and b"transfer-encoding" not in head.header
        elif framing.end is BodyEnd.LENGTH:
            self._left_bytes = framing.declared_bytes or 0
        exchange.on_head(head)

    def on_body(self, data: bytes) -> None:
        """A part of the body; after the end of the response, bytes that nobody may read.

        All that comes at once is handed on at once, in however many chunks it was sent.
        """
        self._chatter = 0
        if self._complete:
            self._reusable = False
        else:
            self._came.append(data)

    def on_message_complete(self) -> None:
        """The end of the response."""
        if self._framing is not None:
            self._complete = True
            if self._parser is not None and not self._parser.should_keep_alive():
                self._reusable = False  # a trailer said so, and the parser reads nothing more

    def on_message_begin(self) -> None:
        """The first byte of a head; after the end of the response it spoils the connection."""
        if self._complete:
            self._reusable = False

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self._write = self.transport.write
        self.socket_number = transport.get_extra_info("socket").fileno()
        self._arrivals = poll()
        self._arrivals.register(self.socket_number, POLLIN)

    def has_unread(self) -> bool:
        """Return True if something came, an end included: the loop knows only what had come when it last looked."""
        return bool(self._arrivals.poll(0))

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """Write by `write` from now on: the bytes go through TLS."""
        self._write = write
        self._is_plain = False

    def in_record(self, *, is_begun: bool) -> None:
        """Take note that a record has begun or is whole.

        Bytes that nobody asked for spoil the connection, however few.
        """
        self._is_in_record = is_begun
        if is_begun and self._exchange is None and self._has_served:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read a part of the answer. Bytes that no exchange waits for end the connection."""
        parser = self._parser
        if self._exchange is None or parser is None:
            if self._left_bytes and self._exchange is not None:
                self._read_on(data)
            else:
                self.transport.abort()  # nobody asked: what follows would be taken for the next exchange's response
            return
        if not self._heard and (whole := whole_answers.read(data, self._method)) is not None:
            self._take_whole(*whole)
            return
        self._heard = True
        if self._lead is not None and not (data := self._without_informational(self._lead + data)):
            return
        self._chatter += len(data)
        self._parse(parser, data)
        if self._left_bytes < 0 or (self._complete and self._left_bytes):  # parser and judge would disagree
            self._fail(Code.UPSTREAM_INVALID, "the target's response is not as long as it says")
        elif self._complete:
            self._finish()
        elif self._left_bytes:
            self._parser = None  # what it waits for it will not see
        elif self._chatter > HEAD_SIZE_BYTES:
            self._fail(Code.UPSTREAM_INVALID, "the target's response is not valid HTTP: too much beside its body")

    def _take_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take an answer that came in one piece."""
        exchange = self._exchange
        assert exchange is not None  # noqa: S101 - it is heard for one
        self._heard = self._has_served = True
        self._exchange = None
        try:
            if self._request_sent:
                self._hand_on(promised_seconds(head) if b"keep-alive" in head.header else None)
            else:
                self.transport.abort()
            exchange.on_whole(head, body)
        except Exception as fault:  # noqa: BLE001 - as in `_guard`
            if self._exchange is None:  # else another one has begun on it by now
                self._exchange = exchange
            self._broken(fault)

    def _without_informational(self, data: bytes) -> bytes:
        """Skip informational responses before the response's own, whatever their headers say (RFC 9110 15.2).

        They have no body, though a header may speak of one. What has to wait for more is kept; then b"" is returned.
        """
        while any(start.startswith(data[: len(start)]) for start in _INFORMATIONAL):
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) <= HEAD_SIZE_BYTES:
                self._lead = data
                return b""
            self._informational += 1
            if end < 0 or self._informational > INFORMATIONAL_MAX or data.startswith(_SWITCHING):
                what = "switches protocols" if end >= 0 and data.startswith(_SWITCHING) else "has too much before it"
                self._fail(Code.UPSTREAM_INVALID, f"the target's response is not valid HTTP: it {what}")
                return b""
            data = data[end + 4 :]
            if not data:
                self._lead = b""
                return b""
        self._lead = None
        return data

    def _parse(self, parser: HttpResponseParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
            if self._came:
                self._hand_on_body()
        except (HttpParserError, HttpParserUpgrade) as error:
            if self._came:
                self._hand_on_body()
            self._reusable = False
            cause = error.__context__  # what a callback of ours raised
            if cause is not None and not isinstance(cause, FramingError):
                self._broken(cause)
            elif not self._complete:  # else it is what follows the response that cannot be read
                self._fail(Code.UPSTREAM_INVALID, f"the target's response is not valid HTTP: {cause or error}")

    def _hand_on_body(self) -> None:
        came, self._came = self._came, []
        if len(came) > PARTS_AT_ONCE:
            self.rest()
        data = came[0] if len(came) == 1 else b"".join(came)
        if self._framing is not None and self._framing.end is BodyEnd.LENGTH:
            self._left_bytes -= len(data)
        if self._exchange is not None:
            self._guard(self._exchange.on_body, data)

    def rest(self) -> None:
        """Give other connections their turn before this one is read on."""
        rest(self.transport, self._is_paused)

    def _is_paused(self) -> bool:
        return self._reading_paused

    def _read_on(self, data: bytes) -> None:
        """A part of a body of known length. What stands behind the body is nobody's.

        Where much came at once, what is there of the rest is read here, without the copies made on the transport's way.
        The end of what comes, and a fault, are the transport's to find, which reads on. Others wait meanwhile, for a
        body of the length that `relay` allows at most.
        """
        while (exchange := self._exchange) is not None:
            if len(data) > self._left_bytes:
                self._reusable = False
                data = data[: self._left_bytes]
            self._left_bytes -= len(data)
            if data:
                self._guard(exchange.on_body, data)
            left_bytes = self._left_bytes
            if not left_bytes:
                self._finish()
                return
            if len(data) < _MUCH_SIZE_BYTES or self._exchange is None or self._reading_paused or not self._is_plain:
                return
            try:
                data = os.read(self.socket_number, min(left_bytes, BATCH_SIZE_BYTES))
            except OSError:
                return
            if not data:
                return

    def eof_received(self) -> None:
        """End the answer: as whole if the end of the connection is its end, else as cut off.

        The transport closes itself.
        """
        if self._framing is not None and self._framing.end is BodyEnd.CLOSE:
            self._finish()
        else:
            self._end_early()

    def connection_lost(self, exc: Exception | None) -> None:
        """Read what came before a reset, and end the exchange."""
        if exc is not None and self._exchange is not None and self._is_plain:
            for data in rest_of(self.socket_number):
                self.data_received(data)
        self._on_lost(self)
        (self.eof_received if exc is None else self._end_early)()
        self._parser = None  # it knows this connection: without a cycle both go at once

    def pause_writing(self) -> None:
        """Tell the exchange to send no more for now."""
        if self._exchange is not None:
            self._guard(self._exchange.pause_sending)

    def resume_writing(self) -> None:
        """Tell the exchange to go on sending."""
        if self._exchange is not None:
            self._guard(self._exchange.resume_sending)

    # How an exchange ends

    def _finish(self) -> None:
        """The response is complete: hand the connection on if nothing of this exchange can follow on it."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        self._has_served = True
        if self._reusable and self._request_sent:
            promised_seconds = self._promised_seconds
            self._reset()
            self._guard(self._hand_on, promised_seconds)
        else:
            self.transport.abort()
        self._guard(exchange.on_end, failing=exchange)

    def _hand_on(self, promised_seconds: int | None) -> None:
        """Give the connection back, unless what is left of it could be taken for the next exchange's."""
        transport = self.transport
        if self._is_in_record or transport.get_write_buffer_size() or transport.is_closing():
            transport.abort()
            return
        if self._reading_paused:
            self.resume_reading()
        self._on_idle(self, promised_seconds)

    def _end_early(self) -> None:
        if self._heard:
            self._fail(Code.UPSTREAM_INVALID, "the target closed the connection before its response was complete")
        else:
            self._fail(Code.UPSTREAM_UNREACHABLE, "the target closed the connection without a response")

    def _fail(self, code: Code, message: str) -> None:
        exchange, self._exchange = self._exchange, None
        self.transport.abort()
        if exchange is not None:
            failure = TargetFailure(code, message, untouched=self._has_served and not self._heard)
            self._guard(exchange.on_failure, failure)

    def _guard(self, call: Callable[..., None], *arguments: object, failing: Exchange | None = None) -> None:
        """Call out; a fault there is logged and fails the exchange, and the transport never sees it."""
        try:
            call(*arguments)
        except Exception as fault:  # noqa: BLE001 - whatever a driver does, the connection must end in order
            if failing is not None and self._exchange is None:
                self._exchange = failing
            self._broken(fault)

    def _broken(self, fault: BaseException) -> None:
        log.error("target_callback_failed", exc_info=fault, server_name=self.key.server_name)
        self._fail(Code.INTERNAL_ERROR, "the exchange with the target failed")


def rest_of(socket_number: int) -> Iterator[bytes]:
    """Yield what came before a reset on a connection that is lost by it, a mebibyte at most.

    For `connection_lost` alone. A peer that answers early and closes over what it has not read resets the connection. A
    write finds the reset before the answer is read.
    """
    left_bytes = _REST_SIZE_BYTES
    with suppress(OSError):
        while left_bytes > 0 and (data := os.read(socket_number, _PART_SIZE_BYTES)):
            left_bytes -= len(data)
            yield data
