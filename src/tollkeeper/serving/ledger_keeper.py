"""Keeps the process that owns the database file running while workers serve (performance 7).

It is started anew when it dies, and workers find it by themselves; meanwhile they answer 503 to what comes, and ask
again, for 10 s, what it had not answered (`storage.remote`). One that hangs is killed: a process that is stopped, or
whose loop or writer stands still. Its successor is started once it has ended, so the two never have the file at the
same time. It ends when the keeper's process ends, however that happens. What this module does not do: start workers.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import structlog

from tollkeeper.serving.child import environment_without_settings
from tollkeeper.storage import StorageError
from tollkeeper.storage.ledger_pulse import ASKED, END_SECONDS, READY, RUNS

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_LOG = structlog.get_logger("tollkeeper.serving")
_FIRST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 2.0
# What follows counts questions and not seconds: of a parent that was stopped together with the process, or slept with
# the whole machine, one wait was long, and nothing is known of the process.
_ASK_EVERY_SECONDS: Final = 2.0
_STARTS_ASKED: Final = (
    15  # in vain, of a process that has not said a word: an interpreter that starts on a busy machine
)
_SILENT_ASKED: Final = 5  # a thread of its own answers, so not even a slow disk keeps it silent
_STANDS_ASKED: Final = 15  # it runs, but carries nothing out: far beyond any sync of a disk that is merely slow


class _Life:
    """One ledger process from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.is_ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._silent = 0
        self._silent_max = _STARTS_ASKED
        self._stands = 0
        self._following = asyncio.create_task(self._follow())
        self._watching = asyncio.create_task(self._watch())

    async def _follow(self) -> None:
        """Hear what it says, until its end."""
        assert self.process.stdout is not None  # noqa: S101 - piped
        while said := await self.process.stdout.readline():
            self._silent, self._silent_max = 0, _SILENT_ASKED
            if said == READY and not self.is_ready.done():
                self.is_ready.set_result(True)
            if said != RUNS:
                self._stands = 0
        self._watching.cancel()
        if not self.is_ready.done():
            self.is_ready.set_result(False)

    async def _watch(self) -> None:
        """Kill it once it has not answered for too long, or has carried nothing out."""
        assert self.process.stdin is not None  # noqa: S101 - piped
        while self._silent < self._silent_max and self._stands < _STANDS_ASKED:
            self._silent += 1
            self._stands += self.is_ready.done()
            with suppress(OSError, RuntimeError):  # it has just ended
                self.process.stdin.write(ASKED)
            await asyncio.sleep(_ASK_EVERY_SECONDS)
        _LOG.error("ledger_process_hangs", pid=self.process.pid, runs=self._silent < self._silent_max)
        self.kill()

    def kill(self) -> None:
        """End it at once; one that has ended just now is no error."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """Let it finish what it took, and wait for its end; one that hangs meanwhile is killed."""
        self._watching.cancel()
        assert self.process.stdin is not None  # noqa: S101 - piped
        self.process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self.kill()
            await self.process.wait()


class LedgerKeeper:
    """`async with LedgerKeeper(url, socket_path):` the ledger process runs. Entering raises StorageError."""

    def __init__(self, database_url: str, socket_path: Path) -> None:
        self._database_url = database_url
        self._socket_path = socket_path
        self._life: _Life | None = None
        self._process_id = 0
        self._keeping: asyncio.Task[None] | None = None
        self._passing_on: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int:
        """The process that serves now, or served last."""
        return self._process_id

    async def __aenter__(self) -> Self:
        life = await self._start()
        self._keeping = asyncio.create_task(self._keep(life))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the process finish what it took, and wait for its end."""
        assert self._keeping is not None  # noqa: S101 - it was entered
        self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping
        if self._life is not None:
            await self._life.end()

    async def _start(self) -> _Life:
        """Returns once it serves. Raises: StorageError, once it has ended."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tollkeeper.storage.ledger_process",
            self._database_url,
            str(self._socket_path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment_without_settings(),
        )
        life = self._life = _Life(process)
        assert process.stderr is not None  # noqa: S101 - piped
        try:
            is_ready = await life.is_ready
        except asyncio.CancelledError:
            life.kill()
            raise
        if not is_ready:
            problem = (await process.stderr.read()).decode(errors="replace").strip().rpartition("\n")[2]
            await process.wait()
            raise StorageError(problem or "the ledger process did not start")
        _LOG.info("process_started", process="ledger", pid=process.pid)
        self._process_id = process.pid
        self._passing_on = asyncio.create_task(_pass_on(process.stderr))
        return life

    async def _keep(self, life: _Life) -> None:
        pause = _FIRST_PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await life.process.wait()
            _LOG.error("ledger_process_died", pid=life.process.pid, code=life.process.returncode)
            pause = _FIRST_PAUSE_SECONDS if loop.time() - begun > _LAST_PAUSE_SECONDS else pause
            while True:
                try:
                    life = await self._start()
                except StorageError as error:
                    _LOG.error("ledger_process_does_not_start", error=error.message)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LAST_PAUSE_SECONDS)
                else:
                    _LOG.info("ledger_process_started_anew")
                    break


async def _pass_on(stream: asyncio.StreamReader) -> None:
    """Log what the process writes, until its end."""
    while text := await stream.readline():
        _LOG.error("ledger_process_wrote", text=text.decode(errors="replace").rstrip())
