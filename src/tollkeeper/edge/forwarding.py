"""The way to every target: what all forwarded calls share, and how one is begun (spec 7, 8; contract 4.5, 4.7).

`relay` is for the gateway's calls and goes by callbacks; `forward` is the same for whoever would rather wait;
`forward_streamed` hands the body out as it comes. Knows nothing of payments. Refusals: UPSTREAM_BLOCKED,
UPSTREAM_UNREACHABLE, UPSTREAM_INVALID, UPSTREAM_TOO_LARGE, UPSTREAM_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tollkeeper.core.addresses import TargetUrl
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.forwarding import Header, encode_request_head, request_headers, request_target, response_headers
from tollkeeper.core.framing import BodyEnd
from tollkeeper.edge.addresses import Resolver
from tollkeeper.edge.call import BodySink
from tollkeeper.edge.deadlines import Deadlines
from tollkeeper.edge.exchange import RequestBody, StaleConnectionError, StreamedExchange
from tollkeeper.edge.pool import TargetPool
from tollkeeper.edge.relay import AnswerOwner, ForwardLimits, Relay, RelayRequest, ResponseHead
from tollkeeper.edge.spool import SpooledBody, SpoolRoom
from tollkeeper.edge.target import TargetConnection, TargetKey

# Held by all responses together before they go to disk early.
SPOOL_MEMORY_BYTES: Final = 64 * 1024 * 1024
DEFAULT_LIMITS: Final = ForwardLimits()
_BODY_EXPECTED: Final = frozenset({"PATCH", "POST", "PUT"})

log = structlog.get_logger("tollkeeper.edge")


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


@dataclass(slots=True)
class ForwardResponse:
    """The target's answer, filtered. `headers` state the body's size wherever it is known (to HEAD too).

    A body that is not bytes must be iterated to its end or closed.
    """

    status: int
    headers: list[Header]
    body: bytes | SpooledBody | StreamedExchange

    def close(self) -> None:
        """Give up the body."""
        if not isinstance(self.body, bytes):
            self.body.close()


class Forwarder:
    """The way to every target: resolver, connections, spool, deadlines. One per process and event loop."""

    def __init__(
        self, resolver: Resolver, *, tls: ssl.SSLContext | None = None, spool_folder: Path | None = None
    ) -> None:
        self.resolver = resolver
        self.pool = TargetPool(tls)
        self.room = SpoolRoom(SPOOL_MEMORY_BYTES, spool_folder)
        self.deadlines = Deadlines()

    def relay(self, request: RelayRequest, owner: AnswerOwner, *, limits: ForwardLimits = DEFAULT_LIMITS) -> Relay:
        """A call on its way to its target, not yet started; `owner` gets the answer."""
        return Relay(self, request, owner, limits)

    async def forward(
        self, request: ForwardRequest, body: bytes | AsyncIterator[bytes], *, limits: ForwardLimits = DEFAULT_LIMITS
    ) -> ForwardResponse:
        """Send `request` with `body` and wait for the whole answer.

        Cancelling drops the exchange with the target. Raises INVALID_PARAMETER for a request that cannot be sent on,
        UPSTREAM_* (module) for a target that failed, UNAVAILABLE when there is no disk space for the answer; what
        `body` raises comes through.
        """
        head, source = _encode(request, body)
        answer = _Awaited()
        pumped = source if isinstance(source, bytes) else _PumpedBody(source.parts, answer)
        declared = None if isinstance(source, bytes) else source.declared_bytes
        relay = self.relay(RelayRequest(request.target, request.method, head, pumped, declared), answer, limits=limits)
        try:
            relay.start()
            return await answer.response
        finally:
            relay.close()
            if not isinstance(pumped, bytes):
                pumped.close()

    async def forward_streamed(
        self, request: ForwardRequest, body: bytes | AsyncIterator[bytes], *, limits: ForwardLimits = DEFAULT_LIMITS
    ) -> ForwardResponse:
        """As `forward`, but return with the head; the body is passed on as it comes and may break off (UPSTREAM_*)."""
        head, source = _encode(request, body)
        for is_last in (False, True):
            exchange = StreamedExchange(request.method, limits)
            try:
                exchange.start(await self._connect_in_time(request.target, limits, fresh=is_last), head, source)
                answer = await exchange.response()
                return _response(answer, exchange, answer.framing.declared_bytes)
            except StaleConnectionError:
                exchange.close()
                if is_last:
                    raise _unreachable() from None
            except BaseException as fault:
                exchange.close()
                if isinstance(fault, ApiError):
                    _warn(request.target, fault)
                raise
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Drop all connections; whoever still waits for a target is told UNAVAILABLE."""
        self.deadlines.close()
        self.pool.close()
        self.resolver.close()
        self.room.close()

    def kept(self, target: TargetUrl) -> TargetConnection | None:
        """See `relay.Connections`."""
        addresses = self.resolver.cached(target.host)
        return None if addresses is None else self._kept(target, addresses)

    async def connect(self, target: TargetUrl, *, fresh: bool) -> TargetConnection:
        """See `relay.Connections`. A kept connection unless it must be `fresh`. Raises UPSTREAM_*."""
        addresses = await self.resolver.resolve(target.host, target.port)
        kept = None if fresh else self._kept(target, addresses)
        return kept or await self.pool.open(target.scheme, addresses, target.port, target.host)

    async def _connect_in_time(self, target: TargetUrl, limits: ForwardLimits, *, fresh: bool) -> TargetConnection:
        try:
            async with asyncio.timeout(limits.request_seconds):
                return await self.connect(target, fresh=fresh)
        except TimeoutError:
            raise ApiError(Code.UPSTREAM_TIMEOUT, "the target did not take the request in time") from None

    def _kept(self, target: TargetUrl, addresses: list[str]) -> TargetConnection | None:
        for address in addresses:
            kept = self.pool.take(TargetKey(target.scheme, address, target.port, target.host))
            if kept is not None:
                return kept
        return None


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


def _encode(request: ForwardRequest, body: bytes | AsyncIterator[bytes]) -> tuple[bytes, bytes | RequestBody]:
    """The request's head on the wire, and what follows it. Raises INVALID_PARAMETER."""
    path = request_target(request.target, request.subpath, request.query)
    headers = request_headers(request.headers, request.added, request.target.authority)
    source = body if isinstance(body, bytes) else RequestBody(body, request.content_length)
    length = len(body) if isinstance(body, bytes) else request.content_length
    if length is None:
        headers.append((b"transfer-encoding", b"chunked"))
    elif length or request.method in _BODY_EXPECTED:
        headers.append((b"content-length", b"%d" % length))
    return encode_request_head(request.method, path, headers), source


def _response(
    head: ResponseHead, body: bytes | SpooledBody | StreamedExchange, size_bytes: int | None
) -> ForwardResponse:
    headers = response_headers(head.headers)
    if head.framing.end is BodyEnd.NONE:
        # To HEAD the target's own word; 204 and 304 state none.
        size_bytes = None if head.status in (204, 304) else head.framing.declared_bytes
    if size_bytes is not None:
        headers.append((b"content-length", b"%d" % size_bytes))
    return ForwardResponse(head.status, headers, body)


def _warn(target: TargetUrl, refusal: ApiError) -> None:
    if refusal.code is Code.UPSTREAM_TOO_LARGE and refusal.details is not None:
        log.warning(
            "upstream_too_large",
            host=target.host,
            size_bytes=refusal.details["sizeBytes"],
            limit_bytes=refusal.details["limitBytes"],
        )


def _unreachable() -> ApiError:
    return ApiError(Code.UPSTREAM_UNREACHABLE, "the target closed the connection without a response")
