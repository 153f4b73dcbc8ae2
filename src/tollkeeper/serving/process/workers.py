"""Several processes of one command: each is a node of its own, and all take callers from one listener.

The command listens and starts them; it starts one that died again, and ends with all of them. They are given the
listener by its descriptor, so that no caller who waits in line is lost with a worker. Begin with `Workers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.serving import StartError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

_VARIABLE: Final = "_TOLLKEEPER_WORKER"
_AGAIN_SECONDS: Final = 1.0
_REFUSED: Final = 3  # exit code of whoever cannot start by its settings
_PR_SET_PDEATHSIG: Final = 1
_LOG = structlog.get_logger("tollkeeper.serving")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Place of a worker: the listener, and its number, from 0 on."""

    listening: socket.socket
    number: int


def place_of_worker() -> WorkerPlace | None:
    """The place that this process was started for; None where it is no worker. It ends with whoever started it."""
    given = os.environ.pop(_VARIABLE, None)
    if given is None:
        return None
    descriptor, number, parent = map(int, given.split(","))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
    return WorkerPlace(socket.socket(fileno=descriptor), number)


class Workers:
    """The workers of a command."""

    def __init__(self, count: int, listening: socket.socket) -> None:
        self._count = count
        self._listening = listening
        self._running: set[Process] = set()

    async def keep(self, stop: asyncio.Event) -> None:
        """Keep all of them running until `stop` is set, then end them. Raises: StartError where one cannot start."""
        keeping = [asyncio.create_task(self._keep_one(number, stop)) for number in range(self._count)]
        try:
            await asyncio.gather(*keeping)
        finally:
            for task in keeping:
                task.cancel()
            self.signal(signal.SIGTERM)  # a second one, where it is told to hurry
            await asyncio.gather(*keeping, return_exceptions=True)
            await asyncio.gather(*(process.wait() for process in self._running))

    def signal(self, number: int) -> None:
        """Send it to each of them."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep_one(self, number: int, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                process = await self._start(number)
                ending = asyncio.create_task(process.wait())
                await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                code = await ending
                self._running.discard(process)
                if stop.is_set():
                    return
                if code == _REFUSED:
                    raise StartError("a worker cannot start: what it said is above")
                _LOG.error("worker_ended", worker=number, code=code)
                await asyncio.wait({stopping}, timeout=_AGAIN_SECONDS)
        finally:
            stopping.cancel()

    async def _start(self, number: int) -> Process:
        """Start a worker by our own words; a terminal's signals come to us alone."""
        descriptor = self._listening.fileno()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tollkeeper.cli",
            *sys.argv[1:],
            pass_fds=(descriptor,),
            start_new_session=True,
            env={**os.environ, _VARIABLE: f"{descriptor},{number},{os.getpid()}"},
        )
        self._running.add(process)
        return process
