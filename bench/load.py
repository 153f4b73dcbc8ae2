"""A load generator: callers that each keep one connection, send a prepared request and wait for its answer.

On uvloop and bare sockets, so that on a core of its own it is far from being the limit. Every answer is looked at: what
is not the expected one ends the run. What a caller does is a visit: requests that follow each other.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from urllib.parse import urlsplit

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What is sent, and what must stand in the answer.
Step: TypeAlias = tuple[bytes, bytes]
Visit: TypeAlias = "Sequence[Step]"

OK: Final = b"HTTP/1.1 200"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_GRACE_SECONDS: Final = 150


@dataclass(frozen=True, slots=True)
class Load:
    """What a run did: answers, the seconds from its first request to its last answer, and each answer's seconds."""

    answers: int
    seconds: float
    waits: list[float]

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answers / self.seconds

    def wait_ms(self, share: float) -> float:
        """The time below which this share of the answers came, in milliseconds."""
        return sorted(self.waits)[int(share * (len(self.waits) - 1))] * 1000


class UnexpectedAnswerError(Exception):
    """A server answered with something else than the benchmark counts on."""


def drive(url: str, visits: deque[Visit], *, callers: int, seconds: float, repeat: bool = False) -> Load:
    """Make `visits` from `callers` connections until `seconds` are over; those that were begun are ended.

    Visits that were begun are taken out of the queue, or with `repeat` put at its end. Where there are no more, the run
    ends earlier: on a machine that others use a turn may be many times as fast as the one that it was prepared by.
    Raises: UnexpectedAnswerError.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_drive(url, visits, callers, seconds, repeat=repeat))


async def _drive(url: str, visits: deque[Visit], callers: int, seconds: float, *, repeat: bool) -> Load:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    ends = time.perf_counter() + seconds

    def next_visit() -> Visit | None:
        if time.perf_counter() >= ends or not visits:
            return None
        visit = visits.popleft()
        if repeat:
            visits.append(visit)
        return visit

    lines = [_Caller(next_visit, loop.create_future()) for _ in range(callers)]
    for line in lines:
        await loop.create_connection(functools.partial(_itself, line), parts.hostname or "", parts.port or 80)
    started = time.perf_counter()
    ends = started + seconds
    for line in lines:
        line.send()
    async with asyncio.timeout(seconds + _GRACE_SECONDS):
        await asyncio.gather(*(line.done for line in lines))
    waits = [wait for line in lines for wait in line.waits]
    return Load(len(waits), max(line.last for line in lines) - started, waits)


def _itself(line: _Caller) -> _Caller:
    return line


class _Caller(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self, next_visit: Callable[[], Visit | None], done: asyncio.Future[None]) -> None:
        self._next = next_visit
        self._steps: deque[Step] = deque()
        self._expected = b""
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._sent = 0.0
        self.done = done
        self.last = 0.0
        self.waits: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base class

    def send(self) -> None:
        """The next request, or the end."""
        assert self._transport is not None
        if not self._steps:
            visit = self._next()
            if visit is None:
                self.done.set_result(None)
                self._transport.close()
                return
            self._steps.extend(visit)
        request, self._expected = self._steps.popleft()
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        head_size = received.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(received, 0, head_size) if head_size > 3 else None
        if length is None or len(received) < head_size + int(length[1]):
            self._received = received
            return
        self._received = b""
        if self._expected not in received:
            self._fail(received)
            return
        self.last = time.perf_counter()
        self.waits.append(self.last - self._sent)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(UnexpectedAnswerError(f"the connection was closed: {exc}"))

    def _fail(self, received: bytes) -> None:
        if not self.done.done():
            self.done.set_exception(UnexpectedAnswerError(received.decode("latin-1")))


def prepared(url: str, bodies: Sequence[bytes], expected: bytes) -> deque[Visit]:
    """Visits of one request each, which posts a body."""
    parts = urlsplit(url)
    head = f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    return deque([(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, expected)] for body in bodies)
