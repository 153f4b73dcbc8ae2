"""Lends Python's interpreter to a thread that a busy event loop would starve (performance 2).

A thread that waits for the interpreter gets it when the holder has kept it for a whole switch interval. A loop that is
busy with short callbacks lets go of it many times in each interval, each time for less than a thread needs to wake, and
so may keep a thread waiting for a second (measured: four connections that only fetched challenges held up every commit
for 0.6 s). So while a loop waits for the thread it blocks for a moment every millisecond: until the thread has done its
steps, or for as long as `longest_seconds`. An idle loop would have slept anyway.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

_EVERY_SECONDS: Final = 0.001
_OPENING_SECONDS: Final = 0.00005  # what a sleeping thread needs to wake and take the interpreter


class GilYield:
    """State shared by one thread and the loops that wait for it."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._at_rest = threading.Event()
        self._at_rest.set()
        self._waiting: dict[asyncio.AbstractEventLoop, int] = {}

    def work(self) -> None:
        """Said by the thread: from here on it needs the interpreter."""
        self._at_rest.clear()

    def rest(self) -> None:
        """Said by the thread: it waits for the disk or for jobs."""
        self._at_rest.set()

    def expect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Said in `loop`: one more of its jobs is with the thread."""
        if loop in self._waiting:
            self._waiting[loop] += 1
        else:
            self._waiting[loop] = 1
            loop.call_later(_EVERY_SECONDS, self._lend, loop)

    def answered(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Said in `loop`: `count` of its jobs have been answered."""
        self._waiting[loop] -= count

    def _lend(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting[loop]:
            del self._waiting[loop]
            return
        if self._at_rest.is_set():
            time.sleep(_OPENING_SECONDS)
        self._at_rest.wait(self._longest_seconds)
        loop.call_later(_EVERY_SECONDS, self._lend, loop)
