"""The one timer that gives up callers who take longer than they may (security A-58; `core/patience.py`).

One sweep for all connections of a listener: a timer for each request would cost more than the request's parsing.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

log = structlog.get_logger("tollkeeper.edge")


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
