"""Who has a database file open: one program alone, or several that share it on one machine (security F20).

The lock is a file beside the database: whoever shares holds it shared, everybody else alone. Whoever finds it free
holds it alone for a moment, in which nobody else can be there, writes down what all who share must have alike, and
opens it for them. The kernel frees a lock with its holder's death, however that comes.
What this module does not do: open the database.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.database import StorageError

if TYPE_CHECKING:
    from tollkeeper.storage.database import Statement

# Another sharer that is just starting holds the lock alone for as long as its migrations take.
_PATIENCE_SECONDS: Final = 5.0
# One that does not share is not waited for, but it may be one that has just ended.
_PATIENCE_WITH_OTHERS_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.05
_CONTENT_SIZE_BYTES: Final = 64 * 1024
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Leave for others to open the same file.

    `terms`: one line, which all who share must have alike. `when_alone` is carried out where nobody else has the
    file, before anybody else can.
    """

    terms: str
    when_alone: Statement


class FileLock:
    """Held from its making to `close`."""

    def __init__(self, path: Path, sharing: Sharing | None) -> None:
        """The lock of the database at `path`. Blocks. Raises: StorageError where it cannot be held that way."""
        self._path = path
        self._terms = None if sharing is None else sharing.terms
        lock_path = path.with_name(path.name + ".lock")
        try:
            self.descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{path.parent} cannot be written: {error.strerror}") from error
        try:
            self.is_alone = self._take()
        except OSError as error:
            os.close(self.descriptor)
            raise StorageError(f"{lock_path} cannot be locked: {error.strerror}") from error
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        """Give it back."""
        os.close(self.descriptor)

    def share(self) -> None:
        """Let others in, where it was held alone only to begin. Blocks. Raises: StorageError."""
        if self._terms is None or not self.is_alone:
            return
        # The kernel may let somebody else in between: who wrote other terms meanwhile is found out.
        until = time.monotonic() + _PATIENCE_SECONDS
        while not self._locked(fcntl.LOCK_SH):
            if time.monotonic() > until:
                raise self._in_use()
            time.sleep(_PAUSE_SECONDS)
        self._require_alike(self._written())

    def _take(self) -> bool:
        """Whether it is held alone. Raises: StorageError, OSError."""
        if self._terms is None:
            if not self._locked(fcntl.LOCK_EX):
                raise self._in_use()
            self._write(str(os.getpid()))
            return True
        begun = time.monotonic()
        while True:
            if self._locked(fcntl.LOCK_EX):
                self._write(f"{os.getpid()}\n{_machine()}\n{self._terms}")
                return True
            if self._locked(fcntl.LOCK_SH):
                written = self._written()
                if len(written) > 1:
                    self._require_alike(written)
                    return False
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # who wrote this was alone, and has just ended
            is_shared = len(self._written()) > 1
            if time.monotonic() > begun + (_PATIENCE_SECONDS if is_shared else _PATIENCE_WITH_OTHERS_SECONDS):
                raise self._in_use()
            time.sleep(_PAUSE_SECONDS)

    def _require_alike(self, written: list[str]) -> None:
        """Raises: StorageError."""
        _, machine, terms = (*written, "", "")[:3]
        if machine != _machine():
            msg = f"{self._path} is in use on another machine: only programs on one machine can share it"
            raise StorageError(msg)
        if terms != self._terms:
            msg = f"{self._path} is shared by programs with {terms}; this one has {self._terms}"
            raise StorageError(msg)

    def _in_use(self) -> StorageError:
        written = self._written()
        if self._terms is None and len(written) > 1:
            return StorageError(
                f"{self._path} is in use by programs that share it (process {written[0]} began); end them first"
            )
        reason = (
            "one process writes a database; end that one first" if self._terms is None else "which does not share it"
        )
        return StorageError(f"{self._path} is in use by process {written[0]}: {reason}")

    def _locked(self, kind: int) -> bool:
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _write(self, text: str) -> None:
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def _written(self) -> list[str]:
        return os.pread(self.descriptor, _CONTENT_SIZE_BYTES, 0).decode("utf-8", "replace").split("\n")


def _machine() -> str:
    """What two processes have alike that share memory: this start of this machine, containers included."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()
