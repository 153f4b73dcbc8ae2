"""Turns of the event loop: who waits for the next one, and what is done for all that came in one.

Whoever sends much at once lets others go first before more of it is read (security A-58): reading a connection takes as
long as what came on it, and an event loop reads some megabytes of one before it looks at another. Knows nothing of
payments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

REQUESTS_AT_ONCE: Final = 32  # together some milliseconds
PARTS_AT_ONCE: Final = 1024  # of a body, or records of TLS
ANSWERS_AT_ONCE: Final = 64  # a millisecond or two; each is joinable (`heads.ResponseHead`): 4 MiB at most


def rest(transport: asyncio.Transport, is_paused: Callable[[], bool]) -> None:
    """Read no more until the loop's next turn, or for as long as the connection's own reasons pause it."""
    if not (is_paused() or transport.is_closing()):
        transport.pause_reading()
        asyncio.get_running_loop().call_soon(read_on, transport, is_paused)


def read_on(transport: asyncio.Transport, is_paused: Callable[[], bool]) -> None:
    """The rest is over."""
    if not (is_paused() or transport.is_closing()):
        transport.resume_reading()


class Answered(Protocol):
    """A call whose target has answered."""

    @staticmethod
    def answered_together(calls: Sequence[Any]) -> None:
        """Answer these, of one class; it raises nothing."""


class Together:
    """The calls whose targets answered in one turn of the loop, answered behind it (performance 27)."""

    def __init__(self) -> None:
        self._calls: list[Answered] = []

    def add(self, call: Answered) -> None:
        """Answer it behind this turn, or now where so many wait; in the order in which they came."""
        calls = self._calls
        if not calls:
            asyncio.get_running_loop().call_soon(self.answer)
        calls.append(call)
        if len(calls) >= ANSWERS_AT_ONCE:
            self.answer()

    def answer(self) -> None:
        """Answer all that wait, if any do."""
        calls, self._calls = self._calls, []
        if calls:
            calls[0].answered_together(calls)
