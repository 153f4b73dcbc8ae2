"""Are the files of an open database still those that lie at its path?

SQLite holds what it opened, also when somebody deletes it, moves a backup into its place or copies one over it: every
commit would succeed and be worth nothing. So a thread looks every second. Lost is a file that is gone or another one,
and a database file that became smaller, or whose change counter went back: no writer of SQLite does that here (nothing
is vacuumed), while a backup that is copied over it does mostly both.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOK_SECONDS: Final = 1.0
_TOLD_EVERY_SECONDS: Final = 30.0
_MAGIC: Final = b"SQLite format 3\x00"
_COUNTER: Final = slice(24, 28)
_HEADER_SIZE_BYTES: Final = 100

logger = logging.getLogger(__name__)


class FileWatch:
    """Watch of one open database, whose `on_lost` is told once, by the watch's own thread."""

    def __init__(self, path: Path) -> None:
        """Made while SQLite has the file open. Closed after it: to close a file of one's own drops SQLite's locks."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        beside = [path.with_name(path.name + end) for end in ("-wal", "-shm", ".lock")]
        self._known: dict[Path, tuple[int, int] | None] = dict.fromkeys((path, *beside))
        opened = os.fstat(self._descriptor)
        self._known[path] = opened.st_dev, opened.st_ino
        self._size_bytes = self._counter = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_lost: Callable[[str], None]) -> None:
        """Look every second until it is closed."""
        self._thread = threading.Thread(target=self._run, args=(on_lost,), name="tollkeeper-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Let go of the file, which nobody in this process may have open any more."""
        os.close(self._descriptor)

    def look(self) -> str | None:
        """Return why the open database is not the one at its path; None while it is."""
        for path, known in self._known.items():
            try:
                found = path.stat()
            except FileNotFoundError:
                if known is not None:
                    return f"{path} was deleted"
                continue
            except OSError:
                continue  # nothing was seen
            if known is None:
                self._known[path] = found.st_dev, found.st_ino
            elif known != (found.st_dev, found.st_ino):
                return f"{path} was replaced by another file"
        return self._overwritten()

    def _overwritten(self) -> str | None:
        try:
            size_bytes = os.fstat(self._descriptor).st_size
            header = os.pread(self._descriptor, _HEADER_SIZE_BYTES, 0)
        except OSError:
            return None
        counter = int.from_bytes(header[_COUNTER], "big")
        is_new = size_bytes == 0 == self._size_bytes  # all of it is in the log yet
        if not is_new and (size_bytes < self._size_bytes or counter < self._counter or not header.startswith(_MAGIC)):
            return f"{self._path} was overwritten"
        self._size_bytes, self._counter = size_bytes, counter
        return None

    def _run(self, on_lost: Callable[[str], None]) -> None:
        why = self.look()
        while why is None:
            if self._ended.wait(LOOK_SECONDS):
                return
            why = self.look()
        on_lost(why)
        told = 0.0
        while True:
            if time.monotonic() >= told:
                logger.critical("the database is lost while this program runs: %s", why)
                told = time.monotonic() + _TOLD_EVERY_SECONDS
            if self._ended.wait(LOOK_SECONDS):
                return
