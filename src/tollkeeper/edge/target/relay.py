"""Forwards one call to its target, driven by callbacks, and hands the whole answer over (contract 4.5, 4.7).

The answer's head is held until its body is known to fit; up to a mebibyte of it stays in memory, the rest goes to disk.
Makes a task only to open a connection, and one to read back what went to disk. What was sent is never sent again, but
for an idempotent request on a kept connection that the target had closed without a word. A call whose tenant has its
share of connections, or of the room that its answer needs, is refused before its target is asked. Knows nothing of
payments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

import msgspec
import structlog

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.heads import BodyEnd, ResponseHead
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.core.limits import PROXY_RESPONSE_SIZE_BYTES, PROXY_TIMEOUT_SECONDS, RESPONSE_MEMORY_SIZE_BYTES
from tollkeeper.core.shares import Shares
from tollkeeper.edge.server.call import BodySource
from tollkeeper.edge.server.crowds import Crowding
from tollkeeper.edge.shared.deadlines import Deadlines
from tollkeeper.edge.target.connection import TargetConnection
from tollkeeper.edge.target.exchange import Exchange, TargetFailure
from tollkeeper.edge.target.spool import ShareUsedUpError, Space, Spool, SpooledBody, SpoolRoom

FIRST_PART_SIZE_BYTES: Final = 64 * 1024  # so much waits for the rest of its body without a spool
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})

log = structlog.get_logger("tollkeeper.edge")


@dataclass(frozen=True, slots=True)
class ForwardLimits:
    """Bounds of one call.

    `response_seconds` run from the last byte of the request that the caller sent, over every attempt. Until then a
    target is connected to within `request_seconds`, and may keep the request waiting for so long in all: what the
    caller takes is no target's fault (`server.timeouts` bounds it).
    """

    request_seconds: float = PROXY_TIMEOUT_SECONDS
    response_seconds: float = PROXY_TIMEOUT_SECONDS
    response_size_bytes: int = PROXY_RESPONSE_SIZE_BYTES
    memory_size_bytes: int = RESPONSE_MEMORY_SIZE_BYTES


@dataclass(slots=True)
class TargetUse:
    """For whom a target is called, again and again.

    `answer_size_bytes`: what the last answer took, for that may be what the next one takes.
    """

    tenant: str
    answer_size_bytes: int = 0


class RelayRequest(msgspec.Struct, frozen=True):
    """A request as it goes on the wire, its head encoded.

    `declared_bytes` None sends the body of a source in chunks.
    """

    use: TargetUse
    target: TargetUrl
    method: str
    head: bytes
    body: bytes | BodySource
    declared_bytes: int | None


class AnswerOwner(Protocol):
    """Owner of the answer. One of the two is called, once, unless the relay is closed first."""

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        """The whole answer."""

    def on_refusal(self, error: BaseException) -> None:
        """There is none: an ApiError, or a fault of ours."""


class TargetConnections(Protocol):
    """Source of connections to targets."""

    places: Shares
    crowding: Crowding
    room: SpoolRoom
    deadlines: Deadlines

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all its calls."""

    def kept(self, target: TargetUrl) -> TargetConnection | None:
        """A kept connection to the target, at once or not at all."""

    def connect(self, target: TargetUrl, tenant: str, *, fresh: bool) -> Coroutine[Any, Any, TargetConnection]:
        """A connection to the target. Raises UPSTREAM_*."""


