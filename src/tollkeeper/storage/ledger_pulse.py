"""How the ledger's process shows its parent that it does not hang (performance 7).

Its parent asks by a byte on the standard input. A thread of its own says at once that the process runs: a stopped
process says nothing, one whose loop waits for a slow disk does. And it has the event loop give the writer an empty
unit; that one was carried out is said too, so that a loop or a writer that stands still is seen apart from a process
that does. Where the standard input ends, the process shall end, and does even if it hangs. What this module does not
do: decide how long is too long, which the parent does.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.database import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tollkeeper.storage.database import Database, Outcome, Unit

ASKED: Final = b"?"
RUNS: Final = b"runs\n"
READY: Final = b"ready\n"
_WRITES: Final = b"writes\n"
_STANDARD_INPUT: Final = 0
_STANDARD_OUTPUT: Final = 1
# What is answered is on the disk: who cannot close in this time loses nothing by being ended.
END_SECONDS: Final = 60.0


class _Nothing:
    """An empty unit (a `Job`)."""

    def unit(self) -> Unit[None]:
        """Done once the writer has come to it."""
        yield from ()


class LedgerPulse:
    """Answers the parent. Made, and at work, before anything that may hang; `follow` once there is a loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._database: Database | None = None
        self._stop: Callable[[], None] = lambda: None
        self._is_over = False
        self._is_asking = False
        self._changing = threading.Lock()
        threading.Thread(target=self._answer, name="tollkeeper-pulse", daemon=True).start()

    def follow(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """`stop` is called in this loop once the parent wants the process to end, or has ended itself."""
        with self._changing:
            self._loop, self._stop = loop, stop
            if self._is_over:
                loop.call_soon(stop)

    def ready(self, database: Database) -> None:
        """Tell the parent that this database is served; from here on its writer is asked too."""
        self._database = database
        _say(READY)

    def _answer(self) -> None:
        while os.read(_STANDARD_INPUT, 4096):
            _say(RUNS)
            self._in_loop(self._ask_writer)
        with self._changing:
            self._is_over = True
        self._in_loop(self._stop)
        time.sleep(END_SECONDS)
        os._exit(1)

    def _in_loop(self, step: Callable[[], None]) -> None:
        with self._changing, suppress(RuntimeError):  # the loop is closed: the process is about to end
            if self._loop is not None:
                self._loop.call_soon_threadsafe(step)

    def _ask_writer(self) -> None:
        if self._database is None or self._is_asking:
            return
        self._is_asking = True
        try:
            self._database.post(_Nothing(), self._has_written)
        except StorageError:  # it closes, or has too much to do
            self._is_asking = False

    def _has_written(self, outcome: Outcome) -> None:
        del outcome  # a disk that takes nothing any more is no process that hangs
        self._is_asking = False
        _say(_WRITES)


def _say(word: bytes) -> None:
    with suppress(OSError):  # nobody is there to hear it
        os.write(_STANDARD_OUTPUT, word)
