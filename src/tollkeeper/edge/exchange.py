"""One attempt at a call whose response is passed on as it comes: sends the request and keeps the time (contract 4.7).

Counts the body's bytes as the target encoded them. Drives a `TargetConnection`; opens none. Responses that are held
until they are complete are `relay`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.forwarding import Header
from tollkeeper.core.framing import BodyEnd, ResponseFraming
from tollkeeper.edge.relay import IDEMPOTENT, ForwardLimits, ResponseHead
from tollkeeper.edge.target import Exchange, TargetConnection, TargetFailure

__all__ = ["ForwardLimits", "RequestBody", "StaleConnectionError", "StreamedExchange"]

WRITE_SIZE_BYTES: Final = 64 * 1024
STREAM_AHEAD_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class RequestBody:
    """What is sent after the head. `declared_bytes` None sends `parts` in chunks.

    `is_started` says that something was taken from `parts`, so that it cannot be sent a second time.
    """

    parts: AsyncIterator[bytes]
    declared_bytes: int | None
    is_started: bool = False


class StaleConnectionError(Exception):
    """The target had closed a kept connection, and sending the request again is safe."""


class _Exchange(Exchange):
    """What both kinds share. `_settle` ends the wait of whoever asked; later outcomes are ignored."""

    def __init__(self, method: str, limits: ForwardLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._method = method
        self._limits = limits
        self._connection: TargetConnection | None = None
        self._ready: asyncio.Future[ResponseHead] = self._loop.create_future()
        self._head: ResponseHead | None = None
        self._writable: asyncio.Event | None = None
        self._sender: asyncio.Task[None] | None = None
        self._body: bytes | RequestBody = b""
        self._size_bytes = 0
        self._timer = self._loop.call_later(limits.request_seconds, self._time_out, "take the request")

    def start(self, connection: TargetConnection, head: bytes, body: bytes | RequestBody) -> None:
        """Send the request. Raises StaleConnectionError if the connection is closed already."""
        if connection.is_closing():
            raise StaleConnectionError
        self._connection = connection
        self._body = body
        connection.begin(self, self._method)
        if isinstance(body, bytes) and len(body) <= WRITE_SIZE_BYTES:
            connection.write(head + body)
            self._request_sent(connection)
        else:
            self._writable = writable = asyncio.Event()
            writable.set()
            connection.write(head)
            self._sender = self._loop.create_task(self._send(connection, body, writable))
            self._sender.add_done_callback(self._sender_done)

    def close(self) -> None:
        """End whatever still runs. The connection is dropped if the exchange is not over."""
        self._timer.cancel()
        self._ready.cancel()
        if self._sender is not None:
            self._sender.cancel()
        connection = self._connection
        if connection is not None and connection.carries(self):
            connection.abort()

    # What the connection calls

    def on_head(self, status: int, headers: list[Header], framing: ResponseFraming) -> None:
        """See `target.Exchange`."""
        self._head = ResponseHead(status, headers, framing)
        declared = framing.declared_bytes
        if framing.end is BodyEnd.LENGTH and declared is not None and declared > self._limits.response_size_bytes:
            self._too_large(declared)

    def on_failure(self, failure: TargetFailure) -> None:
        """See `target.Exchange`."""
        is_whole = isinstance(self._body, bytes) or not self._body.is_started
        if failure.untouched and is_whole and self._method in IDEMPOTENT:
            self._fail(StaleConnectionError())
        else:
            self._fail(ApiError(failure.code, failure.message))

    def pause_sending(self) -> None:
        """See `target.Exchange`."""
        if self._writable is not None:
            self._writable.clear()

    def resume_sending(self) -> None:
        """See `target.Exchange`."""
        if self._writable is not None:
            self._writable.set()

    # Sending

    def _request_sent(self, connection: TargetConnection) -> None:
        connection.end_request()
        self._timer.cancel()
        self._timer = self._loop.call_later(self._limits.response_seconds, self._time_out, "answer")

    async def _send(self, connection: TargetConnection, body: bytes | RequestBody, writable: asyncio.Event) -> None:
        if isinstance(body, bytes):
            body = RequestBody(_slices(body), len(body))
        declared, sent = body.declared_bytes, 0
        body.is_started = True
        async for part in body.parts:
            sent += len(part)
            if declared is not None and sent > declared:
                raise _wrong_length()
            if part:
                connection.write(part if declared is not None else b"%x\r\n%b\r\n" % (len(part), part))
            await writable.wait()
            if not connection.carries(self):
                return
        if not connection.carries(self):
            return
        if declared is None:
            connection.write(b"0\r\n\r\n")
        elif sent != declared:
            raise _wrong_length()
        self._request_sent(connection)

    def _sender_done(self, sender: asyncio.Task[None]) -> None:
        if not sender.cancelled() and (fault := sender.exception()) is not None:
            self._fail(fault)

    # Ending

    def _too_large(self, size_bytes: int) -> None:
        limit_bytes = self._limits.response_size_bytes
        details = {"sizeBytes": size_bytes, "limitBytes": limit_bytes}
        message = f"the target's response is larger than {limit_bytes} bytes"
        self._fail(ApiError(Code.UPSTREAM_TOO_LARGE, message, details=details))

    def _time_out(self, what: str) -> None:
        self._fail(ApiError(Code.UPSTREAM_TIMEOUT, f"the target did not {what} in time"))

    def _fail(self, fault: BaseException) -> None:
        """Drop the exchange; who waits gets `fault`."""
        if self._connection is not None and self._connection.carries(self):
            self._connection.abort()
        if not self._ready.done():
            self._ready.set_exception(fault)
            self._ready.exception()  # whoever waited may be gone


class StreamedExchange(_Exchange):
    """Hands out the head when it comes, and the body as it comes; too large a body ends in an error half-way."""

    def __init__(self, method: str, limits: ForwardLimits) -> None:
        super().__init__(method, limits)
        self._parts: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._arrived = asyncio.Event()
        self._fault: BaseException | None = None
        self._is_complete = False

    async def response(self) -> ResponseHead:
        """The head. Raises as `WholeExchange.response`."""
        return await self._ready

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body. Raises UPSTREAM_* when it breaks off; ending the iteration early drops the exchange."""
        try:
            while True:
                while self._parts:
                    part = self._parts.popleft()
                    self._ahead_bytes -= len(part)
                    yield part
                if self._fault is not None:
                    raise self._fault
                if self._is_complete:
                    return
                self._arrived.clear()
                if self._connection is not None and self._connection.carries(self):
                    self._connection.resume_reading()
                await self._arrived.wait()
        finally:
            self.close()

    def on_head(self, status: int, headers: list[Header], framing: ResponseFraming) -> None:
        """See `target.Exchange`."""
        super().on_head(status, headers, framing)
        if self._head is not None and not self._ready.done():
            self._ready.set_result(self._head)

    def on_body(self, data: bytes) -> None:
        """See `target.Exchange`."""
        self._size_bytes += len(data)
        if self._size_bytes > self._limits.response_size_bytes:
            self._too_large(self._size_bytes)
            return
        self._parts.append(data)
        self._ahead_bytes += len(data)
        self._arrived.set()
        if self._ahead_bytes > STREAM_AHEAD_BYTES and self._connection is not None:
            self._connection.pause_reading()

    def on_end(self) -> None:
        """See `target.Exchange`."""
        self._timer.cancel()
        self._is_complete = True
        self._arrived.set()

    def _fail(self, fault: BaseException) -> None:
        if self._ready.done():
            self._fault = fault
            self._arrived.set()
        super()._fail(fault)


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), WRITE_SIZE_BYTES):
        yield body[start : start + WRITE_SIZE_BYTES]


def _wrong_length() -> ApiError:
    message = "the request body is not as long as Content-Length says"
    return ApiError(Code.INVALID_PARAMETER, message, details={"field": "body"})
