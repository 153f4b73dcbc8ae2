"""Holds a response's body until it is known to fit: a little in memory, the rest on disk (contract 4.7).

Disk is read and written by threads of its own only, so that a slow disk delays one response and not the loop, which
closes files. Some of it is left to others, for the database may lie on the same one (security A-42).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from tollkeeper.edge.parts import Part, add_part

BATCH_SIZE_BYTES: Final = 256 * 1024
THREADS: Final = 4
SPARED_SIZE_BYTES: Final = 256 * 1024 * 1024  # or a tenth of a disk, where that is less


class SpoolRoom:
    """What all spools of a process share: threads, a folder, and a budget of memory (bytes, in use and in all)."""

    def __init__(self, memory_bytes: int, folder: Path | None = None) -> None:
        self.folder = folder
        self.memory_bytes = memory_bytes
        self.in_use_bytes = 0
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="spool")

    def require(self, size_bytes: int) -> None:
        """Called by a thread. Raises: OSError where so much more would leave too little of the disk to others."""
        disk = shutil.disk_usage(self.folder or tempfile.gettempdir())
        if disk.free - size_bytes < min(SPARED_SIZE_BYTES, disk.total // 10):
            raise OSError(errno.ENOSPC, "too little space is left for others")

    def close(self) -> None:
        """End the threads once they have written what they hold."""
        self.threads.shutdown(wait=False)


class SpooledBody:
    """A body on disk: iterate once, or close. The file has no name and is gone with the object."""

    def __init__(self, file: IO[bytes], size_bytes: int, threads: ThreadPoolExecutor) -> None:
        self.size_bytes = size_bytes
        self._file = file
        self._threads = threads
        self._reading: Future[bytes] | None = None  # the last one

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self.size_bytes
        try:
            while left:
                self._reading = self._threads.submit(self._file.read, min(left, BATCH_SIZE_BYTES))
                data = await asyncio.wrap_future(self._reading)
                if not data:
                    raise OSError("a spooled body is shorter than it was written")
                left -= len(data)
                yield data
        finally:
            self.close()

    def close(self) -> None:
        """Give the disk space back, behind a read that is under way: nobody waits for a disk that is slow with it."""
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
        room: SpoolRoom,
        memory_bytes: int,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self.size_bytes = 0
        self._room = room
        self._memory_bytes = memory_bytes
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
        self._hold(len(data))
        room = self._room
        is_crowded = room.in_use_bytes > room.memory_bytes
        allowed = BATCH_SIZE_BYTES if self._file is not None or is_crowded else self._memory_bytes
        if self._held_bytes > allowed:
            self._pause()
            if self._writing is None:
                self._write()

    def in_memory(self) -> list[bytes] | None:
        """The whole body in its parts, where nothing of it is on disk or on its way there; the spool is then done."""
        if self._file is not None or self._writing is not None:
            return None
        parts = [bytes(part) for part in self._parts]
        self._release()
        return parts

    async def finish(self) -> bytes | SpooledBody:
        """The whole body; nothing may be appended any more. Raises OSError when the disk does not take it."""
        await self._written_out()
        if self._file is None:
            body = b"".join(self._parts)
            self._release()
            return body
        if self._parts:
            self._write()
            await self._written_out()
        file, self._file = self._file, None
        file.seek(0)  # asks no disk, for the file has no buffer
        return SpooledBody(file, self.size_bytes, self._room.threads)

    async def _written_out(self) -> None:
        while self._writing is not None:
            await self._writing

    def close(self) -> None:
        """Give memory and disk space back."""
        self._closed = True
        self._release()
        if self._writing is None and self._file is not None:
            file, self._file = self._file, None
            _give_up(file)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._room.in_use_bytes += size_bytes

    def _release(self) -> None:
        self._parts = []
        self._hold(-self._held_bytes)

    def _write(self) -> None:
        parts, self._parts = self._parts, []
        size_bytes, self._held_bytes = self._held_bytes, 0
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
        self._room.in_use_bytes -= size_bytes
        self._writing = None
        fault = None if job.cancelled() else job.exception()
        if self._closed:
            self.close()
        elif fault is not None:
            self._on_fault(fault)
        elif self._held_bytes > BATCH_SIZE_BYTES:
            self._write()
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
