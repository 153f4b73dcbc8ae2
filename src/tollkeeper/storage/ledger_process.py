"""The process that owns the database file where several workers serve (performance 7): one writer, one log, one truth.

Workers reach it over a Unix socket in the database's directory. Spends come as one message per batch, and the batches
of all workers that wait together are one transaction; the units of a purchase, and single spends, come as one message
each. Any other unit of a worker holds the writer from its first statement to its end, round trips included. A worker
that is gone, or silent in the middle of a unit, has its unit undone. That this process does not hang it shows its
parent (`ledger_pulse`), and the workers by greeting them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import uvloop

from tollkeeper.storage.database import Outcome, Part, Statement, StorageError, Unit
from tollkeeper.storage.first_purchase import ClaimPurchase
from tollkeeper.storage.joined_spends import JoinedSpends
from tollkeeper.storage.ledger_pulse import LedgerPulse
from tollkeeper.storage.opening import open_database
from tollkeeper.storage.remote_messages import (
    GREET_EVERY_SECONDS,
    GREETING,
    Abort,
    Begin,
    ClaimRan,
    Done,
    End,
    Failed,
    Frames,
    Played,
    Read,
    Request,
    Rows,
    Run,
    SpendRan,
    Spends,
    Step,
    asked,
    decode_request,
    failed,
    frame,
    spends_done,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.remote_messages import Answer
    from tollkeeper.storage.sqlite import SqliteDatabase

_Steps: TypeAlias = "SimpleQueue[Statement | Part | End | Abort]"
_SILENT_MAX_SECONDS: Final = 5.0
_LEFT: Final = "the unit was left in the middle for too long"


class _AbortedError(Exception):
    """The worker gave its unit up."""


class _Worker(asyncio.Protocol):
    """One worker's connection."""

    def __init__(self, database: SqliteDatabase, joined: JoinedSpends, workers: set[_Worker]) -> None:
        self._workers = workers
        self._database = database
        self._joined = joined
        self._frames = Frames()
        self._steps: dict[int, _Steps] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The worker is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self._workers.add(self)
        self.greet()

    def greet(self) -> None:
        """Show the worker that somebody is there."""
        self._send(Done(GREETING))

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker is gone: what it has not ended is undone."""
        del exc
        self._transport = None
        self._workers.discard(self)
        for number, steps in self._steps.items():
            steps.put(Abort(number))

    def data_received(self, data: bytes) -> None:
        """Take the messages that are complete."""
        try:
            for body in self._frames.feed(data):
                self._take(decode_request(body))
        except ValueError:  # not what a worker says
            self.drop()

    def drop(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, request: Request) -> None:
        if isinstance(request, Spends):
            self._spend(request)
        elif isinstance(request, Read):
            self._start(self._read(request))
        elif isinstance(request, Run):
            self._start(self._run_whole(request))
        elif isinstance(request, Begin):
            steps: _Steps = SimpleQueue()
            steps.put(asked(request))
            self._steps[request.number] = steps
            self._start(self._run(request.number, steps))
        else:
            self._go_on(request)

    def _go_on(self, request: Step | End | Abort) -> None:
        steps = self._steps.get(request.number)
        if steps is not None:
            steps.put(asked(request) if isinstance(request, Step) else request)
        elif isinstance(request, Abort):  # of a unit whose beginning could not be sent, or that is undone by itself
            self._send(Done(request.number))
        else:
            self._send(Failed(request.number, "storage", _LEFT))

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload] # a coroutine of ours
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, answer: Answer) -> None:
        if self._transport is not None:
            try:
                told = frame(answer)
            except OverflowError as error:  # an amount of more than 64 bits in what a part came to
                told = frame(failed(answer.number, error))
            self._transport.write(told)

    def _spend(self, request: Spends) -> None:
        def answered(outcome: Outcome) -> None:
            if outcome.error is None:
                self._send(spends_done(request.number, outcome.result))
            else:
                self._send(failed(request.number, outcome.error))

        self._joined.spend(request, answered)

    async def _read(self, request: Read) -> None:
        database = self._database
        read = {"read": database.read, "read_short": database.read_short, "read_long": database.read_long}
        try:
            rows = await read[request.by](request.sql.statement())
        except Exception as error:  # noqa: BLE001 - the worker's own
            self._send(failed(request.number, error))
        else:
            self._send(Rows(request.number, [dict(row) for row in rows]))

    async def _run_whole(self, request: Run) -> None:
        try:
            result = await self._database.run_job(request.job)
        except Exception as error:  # noqa: BLE001 - the worker's own
            self._send(failed(request.number, error))
        else:
            ran = ClaimRan if isinstance(request.job, ClaimPurchase) else SpendRan
            self._send(ran(request.number, result))

    async def _run(self, number: int, steps: _Steps) -> None:
        loop = asyncio.get_running_loop()

        def told(came: Any) -> None:  # noqa: ANN401 - rows, or what a part came to
            is_rows = isinstance(came, list)
            answer = Rows(number, [dict(row) for row in came]) if is_rows else Played(number, came)
            loop.call_soon_threadsafe(self._send, answer)

        try:
            await self._database.run(_driven(self._database, steps, told))
        except _AbortedError:
            self._send(Done(number))
        except Exception as error:  # noqa: BLE001 - the worker's own
            self._send(failed(number, error))
        else:
            self._send(Done(number))
        finally:
            del self._steps[number]


def _driven(database: SqliteDatabase, steps: _Steps, told: Callable[[Any], None]) -> Unit[None]:
    """A unit whose statements another process sends. Blocks the writing thread while that thinks."""
    while True:
        try:
            with database.resting():
                step = steps.get(timeout=_SILENT_MAX_SECONDS)
        except Empty:
            raise StorageError(_LEFT) from None
        if isinstance(step, End):
            return
        if isinstance(step, Abort):
            raise _AbortedError
        told((yield step))


def listen(path: Path) -> socket.socket:
    """A socket at `path` that only this user may open. The database is open, so no other process listens there."""
    with suppress(FileNotFoundError):
        path.unlink()  # of a process that died
    listening = socket.socket(socket.AF_UNIX)
    old_mask = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen()
    finally:
        os.umask(old_mask)
    return listening


async def serve_ledger(database: SqliteDatabase, listening: socket.socket, stop: asyncio.Event) -> None:
    """Serve the database on the socket until `stop`."""
    joined = JoinedSpends(database)
    workers: set[_Worker] = set()
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: _Worker(database, joined, workers), sock=listening
    )
    greeting = asyncio.create_task(_keep_greeting(workers))
    await stop.wait()
    greeting.cancel()
    server.close()
    for worker in list(workers):
        worker.drop()


async def _keep_greeting(workers: set[_Worker]) -> None:
    """Show every worker that this loop turns, also where nothing is asked."""
    while True:
        await asyncio.sleep(GREET_EVERY_SECONDS)
        for worker in workers:
            worker.greet()


async def _main(url: str, path: Path, pulse: LedgerPulse) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A signal to the whole group must not end the ledger before the workers have drained: only its parent ends it, by
    # closing its standard input, which is what a parent that was killed does too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    pulse.follow(loop, stop.set)
    database = open_database(url)
    try:
        listening = listen(path)
        pulse.ready(database)
        await serve_ledger(database, listening, stop)
    finally:
        await database.close()


def main() -> int:
    """Own the database of the first argument and serve it at the socket of the second until standard input ends."""
    try:
        uvloop.run(_main(sys.argv[1], Path(sys.argv[2]), LedgerPulse()))
    except StorageError as error:
        sys.stderr.write(error.message + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
