"""Forwarded calls as tests wait for them: the callbacks of `relay` and `streaming`, turned into awaitables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tests.core.header_pairs import passed_on, told
from tollkeeper.core.http.forwarding import (
    VIA,
    Header,
    encode_request_head,
    name_rules,
    request_target,
)
from tollkeeper.core.http.heads import BodyEnd, ResponseHead
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.edge.server.call import BodySink
from tollkeeper.edge.target.forwarder import DEFAULT_LIMITS, Forwarder
from tollkeeper.edge.target.relay import ForwardLimits, RelayRequest, TargetUse
from tollkeeper.edge.target.spool import SpooledBody
from tollkeeper.edge.target.stream import StreamedRelay

BODY_EXPECTED = frozenset({"PATCH", "POST", "PUT"})
STREAM_AHEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """One call as it came in. `headers`, `query` (without "?") and `subpath` are the caller's own, raw.

    `added` are the gateway's headers, and replace the caller's of the same names. `content_length` is that of a body
    which is streamed; None sends it in chunks.
    """

    target: TargetUrl
    method: str
    headers: Sequence[Header]
    added: Sequence[Header] = ()
    query: bytes = b""
    subpath: bytes = b""
    content_length: int | None = None
    use: TargetUse = field(default_factory=lambda: TargetUse("owner"))


@dataclass(slots=True)
class ForwardResponse:
    """The target's answer, filtered. A body that is not bytes must be iterated to its end or closed."""

    status: int
    headers: list[Header]
    body: bytes | SpooledBody | Stream

    def close(self) -> None:
        """Give up the body."""
        if not isinstance(self.body, bytes):
            self.body.close()


async def forward(
    edge: Forwarder,
    request: ForwardRequest,
    body: bytes | AsyncIterator[bytes],
    *,
    limits: ForwardLimits = DEFAULT_LIMITS,
) -> ForwardResponse:
    """Send `request` with `body` and wait for the whole answer. Cancelling closes the relay."""
    answer = _Awaited()
    wire, pumped = _encode(request, body, answer)
    relay = edge.relay(wire, answer, limits=limits)
    try:
        relay.start()
        return await answer.response
    finally:
        relay.close()
        if pumped is not None:
            pumped.close()


async def forward_streamed(
    edge: Forwarder, request: ForwardRequest, body: bytes = b"", *, limits: ForwardLimits = DEFAULT_LIMITS
) -> ForwardResponse:
    """As `forward`, but return with the head; the body is iterated as it comes."""
    stream = Stream()
    wire, _ = _encode(request, body, None)
    stream.relay = edge.stream(wire, stream, limits=limits)
    try:
        stream.relay.start()
        head = await stream.head
    except BaseException:
        stream.relay.close()
        raise
    return _response(head, stream, head.framing.declared_bytes)


class Stream:
    """The owner of a streamed relay, whose parts are iterated."""

    def __init__(self) -> None:
        self.relay: StreamedRelay
        self.head: asyncio.Future[ResponseHead] = asyncio.get_running_loop().create_future()
        self._parts: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self._ahead_bytes = 0

    def on_head(self, head: ResponseHead) -> None:
        self.head.set_result(head)

    def on_part(self, data: bytes) -> None:
        self._parts.put_nowait(data)
        self._ahead_bytes += len(data)
        if self._ahead_bytes > STREAM_AHEAD_BYTES:
            self.relay.pause()

    def on_end(self) -> None:
        self._parts.put_nowait(None)

    def on_refusal(self, error: BaseException) -> None:
        if self.head.done():
            self._parts.put_nowait(error)
        else:
            self.head.set_exception(error)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (part := await self._parts.get()) is not None:
                if isinstance(part, BaseException):
                    raise part
                self._ahead_bytes -= len(part)
                yield part
                if self._parts.empty():
                    self.relay.resume()
        finally:
            self.close()

    def close(self) -> None:
        self.relay.close()


class _Awaited:
    """The owner of a relay whose answer is awaited."""

    def __init__(self) -> None:
        self.response: asyncio.Future[ForwardResponse] = asyncio.get_running_loop().create_future()

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        content = b"".join(body) if isinstance(body, list) else body
        if self.response.done():
            if not isinstance(content, bytes):
                content.close()
            return
        self.response.set_result(_response(head, content, None if head.framing.end is BodyEnd.NONE else size_bytes))

    def on_refusal(self, error: BaseException) -> None:
        if not self.response.done():
            self.response.set_exception(error)
            self.response.exception()  # whoever waited may be gone


class _PumpedBody:
    """A body that is iterated: a task that gives it to the relay, and waits while the target takes no more."""

    def __init__(self, parts: AsyncIterator[bytes], answer: _Awaited) -> None:
        self._parts = parts
        self._answer = answer
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._task: asyncio.Task[None] | None = None

    def body_to(self, sink: BodySink) -> None:
        self._task = asyncio.get_running_loop().create_task(self._pump(sink))

    def pause_body(self) -> None:
        self._wanted.clear()

    def resume_body(self) -> None:
        self._wanted.set()

    async def _pump(self, sink: BodySink) -> None:
        try:
            async for part in self._parts:
                sink.on_request_body(part)
                await self._wanted.wait()
            sink.on_request_end()
        except Exception as fault:  # noqa: BLE001 - it comes out where the answer is awaited
            self._answer.on_refusal(fault)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _encode(
    request: ForwardRequest, body: bytes | AsyncIterator[bytes], answer: _Awaited | None
) -> tuple[RelayRequest, _PumpedBody | None]:
    """The request on the wire. Raises INVALID_PARAMETER."""
    path = request_target(request.target, request.subpath, request.query)
    withheld = frozenset(name_rules(name).normal for name, _ in request.added)
    headers = [(b"host", request.target.authority.encode("ascii")), *passed_on(list(request.headers), withheld)]
    headers += [*request.added, (b"via", VIA)]
    length = len(body) if isinstance(body, bytes) else request.content_length
    if length is None:
        headers.append((b"transfer-encoding", b"chunked"))
    elif length or request.method in BODY_EXPECTED:
        headers.append((b"content-length", b"%d" % length))
    head = encode_request_head(request.method, path, headers)
    if isinstance(body, bytes):
        return RelayRequest(request.use, request.target, request.method, head, body, None), None
    assert answer is not None
    pumped = _PumpedBody(body, answer)
    length = request.content_length
    return RelayRequest(request.use, request.target, request.method, head, pumped, length), pumped


def _response(head: ResponseHead, body: bytes | SpooledBody | Stream, size_bytes: int | None) -> ForwardResponse:
    headers = told(head.headers)[0]
    if head.framing.end is BodyEnd.NONE:
        # To HEAD the target's own word; 204 and 304 state none.
        size_bytes = None if head.status in (204, 304) else head.framing.declared_bytes
    if size_bytes is not None:
        headers.append((b"content-length", b"%d" % size_bytes))
    return ForwardResponse(head.status, headers, body)
