"""`tollkeeper` as it is, but for a note of the files that it runs from one SIGUSR1 to the next.

    TRACED_FILES=FILE python -m bench.servers.traced serve --config ...

At the second signal the names of the package's files, a line of which was executed meanwhile in any thread, are written
to FILE. A call of a function is what is noted: nothing of a file runs without one, once it is imported.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tollkeeper

if TYPE_CHECKING:
    from types import FrameType

PACKAGE: Final = str(Path(tollkeeper.__file__).parent) + "/"


class Tracer:
    """The files seen between two signals."""

    def __init__(self, told: Path) -> None:
        self._told = told
        self._seen: set[str] | None = None

    def note(self, frame: FrameType, _event: str, _argument: Any) -> None:  # noqa: ANN401 - as `sys.settrace` has it
        """Note a call; return nothing, so that no line of it is traced."""
        if self._seen is not None:
            self._seen.add(frame.f_code.co_filename)

    def turn(self, _signal: int, _frame: FrameType | None) -> None:
        """Begin to note, or write what was noted."""
        seen, self._seen = self._seen, set() if self._seen is None else None
        if seen is not None:
            names = sorted(name.removeprefix(PACKAGE) for name in seen if name.startswith(PACKAGE))
            part = self._told.with_suffix(".part")
            part.write_text("\n".join(names))
            part.rename(self._told)


if __name__ == "__main__":
    tracer = Tracer(Path(os.environ["TRACED_FILES"]))
    signal.signal(signal.SIGUSR1, tracer.turn)
    threading.settrace(tracer.note)
    sys.settrace(tracer.note)
    runpy.run_module("tollkeeper.cli", run_name="__main__", alter_sys=True)
