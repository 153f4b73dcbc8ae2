"""Deadlines of calls in flight, on one timer: almost none of them ever comes, so none has a timer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

import structlog

log = structlog.get_logger("tollkeeper.edge")


class Bound(Protocol):
    """Call that has a deadline."""

    def time_out(self) -> None:
        """The deadline has passed; it is no longer kept."""

    def give_up(self) -> None:
        """There is no time left at all; the deadline is no longer kept."""


class Deadlines:
    """Deadlines of calls; `set` and `clear` cost a dictionary entry. For one event loop."""

    def __init__(self) -> None:
        self._due: dict[Bound, float] = {}  # in the loop's time
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at_seconds = inf  # in the loop's time; never after the earliest deadline

    def set(self, bound: Bound, due_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Tell `bound` at `due_seconds` of the loop's time, and at no other; `inf`: only where there is none left."""
        self._due[bound] = due_seconds
        if due_seconds < self._looks_at_seconds:
            self._look_at(due_seconds, loop)

    def clear(self, bound: Bound) -> None:
        """Tell `bound` nothing."""
        self._due.pop(bound, None)

    def close(self) -> None:
        """Have everybody give up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks_at_seconds = None, inf
        while self._due:
            bound, _ = self._due.popitem()
            _tell(bound.give_up)

    def _look_at(self, when_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at_seconds = when_seconds
        self._timer = loop.call_at(when_seconds, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks_at_seconds = None, inf
        now = loop.time()
        for bound in [bound for bound, due in self._due.items() if due <= now]:
            self._due.pop(bound, None)
            _tell(bound.time_out)
        if (next_seconds := min(self._due.values(), default=inf)) < self._looks_at_seconds:
            self._look_at(next_seconds, loop)


def _tell(what: Callable[[], None]) -> None:
    try:
        what()
    except Exception:  # one call's fault must not keep the others waiting
        log.exception("time_out_failed")
