"""Deadlines of calls in flight, on one timer: almost none of them ever comes, so none has a timer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

import structlog

log = structlog.get_logger("tollkeeper.edge")


class Bound(Protocol):
    """What has a deadline."""

    def time_out(self) -> None:
        """The deadline has passed; it is no longer kept."""

    def give_up(self) -> None:
        """There is no time left at all; the deadline is no longer kept."""


class Deadlines:
    """Who must be told when; `set` and `clear` cost a dictionary entry. For one event loop."""

    def __init__(self) -> None:
        self.due: dict[Bound, float] = {}  # in the loop's time; whoever is in it may take himself out, as `clear` does
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at_seconds = inf  # in the loop's time; never after the earliest deadline

    def set(self, bound: Bound, due_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Tell `bound` at `due_seconds` of the loop's time, and at no other; `inf`: only where there is none left."""
        self.due[bound] = due_seconds
        self.look_by(due_seconds, loop)

    def look_by(self, due_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """For whoever enters some in `due` by himself."""
        if due_seconds < self._looks_at_seconds:
            self._look_at(due_seconds, loop)

    def hand_over(self, bound: Bound, other: Bound) -> None:
        """Tell `other` in place of `bound`, if that has a deadline."""
        if (due_seconds := self.due.pop(bound, None)) is not None:
            self.due[other] = due_seconds

    def clear(self, bound: Bound) -> None:
        """Tell `bound` nothing."""
        self.due.pop(bound, None)

    def close(self) -> None:
        """Have everybody give up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks_at_seconds = None, inf
        while self.due:
            bound, _ = self.due.popitem()
            _tell(bound.give_up)

    def _look_at(self, when_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at_seconds = when_seconds
        self._timer = loop.call_at(when_seconds, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks_at_seconds = None, inf
        now = loop.time()
        for bound in [bound for bound, due in self.due.items() if due <= now]:
            self.due.pop(bound, None)
            _tell(bound.time_out)
        self.look_by(min(self.due.values(), default=inf), loop)


def _tell(what: Callable[[], None]) -> None:
    try:
        what()
    except Exception:  # one call's fault must not keep the others waiting
        log.exception("time_out_failed")