class Relay(Exchange):
    """One call on its way. `start` it once; `close` it where nobody wants the answer any more."""

    # Defaults stand here because most of them are never changed: setting them costs more than a short call's answer.
    _connection: TargetConnection | None = None
    _opening: asyncio.Task[TargetConnection] | None = None
    _reading_back: asyncio.Task[bytes | SpooledBody] | None = None
    _head: ResponseHead | None = None
    _first_part: bytes | None = None  # most bodies come in one
    _spool: Spool | None = None
    _space: Space | None = None  # of the disk, for an answer that is long, or was the last time
    _unsent = b""  # the head, until the first part of the body is there to leave with it
    _size_bytes = _sent_bytes = 0
    _has_place = False  # among the calls that have a connection, or wait for one
    _is_started = False  # the request's body was asked for: it cannot be had again
    _is_sent = _is_last_attempt = _is_over = False
    _waits_since: float | None = None  # the target takes no more for now; in the loop's time
    _waited_seconds = 0.0

    def __init__(
        self, connections: TargetConnections, request: RelayRequest, owner: AnswerOwner, limits: ForwardLimits
    ) -> None:
        self._connections = connections
        self._request = request
        self._owner = owner
        self._limits = limits
        self._loop = connections.loop

    def start(self) -> None:
        """Send the request: on a kept connection at once, else as soon as one is open."""
        request, limits, connections = self._request, self._limits, self._connections
        use = request.use
        self._has_place = connections.places.take(use.tenant)
        if not self._has_place:
            self._refuse(self._crowded("calls"))
            return
        if use.answer_size_bytes > limits.memory_size_bytes and not self._has_space(use.answer_size_bytes):
            self._refuse(self._crowded("answers"))
            return
        seconds = limits.response_seconds if isinstance(request.body, bytes) else limits.request_seconds
        connections.deadlines.set(self, self._loop.time() + seconds, self._loop)
        connection = connections.kept(request.target)
        if connection is None:
            self._open()
        else:
            self._send(connection)

    def close(self) -> None:
        """Tell the owner nothing more; an exchange that is not over is dropped with its connection."""
        self._is_over = True
        self._connections.deadlines.clear(self)
        if self._opening is not None:
            self._opening.cancel()
        if self._reading_back is not None:
            self._reading_back.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.carries(self):
            connection.abort()
        self._give_place_back()
        self._give_space_back()

    def _give_place_back(self) -> None:
        if self._has_place:
            self._has_place = False
            self._connections.places.give_back(self._request.use.tenant)

    def _give_space_back(self) -> None:
        if self._spool is not None:
            self._spool.close()
        elif self._space is not None:
            self._space.give_back()
        self._spool = self._space = None

    def _has_space(self, size_bytes: int) -> bool:
        """Take room for an answer of this size, if it would not stay in memory."""
        if size_bytes <= self._limits.memory_size_bytes:
            return True
        if self._space is None:
            self._space = Space(self._connections.room, self._request.use.tenant)
        return self._space.reach(size_bytes)

    def refuse(self, error: Exception) -> None:
        """Drop an exchange that is not over, and tell the owner why, as if it had failed by itself.

        Of one whose answer is whole, and on disk, nothing is left to fail.
        """
        if self._reading_back is None:
            self._refuse(error)

    # Sending

    def _open(self) -> None:
        connecting = self._connections.connect(
            self._request.target, self._request.use.tenant, fresh=self._is_last_attempt
        )
        self._opening = self._loop.create_task(connecting)
        self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[TargetConnection]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        fault = opening.exception()
        if fault is not None:
            self._refuse(fault)
        elif self._is_over:
            opening.result().abort()
        else:
            connection = opening.result()
            try:
                if connection.is_closing():
                    self._try_again()
                else:
                    self._send(connection)
            except Exception as broken:  # noqa: BLE001 - the owner is told
                self._refuse(broken)

    def _send(self, connection: TargetConnection) -> None:
        request = self._request
        self._connection = connection
        if isinstance(request.body, bytes):
            self._is_sent = True
            connection.send(self, request.method, request.head + request.body)
            return
        connection.begin(self, request.method)
        self._set_deadline(inf)
        self._unsent = request.head
        self._is_started = True
        request.body.body_to(self)
        if self._unsent and not self._is_over:
            connection.write(self._unsent)
            self._unsent = b""

    def on_request_body(self, data: bytes) -> None:
        """Send a part of the request's body to the target. Raises INVALID_PARAMETER for more than was declared."""
        connection = self._connection
        if self._is_over or connection is None or not connection.carries(self) or not data:
            return
        self._sent_bytes += len(data)
        declared = self._request.declared_bytes
        if declared is None:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._sent_bytes > declared:
            raise _wrong_length()
        unsent, self._unsent = self._unsent, b""
        connection.write(unsent + data if unsent else data)

    def on_request_end(self) -> None:
        """End the request's body. Raises INVALID_PARAMETER for less than was declared."""
        connection = self._connection
        if self._is_over or connection is None or not connection.carries(self):
            return
        declared = self._request.declared_bytes
        unsent, self._unsent = self._unsent, b""
        if declared is None:
            connection.write(unsent + b"0\r\n\r\n")
        elif self._sent_bytes != declared:
            raise _wrong_length()
        elif unsent:
            connection.write(unsent)
        self._request_sent(connection)

    def _request_sent(self, connection: TargetConnection) -> None:
        connection.end_request()
        self._is_sent = True
        self._set_deadline(self._limits.response_seconds)

    def _set_deadline(self, seconds: float) -> None:
        self._connections.deadlines.set(self, self._loop.time() + seconds, self._loop)

    def _try_again(self) -> None:
        """The kept connection had been closed and sending again is safe: once, on a new connection."""
        self._connection = None
        if self._is_last_attempt:
            self._refuse(ApiError(Code.UPSTREAM_UNREACHABLE, "the target closed the connection without a response"))
        else:
            self._is_last_attempt = True
            self._is_sent = False
            self._open()

    # What the connection calls: `exchange.Exchange`

    def pause_sending(self) -> None:
        """Pause the caller's body: the target takes no more for now."""
        if not isinstance(self._request.body, bytes) and not self._is_over:
            self._request.body.pause_body()
            if not self._is_sent:
                self._waits_since = self._loop.time()
                self._set_deadline(self._limits.request_seconds - self._waited_seconds)

    def resume_sending(self) -> None:
        """Go on with the caller's body: the target takes more again."""
        if not isinstance(self._request.body, bytes) and not self._is_over:
            if self._waits_since is not None and not self._is_sent:
                self._waited_seconds += self._loop.time() - self._waits_since
                self._waits_since = None
                self._set_deadline(inf)
            self._request.body.resume_body()

    def on_head(self, head: ResponseHead) -> None:
        """Take the head of the target's answer. Refuses an answer that declares too large a body."""
        self._head = head
        declared = head.framing.declared_bytes
        if head.framing.end is BodyEnd.LENGTH and declared is not None:
            if declared > self._limits.response_size_bytes:
                self._too_large(declared)
            elif not self._has_space(declared):
                self._refuse(self._no_space(declared))

    def on_body(self, data: bytes) -> None:
        """Take a part of the answer's body."""
        if not self._is_over:
            self._take_part(data)

    def _take_part(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > self._limits.response_size_bytes:
            self._too_large(self._size_bytes)
        elif self._spool is not None:
            self._spool.append(data)
        elif self._may_wait(len(data)):
            self._first_part = data
        else:
            self._spool = Spool(
                self._space or Space(self._connections.room, self._request.use.tenant),
                self._limits.memory_size_bytes,
                pause=self._pause_reading,
                resume=self._resume_reading,
                on_fault=self._disk_failed,
            )
            if self._first_part is not None:
                self._spool.append(self._first_part)
            self._spool.append(data)

    def _may_wait(self, size_bytes: int) -> bool:
        """Return True if the first part of a body may stay in memory without a spool: it is the whole, or little."""
        assert self._head is not None  # noqa: S101 - no body without a head
        is_little = size_bytes <= FIRST_PART_SIZE_BYTES or size_bytes == self._head.framing.declared_bytes
        return self._first_part is None and is_little and size_bytes <= self._limits.memory_size_bytes

    def on_end(self) -> None:
        """Hand the whole answer over."""
        if self._is_over:
            return
        self._connection = None
        self._give_place_back()
        self._let_body_go()
        if self._spool is None:
            self._deliver([] if self._first_part is None else [self._first_part])
        elif (parts := self._spool.in_memory()) is not None:
            self._deliver(parts)
        else:  # the disk has as long as the target had
            self._set_deadline(self._limits.response_seconds)
            self._reading_back = self._loop.create_task(self._spool.finish())
            self._reading_back.add_done_callback(self._read_back)

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Hand an answer over that came in one piece."""
        size_bytes, limits = len(body), self._limits
        if size_bytes > limits.memory_size_bytes or size_bytes > limits.response_size_bytes:
            super().on_whole(head, body)
        elif not self._is_over:
            self._connection, self._head, self._size_bytes = None, head, size_bytes
            self._give_place_back()
            if not self._is_sent:
                self._let_body_go()
            self._deliver([body] if body else [])

    def _let_body_go(self) -> None:
        """The rest of the request goes to nobody any more: its caller may send all of it before he reads."""
        body = self._request.body
        if not (self._is_sent or isinstance(body, bytes)):
            body.resume_body()

    def on_failure(self, failure: TargetFailure) -> None:
        """Try again where nothing was answered and the method is idempotent; else refuse the call."""
        if self._is_over:
            return
        if failure.untouched and not self._is_started and self._request.method in IDEMPOTENT:
            self._try_again()
        else:
            self._refuse(ApiError(failure.code, failure.message))

    # How it ends

    def _read_back(self, reading: asyncio.Task[bytes | SpooledBody]) -> None:
        self._reading_back = None
        if reading.cancelled():
            return
        fault = reading.exception()
        if fault is not None:
            self._refuse(self._no_room(fault) if isinstance(fault, OSError) else fault)
            return
        body = reading.result()
        if self._is_over and not isinstance(body, bytes):
            body.close()
        elif not self._is_over:
            self._deliver([body] if isinstance(body, bytes) else body)

    def _deliver(self, body: list[bytes] | SpooledBody) -> None:
        self._is_over = True
        self._connections.deadlines.clear(self)
        head = self._head
        assert head is not None  # noqa: S101 - no end without a head
        self._request.use.answer_size_bytes = self._size_bytes
        if self._spool is None and self._space is not None:
            self._space.give_back()
        # A spool names this, and what lies in a circle waits for the collector; a body has its space.
        self._spool = self._space = self._first_part = None
        self._owner.on_answer(head, body, self._size_bytes)

    def _refuse(self, error: BaseException) -> None:
        if not self._is_over:
            try:
                self.close()
            finally:  # whatever fails there: nobody else would tell the owner any more
                self._owner.on_refusal(error)

    def time_out(self) -> None:
        """Refuse the call: its deadline has passed."""
        if self._reading_back is not None:
            self._refuse(ApiError(Code.UNAVAILABLE, "the target's response could not be kept on disk in time"))
            return
        what = "answer" if self._is_sent else "take the request"
        self._refuse(ApiError(Code.UPSTREAM_TIMEOUT, f"the target did not {what} in time"))

    def give_up(self) -> None:
        """Refuse the call: the gateway stops."""
        self._refuse(ApiError(Code.UNAVAILABLE, "the gateway stopped before the target's answer was whole"))

    def _too_large(self, size_bytes: int) -> None:
        limit_bytes = self._limits.response_size_bytes
        host = self._request.target.host
        log.warning("upstream_too_large", host=host, size_bytes=size_bytes, limit_bytes=limit_bytes)
        details = {"sizeBytes": size_bytes, "limitBytes": limit_bytes}
        message = f"the target's response is larger than {limit_bytes} bytes"
        self._refuse(ApiError(Code.UPSTREAM_TOO_LARGE, message, details=details))

    def _pause_reading(self) -> None:
        if self._connection is not None and self._connection.carries(self):
            self._connection.pause_reading()

    def _resume_reading(self) -> None:
        if self._connection is not None and self._connection.carries(self):
            self._connection.resume_reading()

    def _disk_failed(self, fault: BaseException) -> None:
        self._refuse(self._no_room(fault))

    def _no_room(self, fault: BaseException) -> ApiError:
        if isinstance(fault, ShareUsedUpError):
            return self._no_space(self._size_bytes)
        return ApiError(Code.UNAVAILABLE, "there is no room for the target's response")

    def _no_space(self, size_bytes: int) -> ApiError:
        """Refuse an answer that is so large, at least; the next call does not ask for it in vain."""
        self._request.use.answer_size_bytes = size_bytes
        return self._crowded("answers")

    def _crowded(self, what: str) -> ApiError:
        return self._connections.crowding.refusal(what, self._request.use.tenant)


def _wrong_length() -> ApiError:
    message = "the request body is not as long as Content-Length says"
    return ApiError(Code.INVALID_PARAMETER, message, details={"field": "body"})
