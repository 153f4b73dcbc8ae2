"""Turns of the event loop: who waits for the next one.

Whoever sends much at once lets others go first before more of it is read (security A-58): reading a connection takes as
long as what came on it, and an event loop reads some megabytes of one before it looks at another. Knows nothing of
payments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

T = TypeVar("T")

REQUESTS_AT_ONCE: Final = 32  # together some milliseconds
PARTS_AT_ONCE: Final = 1024  # of a body, or records of TLS


log = structlog.get_logger("tollkeeper.edge")


class TurnEnd:
    """Work of one turn of the event loop, done behind it, one after the other; a fault of one keeps none from its own.

    What such work takes of the processor's memory is fetched once for all of it.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []

    def add(self, work: Callable[[T], None], subject: T) -> None:
        """Do this work soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._do_all)
        self._waiting.append((work, subject))

    def _do_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work, subject in waiting:
            try:
                work(subject)
            except Exception:  # whoever waits behind it has done nothing wrong
                log.exception("turn_end_failed")


def rest(transport: asyncio.Transport, is_paused: Callable[[], bool]) -> None:
    """Read no more until the loop's next turn, or for as long as the connection's own reasons pause it."""
    if not (is_paused() or transport.is_closing()):
        transport.pause_reading()
        asyncio.get_running_loop().call_soon(read_on, transport, is_paused)


def read_on(transport: asyncio.Transport, is_paused: Callable[[], bool]) -> None:
    """The rest is over."""
    if not (is_paused() or transport.is_closing()):
        transport.resume_reading()
