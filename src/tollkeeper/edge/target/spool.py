"""Holds a response's body until it is known to fit: a little in memory, the rest on disk (contract 4.7).

Disk is read and written by threads of its own only, so that a slow disk delays one response and not the loop, which
closes files. Some of it is left to others, for the database may lie on the same one (security A-42). Of the rest, and
of the memory, each tenant has its share (`core.shares`); a body holds its space until its caller has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from tollkeeper.core.shares import Shares
from tollkeeper.edge.shared.body_chunks import Part, add_part

BATCH_SIZE_BYTES: Final = 256 * 1024
THREADS: Final = 4
MEMORY_SIZE_BYTES: Final = 192 * 1024 * 1024  # of all bodies, a third of one tenant's: others go to disk early
SPARED_SIZE_BYTES: Final = 256 * 1024 * 1024  # or a tenth of a disk, where that is less


class ShareUsedUpError(OSError):
    """The tenant has its share of the disk; the rest is left for others."""


class SpoolRoom:
    """Room that all spools of a process share: threads, memory, and a folder, as far as its disk has space."""

    def __init__(self, folder: Path | None = None, *, memory_bytes: int = MEMORY_SIZE_BYTES) -> None:
        self.folder = folder
        self.memory = Shares(memory_bytes)
        self.disk = Shares(sys.maxsize)  # until it was looked at
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="spool")
        self._written_bytes = 0
        self._left_bytes = sys.maxsize  # of the disk, by the last look at it
        self._is_looking = False

    def require(self, size_bytes: int) -> None:
        """Look at the disk, by a thread. Raises: OSError where so much more would leave too little of it to others."""
        disk = shutil.disk_usage(self.folder or tempfile.gettempdir())
        self._left_bytes = disk.free - size_bytes - min(SPARED_SIZE_BYTES, disk.total // 10)
        if self._left_bytes < 0:
            raise OSError(errno.ENOSPC, "too little space is left for others")

    def written(self, size_bytes: int) -> None:
        """Count what spools have on disk; less than nothing is gone from there."""
        self._written_bytes += size_bytes
        self.disk.resize(max(0, self._left_bytes) + self._written_bytes)

    def look(self) -> None:
        """Find out what the disk has left now, because somebody was refused."""
        if not self._is_looking:
            self._is_looking = True
            looking = asyncio.get_running_loop().run_in_executor(self.threads, self.require, 0)
            looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Future[None]) -> None:
        self._is_looking = False
        if not looking.cancelled():
            looking.exception()  # told by what is left
            self.written(0)

    def close(self) -> None:
        """End the threads once they have written what they hold."""
        self.threads.shutdown(wait=False)


class Space:
    """Space that one body has on disk, or is to have there."""

    def __init__(self, room: SpoolRoom, tenant: str) -> None:
        self.room = room
        self.tenant = tenant
        self._taken_bytes = self._written_bytes = 0

    def reach(self, size_bytes: int) -> bool:
        """Take as much as a body of this size needs. Return False, and take nothing, where its tenant has its share."""
        more_bytes = size_bytes - self._taken_bytes
        if more_bytes <= 0:
            return True
        if not self.room.disk.take(self.tenant, more_bytes):
            self.room.look()
            return False
        self._taken_bytes = size_bytes
        return True

    def require(self, more_bytes: int) -> None:
        """Take as much as writing so much more needs. Raises: ShareUsedUpError."""
        if not self.reach(self._written_bytes + more_bytes):
            raise ShareUsedUpError(errno.ENOSPC, "the rest of the space is left for others")

    def written(self, size_bytes: int) -> None:
        """Count what was written."""
        self._written_bytes += size_bytes
        self.room.written(size_bytes)

    def give_back(self) -> None:
        """Give all of it back: nothing of it is on disk any more."""
        self.room.disk.give_back(self.tenant, self._taken_bytes)
        self.room.written(-self._written_bytes)
        self._taken_bytes = self._written_bytes = 0


class SpooledBody:
    """A body on disk: iterate once, or close. The file has no name and is gone with the object."""

    def __init__(self, file: IO[bytes], size_bytes: int, space: Space) -> None:
        self.size_bytes = size_bytes
        self._file = file
        self._space = space
        self._reading: Future[bytes] | None = None  # the last one

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self.size_bytes
        try:
            while left:
                self._reading = self._space.room.threads.submit(self._file.read, min(left, BATCH_SIZE_BYTES))
                data = await asyncio.wrap_future(self._reading)
                if not data:
                    raise OSError("a spooled body is shorter than it was written")
                left -= len(data)
                yield data
        finally:
            self.close()

    def close(self) -> None:
        """Give the disk space back, behind a read that is under way: nobody waits for a disk that is slow with it."""
        self._space.give_back()
        if self._reading is None:
            _give_up(self._file)
        else:
            self._reading.add_done_callback(lambda _: _give_up(self._file))  # at once where it has ended


class Spool:
    """Takes one body. `pause` and `resume` hold and release the source while the disk is behind.

    `on_fault` is called once, with what is wrong, where the disk does not take it: an OSError, or memory ran out.
    """

    def __init__(
        self,
        space: Space,
        memory_bytes: int,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self.size_bytes = 0
        self._space = space
        self._room = space.room
        self._memory_bytes = memory_bytes if self._room.memory.take(space.tenant, memory_bytes) else 0
        self._allowed_bytes = self._memory_bytes or min(memory_bytes, BATCH_SIZE_BYTES)
        self._pause, self._resume, self._on_fault = pause, resume, on_fault
        self._parts: list[Part] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._closed = False

    def append(self, data: bytes) -> None:
        """Take a part; the source is paused when it must wait for the disk."""
        self.size_bytes += len(data)
        add_part(self._parts, data)
        self._held_bytes += len(data)
        if self._held_bytes > self._allowed_bytes:
            self._pause()
            if self._writing is None:
                self._write_or_fail()

    def in_memory(self) -> list[bytes] | None:
        """The whole body in its parts, where nothing of it is on disk or on its way there; the spool is then done."""
        if self._file is not None or self._writing is not None:
            return None
        parts = [bytes(part) for part in self._parts]
        self.close()
        return parts

    async def finish(self) -> bytes | SpooledBody:
        """The whole body; nothing may be appended any more. Raises OSError when the disk does not take it."""
        await self._written_out()
        if self._file is None:
            body = b"".join(self._parts)
            self.close()
            return body
        if self._parts:
            self._write()
            await self._written_out()
        file, self._file = self._file, None
        file.seek(0)  # asks no disk, for the file has no buffer
        return SpooledBody(file, self.size_bytes, self._space)

    async def _written_out(self) -> None:
        while self._writing is not None:
            await self._writing

    def close(self) -> None:
        """Give memory and disk space back."""
        self._closed = True
        self._parts = []
        self._give_memory_back()
        if self._writing is None:
            file, self._file = self._file, None
            if file is not None:
                _give_up(file)
            self._space.give_back()

    def _give_memory_back(self) -> None:
        self._room.memory.give_back(self._space.tenant, self._memory_bytes)
        self._memory_bytes = 0

    def _write_or_fail(self) -> None:
        try:
            self._write()
        except ShareUsedUpError as fault:
            self._on_fault(fault)

    def _write(self) -> None:
        """Raises: ShareUsedUpError."""
        self._space.require(self._held_bytes)
        parts, self._parts = self._parts, []
        size_bytes, self._held_bytes = self._held_bytes, 0
        self._give_memory_back()
        self._allowed_bytes = BATCH_SIZE_BYTES
        loop = asyncio.get_running_loop()
        self._writing = done = loop.create_future()
        job = loop.run_in_executor(self._room.threads, self._write_parts, parts)
        job.add_done_callback(lambda written: self._written(written, size_bytes, done))

    def _write_parts(self, parts: list[Part]) -> None:
        data = b"".join(parts)
        self._room.require(len(data))
        if self._file is None:  # without a buffer: closing one that the disk would not take fails, and keeps its file
            self._file = tempfile.TemporaryFile(dir=self._room.folder, buffering=0)  # noqa: SIM115 - closed with the body
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _written(self, job: asyncio.Future[None], size_bytes: int, done: asyncio.Future[None]) -> None:
        self._writing = None
        fault = None if job.cancelled() else job.exception()
        self._space.written(size_bytes)
        if self._closed:
            self.close()
        elif fault is not None:
            self._on_fault(fault)
        elif self._held_bytes > BATCH_SIZE_BYTES:
            self._write_or_fail()
        else:
            self._resume()
        if not done.cancelled():
            if fault is not None:
                done.set_exception(fault)
                done.exception()  # a spool that was closed has nobody to tell
            else:
                done.set_result(None)


def _give_up(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what a disk that fails says of a file that nobody needs any more
        file.close()
