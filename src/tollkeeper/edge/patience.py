"""How long callers may take, and the one timer that gives up those who take longer (security A-58).

One sweep for all connections of a listener: a timer for each request would cost more than the request's parsing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

BODY_BYTES_PER_SECOND: Final = 1024

log = structlog.get_logger("tollkeeper.edge")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a caller may take.

    For a head, from the connection's or its own first byte; for a body, beyond the time that its bytes take at
    `BODY_BYTES_PER_SECOND`; for an answer that is not being read; for a refused caller to read why; for a request that
    was sent just before the server stopped.
    """

    head_seconds: float = 15.0
    body_seconds: float = 60.0
    read_seconds: float = 60.0
    linger_seconds: float = 2.0
    last_request_seconds: float = 0.3
    sweep_seconds: float = 1.0


class Watched(Protocol):
    """A connection that a sweep looks at."""

    def check_patience(self, now_seconds: float, passed_seconds: float) -> None:
        """Give the connection up if its caller has taken too long; both arguments in the loop's time."""


class Sweep:
    """Looks at every watched connection each `seconds`; runs only while there are some. For one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_seconds = 0.0

    def watch(self, connection: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Look at `connection` from now on."""
        self._watched.add(connection)
        if self._timer is None:
            self._last_seconds = loop.time()
            self._timer = loop.call_later(self._seconds, self._run, loop)

    def forget(self, connection: Watched) -> None:
        """Look at `connection` no more."""
        self._watched.discard(connection)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        passed, self._last_seconds = now - self._last_seconds, now
        self._timer = loop.call_later(self._seconds, self._run, loop)
        for connection in list(self._watched):
            try:
                connection.check_patience(now, passed)
            except Exception:  # one connection's fault must not keep the others from being looked at
                log.exception("sweep_failed")
                self.forget(connection)
