"""One child process in its place, as its parent sees it: started, started anew when it ends, told, stopped.

Whoever is asked to forget a gate and does not say in time that it has is killed: a process that serves nothing serves
nothing stale (contract 3.3). So is one that hangs, which is found also where no gate changes, however long another one
takes to start. What this module does not do: know how many there are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.keyring import ring_text
from tollkeeper.serving import StartError
from tollkeeper.serving.worker_messages import (
    Changed,
    Forget,
    Go,
    NewRing,
    Post,
    Ready,
    Stop,
    TakeRing,
    decode_from_worker,
    line,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tollkeeper.core.sealing import KeyRing
    from tollkeeper.serving.worker_messages import Announced

_LOG = structlog.get_logger("tollkeeper.serving")
FORGET_SECONDS: Final = 3.0  # far beyond any turn of a worker's loop
STARTS_SECONDS: Final = 60.0  # until a process that was just started answers, also where the database is away
END_SECONDS: Final = 5.0
_LOOK_EVERY_SECONDS: Final = 10.0
_HANGS_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 2.0


def environment_without_settings() -> dict[str, str]:
    """This process's environment without our settings: a child is told all that it may know."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOLLKEEPER_")}


class Life:
    """One process from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._writer = writer
        self.mark = ""
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.asked: dict[int, asyncio.Event] = {}

    def say(self, text: bytes) -> None:
        """Write to it; where its line is closed it is about to be known that it has ended, or has to be killed."""
        with suppress(RuntimeError, OSError):
            self._writer.write(text)

    def hang_up(self) -> None:
        """Close its line."""
        self._writer.close()

    def kill(self) -> None:
        """End it at once; one that has ended just now is no error."""
        with suppress(ProcessLookupError):
            self.process.kill()


class Child:
    """A process that is kept running. `listening` stays open here, so that callers wait while it is started anew."""

    def __init__(
        self,
        post: Post,
        listening: socket.socket,
        changed: Callable[[Child, Changed | NewRing], None],
        died: Callable[[], None],
    ) -> None:
        """`changed` is called with what the process announces; `died` after each of its ends that nobody ordered."""
        self.name = post.name
        self._post = post
        self._listening = listening
        self._changed = changed
        self._died = died
        self._life: Life | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)

    @property
    def process_id(self) -> int:
        """The process that runs now, or ran last."""
        assert self._life is not None  # noqa: S101 - it was started
        return self._life.process.pid

    @property
    def metrics(self) -> Path:
        """Where it tells its metrics."""
        return self._post.metrics

    @property
    def mark(self) -> str:
        """What the ids of its open calls have in common; empty where it cannot have any."""
        return "" if self._life is None or self._life.ended.is_set() else self._life.mark

    async def start(self) -> None:
        """Returns once it serves, and keeps it from then on. Raises: StartError."""
        life = await self._start()
        waiting = [asyncio.ensure_future(life.ready.wait()), asyncio.ensure_future(life.ended.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not life.ready.is_set():
            msg = f"{self.name} ended before it served (exit code {life.process.returncode})"
            raise StartError(msg)
        self._keeping = asyncio.create_task(self._keep())
        self._looking = asyncio.create_task(self._look())

    async def _start(self) -> Life:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tollkeeper.serving.start_worker",
                str(theirs.fileno()),
                str(self._listening.fileno()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(), self._listening.fileno()),
                env=environment_without_settings(),
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        life = self._life = Life(process, writer)
        _LOG.info("process_started", process=self.name, pid=process.pid)
        asyncio.create_task(self._follow(life, reader))  # noqa: RUF006 - `ended` says when it is over
        assert process.stdin is not None  # noqa: S101 - piped
        with suppress(OSError):
            process.stdin.write(pickle.dumps(self._post))
            await process.stdin.drain()
            process.stdin.close()
        return life

    async def _follow(self, life: Life, reader: asyncio.StreamReader) -> None:
        """Take what the process says, until its end."""
        try:
            while text := await reader.readline():
                message = decode_from_worker(text)
                if isinstance(message, Ready):
                    life.mark = message.mark
                    life.ready.set()
                    life.say(line(Go()))
                elif isinstance(message, Changed | NewRing):
                    self._changed(self, message)
                else:
                    life.asked.pop(message.number).set()
        except (OSError, ValueError, KeyError):
            life.kill()
        await life.process.wait()
        life.hang_up()
        life.ended.set()
        for noted in life.asked.values():
            noted.set()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_SECONDS
        while self._life is not None:
            begun = loop.time()
            await self._life.ended.wait()
            self._died()
            _LOG.error("process_died", process=self.name, code=self._life.process.returncode)
            pause = _FIRST_PAUSE_SECONDS if loop.time() - begun > 2 * _LAST_PAUSE_SECONDS else pause
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_SECONDS)
                try:
                    await self._start()
                except OSError as error:
                    _LOG.error("process_does_not_start", process=self.name, error=str(error))
                else:
                    break

    async def _look(self) -> None:
        """Kills the process where it does not answer in time, or, while it starts, in a minute."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            life = self._life
            if life is not None and not life.ended.is_set():
                seconds = _HANGS_SECONDS if life.ready.is_set() else STARTS_SECONDS
                await self._ask(life, Forget(next(self._numbers), ""), seconds)

    async def forget(self, slug: str, seconds: float = FORGET_SECONDS) -> None:
        """Returns once the process has no former copy of the gate; it is killed where it does not say so in time.

        One that is only starting has no copies, and what it reads from now on is read after the update.
        """
        life = self._life
        if life is not None and life.ready.is_set() and not life.ended.is_set():
            await self._ask(life, Forget(next(self._numbers), slug), seconds)

    async def take_ring(self, ring: KeyRing) -> None:
        """Returns once the process opens and seals by this ring; it is started anew with it where it does not say so.

        One that is starting must know it too before any other seals by it.
        """
        self._post = replace(self._post, settings=replace(self._post.settings, encryption_keys=ring))
        life = self._life
        if life is not None and not life.ended.is_set():
            await self._ask(life, TakeRing(next(self._numbers), ring_text(ring)), STARTS_SECONDS)

    async def _ask(self, life: Life, message: Forget | TakeRing, seconds: float) -> None:
        noted = life.asked[message.number] = asyncio.Event()
        life.say(line(message))
        try:
            async with asyncio.timeout(seconds):
                await noted.wait()
        except TimeoutError:
            _LOG.error("process_hangs", process=self.name)
            life.kill()
            await life.ended.wait()

    def answer(self, message: Announced) -> None:
        """Tell the process that what it announced is known to all."""
        if self._life is not None and not self._life.ended.is_set():
            self._life.say(line(message))

    async def stop(self) -> None:
        """Let it finish what it accepted; returns when it has ended. One that is only starting has nothing to."""
        await self._end_keeping()
        life = self._life
        try:
            if life is None or life.ended.is_set():  # it died, and was not started anew yet
                return
            if life.ready.is_set():
                life.say(line(Stop()))
            else:
                life.kill()
            await life.ended.wait()
        finally:  # until now one that hangs was found, which would never have ended
            self._end_looking()

    async def end(self) -> None:
        """End it soon, whatever it does."""
        await self._end_keeping()
        self._end_looking()
        life = self._life
        if life is None or life.ended.is_set():
            return
        life.say(line(Stop()) * 2)
        try:
            async with asyncio.timeout(END_SECONDS):
                await life.ended.wait()
        except TimeoutError:
            life.kill()
            await life.ended.wait()

    async def _end_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    def _end_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
