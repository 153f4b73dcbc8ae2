"""Keeps the process that owns the database file running while workers serve (performance 7).

It is started anew when it dies, and workers find it by themselves; meanwhile they answer 503. It ends when the keeper's
process ends, however that happens. What this module does not do: start workers.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import structlog

from tollkeeper.serving.child import environment_without_settings
from tollkeeper.storage import StorageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_LOG = structlog.get_logger("tollkeeper.serving")
_FIRST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 2.0


class LedgerKeeper:
    """`async with LedgerKeeper(url, socket_path):` the ledger process runs. Entering raises StorageError."""

    def __init__(self, database_url: str, socket_path: Path) -> None:
        self._database_url = database_url
        self._socket_path = socket_path
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._passing_on: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int:
        """The process that runs now, or ran last."""
        assert self._process is not None  # noqa: S101 - it was entered
        return self._process.pid

    async def __aenter__(self) -> Self:
        self._process = await self._start()
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the process finish what it took, and wait for its end."""
        assert self._keeping is not None  # noqa: S101 - it was entered
        self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
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
        assert process.stdout is not None  # noqa: S101 - piped
        assert process.stderr is not None  # noqa: S101 - piped
        if await process.stdout.readline() != b"ready\n":
            problem = (await process.stderr.read()).decode(errors="replace").strip().rpartition("\n")[2]
            await process.wait()
            raise StorageError(problem or "the ledger process did not start")
        _LOG.info("process_started", process="ledger", pid=process.pid)
        self._passing_on = asyncio.create_task(_pass_on(process.stderr))
        return process

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None  # noqa: S101 - it was entered
            begun = loop.time()
            await self._process.wait()
            _LOG.error("ledger_process_died", code=self._process.returncode)
            pause = _FIRST_PAUSE_SECONDS if loop.time() - begun > _LAST_PAUSE_SECONDS else pause
            while True:
                try:
                    self._process = await self._start()
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
