"""The one timer that gives up callers who take longer than they may (security A-58; `core/http/timeouts.py`).

One sweep for all connections of a listener: a timer for each request would cost more than the request's parsing. Where
the process comes to have too many, it is also who knows which of them nobody needs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import itemgetter
from typing import Final, Protocol

import structlog

_SHARE: Final = 16  # of what is spare, one in so many gives way at once
# From here on a caller who holds up his own request gives way.
BEHIND_SECONDS: Final = 5.0
# Of answers, what may wait for callers in memory before those who take theirs slowly give way.
UNSENT_SIZE_BYTES: Final = 256 * 1024 * 1024
_QUIET_SECONDS: Final = 10.0  # between two warnings
_first = itemgetter(0)

log = structlog.get_logger("tollkeeper.edge")


class Watched(Protocol):
    """A connection that a sweep looks at."""

    transport: asyncio.Transport
    peer: str  # its address

    def check_patience(self, now_seconds: float, passed_seconds: float) -> int:
        """Give the connection up if its caller has taken too long; both arguments in the loop's time.

        Returns how many bytes wait for him.
        """

    def cut(self) -> None:
        """Close at once; an answer that is not out yet shows that it is cut (`InboundCall.abort`)."""

    def behind_seconds(self) -> float:
        """By how much the caller has fallen behind with what is his to send or to take."""

    def spare_seconds(self) -> float | None:
        """For how long nobody has waited for anything here, to compare with others; None where somebody does."""


class Sweep:
    """Looks at every watched connection each `seconds`; runs only while there are some. For one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.unsent_max_bytes = UNSENT_SIZE_BYTES
        self._watched: dict[Watched, None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._last_seconds = 0.0
        self._quiet_until_seconds = 0.0

    def watch(self, connection: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Look at `connection` from now on."""
        self._watched[connection] = None
        if self._timer is None:
            self._last_seconds = loop.time()
            self._timer = loop.call_later(self._seconds, self._run, loop)

    def forget(self, connection: Watched) -> None:
        """Look at `connection` no more."""
        self._watched.pop(connection, None)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def make_room(self, now_seconds: float) -> bool:
        """Close some of the connections on which nobody waits; was there one?

        Those first of the address that has most connections, and of them those on which nobody waited for longest.
        Several at once, because finding them is a walk over all.
        """
        held = Counter(one.peer for one in self._watched)
        waited = ((one.spare_seconds(), one) for one in self._watched)
        spare = [(held[one.peer], seconds, one) for seconds, one in waited if seconds is not None]
        spare.sort(key=itemgetter(0, 1), reverse=True)
        for _, _, connection in spare[: 1 + len(spare) // _SHARE]:
            connection.cut()
        if now_seconds >= self._quiet_until_seconds:
            self._quiet_until_seconds = now_seconds + _QUIET_SECONDS
            log.warning("connections_crowded", open=len(self._watched), idle=len(spare))
        return bool(spare)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        passed, self._last_seconds = now - self._last_seconds, now
        self._timer = loop.call_later(self._seconds, self._run, loop)
        unsent_bytes = 0
        for connection in list(self._watched):
            try:
                unsent_bytes += connection.check_patience(now, passed)
            except Exception:  # one connection's fault must not keep the others from being looked at
                log.exception("sweep_failed")
                self.forget(connection)
        if unsent_bytes > self.unsent_max_bytes:
            self._relieve(unsent_bytes, now)

    def _relieve(self, unsent_bytes: int, now_seconds: float) -> None:
        """Too much waits for callers: those who are slow give way, the slowest first."""
        slow = [(seconds, one) for one in self._watched if (seconds := one.behind_seconds()) >= BEHIND_SECONDS]
        slow.sort(key=_first, reverse=True)
        if now_seconds >= self._quiet_until_seconds:
            self._quiet_until_seconds = now_seconds + _QUIET_SECONDS
            log.warning("answers_unread", unsent_bytes=unsent_bytes, slow=len(slow))
        for _, connection in slow:
            waiting_bytes = connection.transport.get_write_buffer_size()
            if waiting_bytes:
                connection.cut()
            unsent_bytes -= waiting_bytes
            if unsent_bytes <= self.unsent_max_bytes:
                return
