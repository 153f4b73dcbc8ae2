"""A database that another process owns: `Database` over the ledger process's socket, for each of several workers.

What was sent and not answered when the connection breaks has an unknown outcome and is a LostError, as is all that is
asked until a connection stands again and the process has greeted on it. A connection on which nothing is heard for too
long is broken from this side: its parent kills a process that hangs, but not even that ends one that its disk does not
let go. Batches of spends alone are asked again by themselves, once the process is back: a credit
that was taken for a call is found by the call's id, so that nobody pays twice. Connecting is tried again as long as the
database is open. What this module does not do: start that process.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tollkeeper.storage.database import LostError, Outcome, Part, Row, Statement, StorageError, Unit
from tollkeeper.storage.remote_messages import (
    GREETING,
    Abort,
    Answer,
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
    SpendsDone,
    Sql,
    Step,
    Whole,
    decode_answer,
    error_of,
    frame,
    spent_of,
)
from tollkeeper.storage.spending import SpendBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tollkeeper.storage.database import Job
    from tollkeeper.storage.remote_messages import SentPart

T = TypeVar("T")

_AGAIN_SECONDS: Final = 0.05
BACK_SECONDS: Final = 10.0  # how long spends under way wait for the process that is started anew
# So many looks without a word: its parent has given a process that hangs up by then (`serving.ledger_keeper`). Looks
# are counted and not seconds: who was stopped together with the process has not waited for it.
_LOOK_EVERY_SECONDS: Final = 5.0
_LOOKS_IN_VAIN: Final = 9
_LOST: Final = "the ledger process cannot be reached at the moment"


class _Line(asyncio.Protocol):
    """One connection to the ledger process, and who waits for an answer on it."""

    def __init__(self, is_back: asyncio.Event) -> None:
        """`is_back` is set by the process's first word and cleared when the connection breaks, before anybody knows."""
        self._is_back = is_back
        self._looks_in_vain = 0
        self._looking: asyncio.TimerHandle | None = None
        self.is_greeted = False
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody listens there; that it is a process which answers, its greeting says."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self._look_later()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_SECONDS, self._look)

    def _look(self) -> None:
        self._looks_in_vain += 1
        if self._looks_in_vain > _LOOKS_IN_VAIN:
            self.close()
        else:
            self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits that nobody knows."""
        del exc
        self._transport = None
        self.is_greeted = False
        if self._looking is not None:
            self._looking.cancel()
        self._is_back.clear()
        self.lost.set()
        waiting, self._waiting = self._waiting, {}
        for number, answer in waiting.items():
            answer(Failed(number, "lost", _LOST))

    def data_received(self, data: bytes) -> None:
        """Give the answers to those who wait for them."""
        self._looks_in_vain = 0
        for body in self._frames.feed(data):
            answer = decode_answer(body)
            if answer.number == GREETING:
                self.is_greeted = True
                self._is_back.set()
            take = self._waiting.pop(answer.number, None)
            if take is not None:
                take(answer)

    def ask(self, request: Request, answer: Callable[[Answer], None]) -> None:
        """Send; `answer` is called once, later. Raises: StorageError, with nothing sent; OverflowError."""
        if self._transport is None:
            raise LostError(_LOST)
        self._transport.write(frame(request))
        self._waiting[request.number] = answer

    def close(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()


class RemoteDatabase:
    """The ledger process's database, in one event loop. Carries out `Database`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line: _Line | None = None
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._is_back = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Wait until the ledger process is there, and keep the connection from then on."""
        self._connecting = asyncio.create_task(self._keep_connected())
        await self._is_back.wait()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._line = line = _Line(self._is_back)
            try:
                await loop.create_unix_connection(partial(_same, line), str(self._path))
            except OSError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                await line.lost.wait()

    def _open_line(self) -> _Line:
        if self._is_closing:
            raise StorageError("the database is closed")
        if self._line is None or not self._line.is_greeted:
            raise LostError(_LOST)
        return self._line

    async def read(self, statement: Statement) -> list[Row]:
        """See `Database.read`."""
        return await self._read(statement, "read")

    async def read_short(self, statement: Statement) -> list[Row]:
        """See `Database.read_short`: the ledger process's loop is blocked for it, which waits for no long query."""
        return await self._read(statement, "read_short")

    async def read_long(self, statement: Statement) -> list[Row]:
        """See `Database.read_long`."""
        return await self._read(statement, "read_long")

    async def _read(self, statement: Statement, by: str) -> list[Row]:
        answer = await self._answer(self._open_line(), Read(next(self._numbers), Sql.of(statement), by))
        if isinstance(answer, Rows):
            return list(answer.rows)
        raise _error_of(answer)

    async def run(self, unit: Unit[T]) -> T:
        """See `Database.run`. The ledger process's writer is this unit's until it ends."""
        task = self._task(self._drive(self._open_line(), unit))
        return await asyncio.shield(task)

    async def run_short(self, unit: Unit[T]) -> T:
        """See `Database.run_short`."""
        return await self.run(unit)

    async def run_job(self, job: Job) -> Any:  # noqa: ANN401 - as its unit returns
        """See `Database.run_job`."""
        if not isinstance(job, Whole):
            return await self.run(job.unit())
        task = self._task(self._answer(self._open_line(), Run(next(self._numbers), job)))
        answer = await asyncio.shield(task)
        if isinstance(answer, ClaimRan | SpendRan):
            return answer.result
        raise _error_of(answer)

    async def _drive(self, line: _Line, unit: Unit[T]) -> T:
        driven = _Driven(line, next(self._numbers))
        try:
            result = await self._play(driven, unit)
            if driven.has_begun:
                _done(await self._answer(line, End(driven.number)))
        except _AnsweredError as error:
            raise error.cause from None
        except BaseException:
            if driven.has_begun:
                _done(await self._answer(line, Abort(driven.number)))
            raise
        return result

    async def _play(self, driven: _Driven, unit: Unit[T]) -> T:
        try:
            asked = next(unit)
            while True:
                asked = unit.send(await self._came(driven, asked))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            unit.close()

    async def _came(self, driven: _Driven, asked: Statement | Part) -> Any:  # noqa: ANN401 - rows, or a part's result
        """A part that cannot be sent, for an amount in it has more than 64 bits, is played by its statements."""
        try:
            waiting = self._ask(driven.line, driven.request(asked))
        except OverflowError:
            if not isinstance(asked, Part):
                raise
            return await self._play(driven, asked.job.unit())
        driven.has_begun = True
        answer = await waiting
        if isinstance(answer, Rows):
            return list(answer.rows)
        if isinstance(answer, Played):
            return answer.result
        if isinstance(answer, Failed) and answer.kind == "overflow":  # perhaps its answer's, and it goes on
            raise error_of(answer)
        raise _AnsweredError(_error_of(answer))

    def post(self, job: Job, answer: Callable[[Outcome], None]) -> None:
        """See `Database.post`: a batch of spends is one message; any other job a unit like those of `run`."""
        if isinstance(job, SpendBatch):
            self._spend(self._open_line(), job, answer)
            return
        task = self._task(self._drive(self._open_line(), job.unit()))
        task.add_done_callback(
            lambda task: answer(Outcome(error=task.exception()) if task.exception() else Outcome(task.result()))
        )

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _spend(
        self, line: _Line, batch: SpendBatch, answer: Callable[[Outcome], None], give_up: float | None = None
    ) -> None:
        """`give_up`: of a batch that is asked again, the loop's time from which on it is not asked once more."""

        def answered(result: Answer) -> None:
            if isinstance(result, Failed) and result.kind == "lost" and not self._is_closing:
                until = asyncio.get_running_loop().time() + BACK_SECONDS if give_up is None else give_up
                self._task(self._spend_again(batch, answer, until))
            else:
                answer(_outcome(result))

        is_again = give_up is not None
        sent = Spends(
            next(self._numbers), batch.spends, batch.now_ms, is_again, batch.ended, batch.known, batch.is_alone
        )
        line.ask(sent, answered)

    async def _spend_again(self, batch: SpendBatch, answer: Callable[[Outcome], None], give_up: float) -> None:
        """Asks the process that was started anew; an outcome that stays unknown is told as such."""
        try:
            async with asyncio.timeout_at(give_up):
                await asyncio.sleep(0)  # which sees that the time is over
                await self._is_back.wait()
            self._spend(self._open_line(), batch, answer, give_up)
        except (TimeoutError, StorageError):
            answer(Outcome(error=LostError(_LOST)))

    async def _answer(self, line: _Line, request: Request) -> Answer:
        return await self._ask(line, request)

    def _ask(self, line: _Line, request: Request) -> asyncio.Future[Answer]:
        """Send; the answer to come. Raises: as `_Line.ask`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        line.ask(request, answered)
        return future

    async def close(self) -> None:
        """See `Database.close`."""
        self._is_closing = True
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
            self._connecting = None
        if self._line is not None:
            self._line.close()


@dataclass(slots=True)
class _Driven:
    """A unit that this process drives."""

    line: _Line
    number: int
    has_begun: bool = False

    def request(self, asked: Statement | Part) -> Request:
        """What it yielded, as it is sent."""
        kind = Step if self.has_begun else Begin
        if isinstance(asked, Part):
            return kind(self.number, None, cast("SentPart", asked.job))
        return kind(self.number, Sql.of(asked))


def _same(line: _Line) -> _Line:
    return line


class _AnsweredError(Exception):
    """The ledger process ended a unit by itself."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _done(answer: Answer) -> None:
    """Raises: what the answer says, unless it is that all is done."""
    if not isinstance(answer, Done):
        raise _error_of(answer)


def _error_of(answer: Answer) -> Exception:
    return error_of(answer) if isinstance(answer, Failed) else StorageError("the ledger process answered out of turn")


def _outcome(answer: Answer) -> Outcome:
    if isinstance(answer, SpendsDone):
        return Outcome(spent_of(answer))
    return Outcome(error=_error_of(answer))
