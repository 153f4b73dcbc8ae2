"""A program of ours whose clock goes wrong: `python -m tests.faults.clocked FILE python -m MODULE OPTIONS`.

FILE says by how many seconds, ahead or, negative, behind, and is read again all the time; without it the clock is
right. What is measured by the monotonic clock is not touched, as where an operator sets a machine's time.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from typing import Final

_READ_AGAIN_SECONDS: Final = 0.02


class WrongClock:
    """Tells time as the file says."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = 0.0
        self._ahead_ns = 0
        self._right_ns = time.time_ns

    def time_ns(self) -> int:
        """Since the epoch."""
        now = time.monotonic()
        if now >= self._read_at + _READ_AGAIN_SECONDS:
            self._read_at = now
            text = self._file.read_text("utf-8") if self._file.exists() else ""
            self._ahead_ns = int(text or 0) * 1_000_000_000
        return self._right_ns() + self._ahead_ns

    def time(self) -> float:
        """The same in seconds."""
        return self.time_ns() / 1e9


def running_under(file: Path) -> list[str]:
    """What runs the command that follows it by the clock of that file."""
    return [sys.executable, "-m", "tests.faults.clocked", str(file)]


if __name__ == "__main__":
    clock = WrongClock(Path(sys.argv[1]))
    time.time, time.time_ns = clock.time, clock.time_ns
    _, _, module, *options = sys.argv[2:]
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
