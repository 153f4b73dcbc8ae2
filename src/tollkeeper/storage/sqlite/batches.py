"""A thread that works off, as one batch, whatever arrived while it was working (performance: group commit, no timer).

It knows no database: it is given jobs and a function that turns a list of jobs into as many outcomes. Each event loop
is woken once per batch, not once per job. It never dies of an exception: what the function raises is every job's. While
it has nothing to do, a loop may take its turn and do a job itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from tollkeeper.storage.engine.database import JobOutcome, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

J = TypeVar("J")

BATCH_MAX: Final = 1024
WAITING_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[J]):
    job: J
    loop: asyncio.AbstractEventLoop
    answer: Callable[[JobOutcome], None]


_Answers: TypeAlias = list[tuple["Callable[[JobOutcome], None]", JobOutcome]]


class BatchThread(Generic[J]):
    """One thread, started at once, that calls `work` with batches, `tidy` after their answers, `finish` when it ends.

    `work` and `finish` are called with the turn (`turn`), `tidy` without it.
    A busy loop lends it the interpreter for `lent_seconds` at a time.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[J]], list[JobOutcome]],
        finish: Callable[[], None],
        *,
        lent_seconds: float,
        tidy: Callable[[], None] = lambda: None,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self.gil_yield = GilYield(lent_seconds)
        self._work = work
        self._finish = finish
        self._tidy = tidy
        self._batch_max = batch_max
        self._queue: SimpleQueue[_Waiting[J] | None] = SimpleQueue()
        self._gate = threading.Lock()  # nothing is queued behind the mark that ends the thread
        self._unfinished = 0  # jobs that were handed over and are not done
        self.turn = threading.Lock()  # who holds it does work
        self._is_closing = False
        self._ended: Future[None] = Future()
        # A daemon: what was answered is durable, and a process that ends without closing must not hang.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def submit(self, job: J) -> Any:  # noqa: ANN401 - the caller knows what its job returns
        """Hand `job` over and wait for its outcome. Raises: StorageError; what the job's outcome holds."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.post(job, answer_to(future))
        return await future

    def post(self, job: J, answer: Callable[[JobOutcome], None]) -> None:
        """Hand `job` over; its outcome is told in this event loop, and never before this returns.

        Until then the loop lends the thread the interpreter, some milliseconds at a time (`GilYield`).

        Raises: StorageError where it is not taken.
        """
        loop = asyncio.get_running_loop()
        with self._gate:
            if self._is_closing:
                raise StorageError("the database is closed")
            if self._queue.qsize() >= WAITING_MAX:
                raise StorageError("too many requests are waiting for the database")
            self._queue.put(_Waiting(job, loop, answer))
            self._unfinished += 1
        self.gil_yield.expect(loop)

    def take_turn(self) -> bool:
        """Return True if the thread has nothing to do and will do nothing until `end_turn`."""
        with self._gate:
            return not self._unfinished and not self._is_closing and self.turn.acquire(blocking=False)

    def end_turn(self) -> None:
        """Let the thread go on."""
        self.turn.release()

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
                with self.turn:
                    outcomes = self._outcomes(batch)
                with self._gate:
                    self._unfinished -= len(batch)
                self._answer(batch, outcomes)
                self._tidy()
        try:
            with self.turn:
                self._finish()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever closes
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _next_batch(self) -> tuple[list[_Waiting[J]], bool]:
        """Whatever is waiting, at least one job; and whether more may come."""
        if self._queue.empty():
            self.gil_yield.rest()
        first = self._queue.get()
        self.gil_yield.work()
        batch: list[_Waiting[J]] = []
        while first is not None:
            batch.append(first)
            if len(batch) == self._batch_max:
                return batch, True
            try:
                first = self._queue.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _outcomes(self, batch: list[_Waiting[J]]) -> list[JobOutcome]:
        try:
            return self._work([waiting.job for waiting in batch])
        except BaseException as error:  # noqa: BLE001 - it belongs to those who wait
            return [JobOutcome(error=error) for _ in batch]

    def _answer(self, batch: list[_Waiting[J]], outcomes: list[JobOutcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, _Answers] = defaultdict(list)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            by_loop[waiting.loop].append((waiting.answer, outcome))
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._resolve, loop, answers)
            except RuntimeError:  # the loop is closed: nobody is waiting there any more
                continue

    def _resolve(self, loop: asyncio.AbstractEventLoop, answers: _Answers) -> None:
        self.gil_yield.answered(loop, len(answers))
        for answer, outcome in answers:
            answer(outcome)


def answer_to(future: asyncio.Future[Any]) -> Callable[[JobOutcome], None]:
    """Return a function that tells a future its outcome."""

    def answer(outcome: JobOutcome) -> None:
        if future.done():  # its caller was cancelled; the unit stands
            return
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.result)

    return answer


# Lends Python's interpreter to a thread that a busy event loop would starve (performance 2). A thread that waits for
# the interpreter gets it when the holder has kept it for a whole switch interval. A loop that is busy with short
# callbacks lets go of it many times in each interval, each time for less than a thread needs to wake, and so may keep a
# thread waiting for a second (measured: four connections that only fetched challenges held up every commit for 0.6 s).
# So while a loop waits for the thread it blocks for a moment every millisecond: until the thread has done its steps, or
# for as long as `longest_seconds`. An idle loop would have slept anyway.

_EVERY_SECONDS: Final = 0.001
_OPENING_SECONDS: Final = 0.00005  # what a sleeping thread needs to wake and take the interpreter


class GilYield:
    """State shared by one thread and the loops that wait for it."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._at_rest = threading.Event()
        self._at_rest.set()
        self._waiting: dict[asyncio.AbstractEventLoop, int] = {}

    def work(self) -> None:
        """Said by the thread: from here on it needs the interpreter."""
        self._at_rest.clear()

    def rest(self) -> None:
        """Said by the thread: it waits for the disk or for jobs."""
        self._at_rest.set()

    def expect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Said in `loop`: one more of its jobs is with the thread."""
        if loop in self._waiting:
            self._waiting[loop] += 1
        else:
            self._waiting[loop] = 1
            loop.call_later(_EVERY_SECONDS, self._lend, loop)

    def answered(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Said in `loop`: `count` of its jobs have been answered."""
        self._waiting[loop] -= count

    def _lend(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting[loop]:
            del self._waiting[loop]
            return
        if self._at_rest.is_set():
            time.sleep(_OPENING_SECONDS)
        self._at_rest.wait(self._longest_seconds)
        loop.call_later(_EVERY_SECONDS, self._lend, loop)
