"""A thread that works off, as one batch, whatever arrived while it was working (performance: group commit, no timer).

It knows no database: it is given jobs and a function that turns a list of jobs into as many outcomes. Each event loop
is woken once per batch, not once per job. It never dies of an exception: what the function raises is every job's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from tollkeeper.storage.database import StorageError
from tollkeeper.storage.lending import Lending

if TYPE_CHECKING:
    from collections.abc import Callable

J = TypeVar("J")

BATCH_MAX: Final = 1024
WAITING_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job: its result, or the exception to raise where it is awaited."""

    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[J]):
    job: J
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


_Answers: TypeAlias = list[tuple[asyncio.Future[Any], Outcome]]


class BatchThread(Generic[J]):
    """One thread, started at once, that calls `work` with batches and `finish` when it ends.

    A busy loop lends it the interpreter for `lent_seconds` at a time.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[J]], list[Outcome]],
        finish: Callable[[], None],
        *,
        lent_seconds: float,
    ) -> None:
        self.lending = Lending(lent_seconds)
        self._work = work
        self._finish = finish
        self._queue: SimpleQueue[_Waiting[J] | None] = SimpleQueue()
        self._gate = threading.Lock()  # nothing is queued behind the mark that ends the thread
        self._is_closing = False
        self._ended: Future[None] = Future()
        # A daemon: what was answered is durable, and a process that ends without closing must not hang.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def submit(self, job: J) -> Any:  # noqa: ANN401 - the caller knows what its job returns
        """Hand `job` over and wait for its outcome. Raises: StorageError; what the job's outcome holds."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, loop, loop.create_future())
        with self._gate:
            if self._is_closing:
                raise StorageError("the database is closed")
            if self._queue.qsize() >= WAITING_MAX:
                raise StorageError("too many requests are waiting for the database")
            self._queue.put(waiting)
        self.lending.expect(loop)
        return await waiting.future

    async def close(self) -> None:
        """Refuse new jobs, finish those accepted, end the thread."""
        with self._gate:
            if not self._is_closing:
                self._is_closing = True
                self._queue.put(None)
        await asyncio.shield(asyncio.wrap_future(self._ended))
        self._thread.join()

    def _run(self) -> None:
        open_for_jobs = True
        while open_for_jobs:
            batch, open_for_jobs = self._next_batch()
            if batch:
                self._answer(batch, self._outcomes(batch))
        try:
            self._finish()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever closes
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _next_batch(self) -> tuple[list[_Waiting[J]], bool]:
        """Whatever is waiting, at least one job; and whether more may come."""
        if self._queue.empty():
            self.lending.rest()
        first = self._queue.get()
        self.lending.work()
        batch: list[_Waiting[J]] = []
        while first is not None:
            batch.append(first)
            if len(batch) == BATCH_MAX:
                return batch, True
            try:
                first = self._queue.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _outcomes(self, batch: list[_Waiting[J]]) -> list[Outcome]:
        try:
            return self._work([waiting.job for waiting in batch])
        except BaseException as error:  # noqa: BLE001 - it belongs to those who wait
            return [Outcome(error=error) for _ in batch]

    def _answer(self, batch: list[_Waiting[J]], outcomes: list[Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, _Answers] = defaultdict(list)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            by_loop[waiting.loop].append((waiting.future, outcome))
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._resolve, loop, answers)
            except RuntimeError:  # the loop is closed: nobody is waiting there any more
                continue

    def _resolve(self, loop: asyncio.AbstractEventLoop, answers: _Answers) -> None:
        self.lending.answered(loop, len(answers))
        _set(answers)


def _set(answers: _Answers) -> None:
    for future, outcome in answers:
        if future.done():  # its caller was cancelled; the unit stands
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.result)
