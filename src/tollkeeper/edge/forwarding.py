"""Forwards one call to its target and brings the answer back (spec 7, 8; contract 4.5, 4.7).

Knows nothing of payments: what the gateway tells the target comes in `ForwardRequest.added`. Refusals:
UPSTREAM_BLOCKED, UPSTREAM_UNREACHABLE, UPSTREAM_INVALID, UPSTREAM_TOO_LARGE, UPSTREAM_TIMEOUT. What was sent is
never sent again, but for an idempotent request on a kept connection that the target had closed without a word.
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
from tollkeeper.edge.exchange import (
    ForwardLimits,
    RequestBody,
    ResponseHead,
    StaleConnectionError,
    StreamedExchange,
    WholeExchange,
)
from tollkeeper.edge.pool import TargetPool
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
    """The way to every target: resolver, connections, spool. One per process and event loop."""

    def __init__(
        self, resolver: Resolver, *, tls: ssl.SSLContext | None = None, spool_folder: Path | None = None
    ) -> None:
        self.resolver = resolver
        self.pool = TargetPool(tls)
        self._room = SpoolRoom(SPOOL_MEMORY_BYTES, spool_folder)

    async def forward(
        self, request: ForwardRequest, body: bytes | AsyncIterator[bytes], *, limits: ForwardLimits = DEFAULT_LIMITS
    ) -> ForwardResponse:
        """Send `request` with `body` and wait for the whole answer.

        Cancelling drops the exchange with the target. Raises INVALID_PARAMETER for a request that cannot be sent on,
        UPSTREAM_* (module) for a target that failed, UNAVAILABLE when there is no disk space for the answer; what
        `body` raises comes through.
        """
        head, source = _encode(request, body)
        for is_last in (False, True):
            exchange = WholeExchange(request.method, limits, self._room)
            try:
                exchange.start(await self._connect(request.target, limits, fresh=is_last), head, source)
                answer, content = await exchange.response()
                return _response(answer, content, None if answer.framing.end is BodyEnd.NONE else _size(content))
            except StaleConnectionError:
                if is_last:
                    raise _unreachable() from None
            except ApiError as refusal:
                _warn(request.target, refusal)
                raise
            finally:
                exchange.close()
        raise AssertionError("the last attempt returns or raises")

    async def forward_streamed(
        self, request: ForwardRequest, body: bytes | AsyncIterator[bytes], *, limits: ForwardLimits = DEFAULT_LIMITS
    ) -> ForwardResponse:
        """As `forward`, but return with the head; the body is passed on as it comes and may break off (UPSTREAM_*)."""
        head, source = _encode(request, body)
        for is_last in (False, True):
            exchange = StreamedExchange(request.method, limits)
            try:
                exchange.start(await self._connect(request.target, limits, fresh=is_last), head, source)
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
        """Drop all connections."""
        self.pool.close()
        self.resolver.close()
        self._room.close()

    async def _connect(self, target: TargetUrl, limits: ForwardLimits, *, fresh: bool) -> TargetConnection:
        """A connection to `target`, a kept one unless it must be `fresh`. Raises UPSTREAM_*."""
        addresses = self.resolver.cached(target.host)
        if addresses is not None and not fresh and (kept := self._kept(target, addresses)) is not None:
            return kept
        try:
            async with asyncio.timeout(limits.request_seconds):
                addresses = await self.resolver.resolve(target.host, target.port)
                kept = None if fresh else self._kept(target, addresses)
                return kept or await self.pool.open(target.scheme, addresses, target.port, target.host)
        except TimeoutError:
            raise ApiError(Code.UPSTREAM_TIMEOUT, "the target did not take the request in time") from None

    def _kept(self, target: TargetUrl, addresses: list[str]) -> TargetConnection | None:
        for address in addresses:
            kept = self.pool.take(TargetKey(target.scheme, address, target.port, target.host))
            if kept is not None:
                return kept
        return None


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


def _size(body: bytes | SpooledBody) -> int:
    return len(body) if isinstance(body, bytes) else body.size_bytes


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
