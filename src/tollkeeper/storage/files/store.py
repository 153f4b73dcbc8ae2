"""Stores of the contents of file PayGates: the interface, and the store in a local directory (contract 4.8).

An object is there under its id only when it is whole and on the disk; it is sold only when a row in the database names
it. So whatever a crash or a cut upload leaves is unfinished or an orphan, and `listed` shows both. Contents are never
held in memory; blocking calls run in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Concatenate, Final, ParamSpec, Protocol, TypeVar

from tollkeeper.storage.engine.private_files import make_private_directory, open_private_file, sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

CHUNK_SIZE_BYTES: Final = 256 * 1024
OF_ANOTHER_SIZE: Final = "the object has not the size that it had"
OWNER_NAME: Final = "database"  # beside the objects: whose they are
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FileStoreError(Exception):
    """The store cannot do it now: unreachable, unwritable, broken. Nothing was lost."""


class FileStoreFullError(FileStoreError):
    """There is no room for the upload."""


class FileMissingError(FileStoreError):
    """The store has no such object."""


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """A whole object in the store. `sha256` is hex."""

    file_id: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object, whole or unfinished, with when it was last written to."""

    file_id: str
    changed_ms: int


class Upload(Protocol):
    """One object being written."""

    async def write(self, data: bytes) -> None:
        """Appends; about CHUNK_SIZE_BYTES at a time is best. Raises: FileStoreError."""

    async def finish(self) -> WrittenObject:
        """Make the object whole and durable. Raises: FileStoreError."""

    async def abort(self) -> None:
        """Give it up; may be called at any time, also after a failure. Raises: FileStoreError: some of it stays."""


class FileStore(Protocol):
    """Objects by id: 32 hex digits, made by the caller, never used twice."""

    async def begin(self, file_id: str, expected_bytes: int | None) -> Upload:
        """Begin an object; `expected_bytes` is an upper bound of its size where that is known.

        Raises: FileStoreError.
        """

    async def require(self, file_id: str, size_bytes: int) -> None:
        """Is the object there, and of this size? A look, not a reading. Raises: FileMissingError, FileStoreError."""

    def read(self, file_id: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to and without `end`. Raises: FileMissingError, FileStoreError."""

    async def delete(self, file_id: str) -> None:
        """Delete an object, whole or unfinished; nothing where it is gone. Raises: FileStoreError."""

    def listed(self) -> AsyncIterator[StoredObject]:
        """Everything in the store. Raises: FileStoreError."""

    async def check(self) -> None:
        """Can objects be written and read now? Raises: FileStoreError."""

    async def owner(self, database: str) -> str:
        """Return whose the objects are: the first database's that asked. Raises: FileStoreError."""


def _in_thread(work: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[object, object, T]]:
    """Make a method that works on files one that is awaited. It raises FileStoreError in place of OSError."""

    @wraps(work)
    async def begin(self: S, /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(work, self, *args, **named)
        except OSError as error:
            raise _failure(error) from error

    return begin


class LocalFiles:
    """A directory. `min_free_bytes` stay free on its file system."""

    def __init__(self, root: Path, min_free_bytes: int) -> None:
        self._root = root
        self._objects = root / "objects"
        self._incoming = root / "incoming"
        self._min_free_bytes = min_free_bytes

    @property
    def directories(self) -> tuple[Path, Path]:
        """Directories of whole and of unfinished objects, once there are any."""
        return self._objects, self._incoming

    @_in_thread
    def begin(self, file_id: str, expected_bytes: int | None) -> Upload:
        """Begin an object."""
        for directory in (self._root, *self.directories):
            make_private_directory(directory)
        self.require_room(expected_bytes or 0)
        part = self._incoming / file_id
        return _LocalUpload(self, part, self._objects / file_id, open_private_file(part))

    def require_room(self, size_bytes: int) -> None:
        """Raises: FileStoreFullError where so much more would leave too little free."""
        if shutil.disk_usage(self._incoming).free - size_bytes < self._min_free_bytes:
            raise FileStoreFullError("too little space is free")

    @_in_thread
    def require(self, file_id: str, size_bytes: int) -> None:
        """Check that the object is there, and of this size."""
        with (self._objects / file_id).open("rb", 0) as file:
            found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != size_bytes:
            raise FileStoreError(OF_ANOTHER_SIZE)

    async def read(self, file_id: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` up to and without `end`."""
        with await self._opened(file_id) as file:
            place = start
            while place < end:
                data = await self._read_at(file, place, min(CHUNK_SIZE_BYTES, end - place))
                if not data:
                    raise FileStoreError(OF_ANOTHER_SIZE)
                place += len(data)
                yield data

    @_in_thread
    def _opened(self, file_id: str) -> IO[bytes]:
        return (self._objects / file_id).open("rb", 0)

    @_in_thread
    def _read_at(self, file: IO[bytes], place: int, size_bytes: int) -> bytes:
        return os.pread(file.fileno(), size_bytes, place)

    @_in_thread
    def delete(self, file_id: str) -> None:
        """Delete the object, whole or unfinished."""
        for directory in (self._incoming, self._objects):
            (directory / file_id).unlink(missing_ok=True)

    async def listed(self) -> AsyncIterator[StoredObject]:
        """Yield everything in the directories."""
        for found in await self._list():
            yield found

    @_in_thread
    def _list(self) -> list[StoredObject]:
        found = []
        for directory in (self._incoming, self._objects):
            for entry in directory.iterdir() if directory.is_dir() else ():
                with suppress(FileNotFoundError):  # deleted or finished meanwhile
                    found.append(StoredObject(entry.name, entry.stat().st_mtime_ns // 1_000_000))
        return found

    async def check(self) -> None:
        """Check that objects can be written now."""
        probe = await self.begin(f"check-{os.getpid()}-{time.time_ns()}", None)
        await probe.abort()

    @_in_thread
    def owner(self, database: str) -> str:
        """Return the database that owns the objects: the first that asked."""
        mark = self._root / OWNER_NAME
        make_private_directory(self._root)
        with suppress(FileExistsError), open_private_file(mark) as file:
            file.write(database.encode())
            os.fsync(file.fileno())
        return mark.read_text("utf-8", "replace") or database  # empty where the first write was cut


class _LocalUpload:
    """Written beside the objects, hashed as it is written, flushed, then renamed among them."""

    def __init__(self, store: LocalFiles, part: Path, whole: Path, file: IO[bytes]) -> None:
        self._store = store
        self._part = part
        self._whole = whole
        self._file = file
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    @_in_thread
    def write(self, data: bytes) -> None:
        """Write the next bytes."""
        self._store.require_room(len(data))
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._hash.update(data)
        self._size_bytes += len(data)

    @_in_thread
    def finish(self) -> WrittenObject:
        """Finish the object: it is there, whole and on the disk."""
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.rename(self._whole)
        sync(self._whole.parent)
        return WrittenObject(self._whole.name, self._size_bytes, self._hash.hexdigest())

    @_in_thread
    def abort(self) -> None:
        """Give the upload up, and delete what was written."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def _failure(error: OSError) -> FileStoreError:
    if error.errno in _FULL:
        return FileStoreFullError("the disk is full")
    if isinstance(error, FileNotFoundError):
        return FileMissingError("there is no such object")
    return FileStoreError(f"the directory of files cannot be used ({error.strerror})")
