"""The driver of a call's coroutine (`flow.serve`): by hand, and by a task only where asyncio itself has to wait.

    await reply                        a callback tells it: the ledger's, the target's
    await driver.in_task(work)         a task does the work: a login, a purchase, an answer that its caller takes slowly
    await driver.in_kept_task(work)    the same, and no cut cancels it: it takes a credit, or gives one back

A call is cut where its client left, or where the process stops. The coroutine is told so once, by `CutShortError`: at
once where it waits for a reply, as soon as its task has ended where it waits for that. A reply or a task that is kept
is waited for all the same, so that nobody loses count of a credit; then `check` tells. Why by hand: a task and two
futures cost a paid call 40 % more of the processor, this costs it 4 to 5 %.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


class Cut(Enum):
    """Reasons why a call is cut before it was answered."""

    LEFT = "its client left"
    STOPPED = "the process stops"


class CutShortError(BaseException):
    """The call is cut. No `Exception`: nothing on the way answers it as a fault."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut.value)
        self.cut = cut


class Reply(Generic[T]):
    """One thing that a call waits for, told once: what comes later is dropped."""

    # Defaults stand here, and below, because most of them are never changed: to set them for each call costs more.
    driver: CallDriver | None = None  # once a call waits for it
    is_kept = False  # no cut ends the waiting
    task: asyncio.Task[T] | None = None  # the one that tells it, where there is one
    is_told = False
    _value: T | None = None
    _fault: BaseException | None = None

    def tell(self, value: T) -> None:
        """Give the value. The call goes on at once, if it waits already."""
        if not self.is_told:
            self.is_told, self._value = True, value
            if (driver := self.driver) is not None and driver.waits_for is self:
                driver.step(None)

    def fail(self, fault: BaseException) -> None:
        """Raise `fault` where the call waits."""
        if not self.is_told:
            self.is_told, self._fault = True, fault
            if (driver := self.driver) is not None and driver.waits_for is self:
                driver.step(None)

    def __await__(self) -> Generator[Reply[T], None, T]:
        if not self.is_told:
            yield self
        if self._fault is not None:
            try:
                raise self._fault
            finally:  # it names this frame from now on, in a circle
                self._fault = None
        value, self._value = self._value, None
        return value  # type: ignore[return-value]  # it was told


class KeptReply(Reply[T]):
    """A reply that is waited for though the call is cut."""

    is_kept = True


class CallDriver:
    """The driver of one call. `broken` is told what its coroutine did not answer itself."""

    waits_for: Reply[Any] | None = None
    cut: Cut | None = None
    _coroutine: Coroutine[Any, Any, None] | None = None
    _is_told = False  # the coroutine knows that it is cut

    def __init__(self, under_way: dict[asyncio.Task[Any], CallDriver], broken: Callable[[BaseException], None]) -> None:
        """`under_way`: the tasks of all calls, which a stop cuts and waits for."""
        self._under_way = under_way
        self._broken = broken

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin the call."""
        self._coroutine = coroutine
        self.step(None)

    def client_left(self) -> None:
        """Cut the call: nobody waits for its answer any more."""
        self.cut_short(Cut.LEFT)

    def cut_short(self, cut: Cut) -> None:
        """Cut the call: where it waits, or where it waits next."""
        if self.cut is None:
            self.cut = cut
            waits_for = self.waits_for
            if waits_for is None or waits_for.is_kept:
                return
            if waits_for.task is not None:
                waits_for.task.cancel()
            else:
                self.step(self._telling())

    def check(self) -> None:
        """Raise CutShortError if the call was cut, and was not told so yet."""
        if self.cut is not None and not self._is_told:
            raise self._telling()

    def in_task(self, work: Coroutine[Any, Any, T]) -> Reply[T]:
        """Begin work that waits by asyncio's own means, in a task that a cut cancels. Await the reply at once."""
        return self._begun(work, Reply())

    def in_kept_task(self, work: Coroutine[Any, Any, T]) -> Reply[T]:
        """Begin work that goes on though the call is cut. Await the reply at once."""
        return self._begun(work, KeptReply())

    def _begun(self, work: Coroutine[Any, Any, T], reply: Reply[T]) -> Reply[T]:
        reply.task = task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = self
        task.add_done_callback(lambda done: self._done(done, reply))
        return reply

    def _done(self, task: asyncio.Task[T], reply: Reply[T]) -> None:
        del self._under_way[task]
        reply.task = None
        if task.cancelled():
            self.cut = self.cut or Cut.STOPPED  # by who ends the loop
            reply.fail(self._telling())
        elif (fault := task.exception()) is not None:
            reply.fail(fault)
        else:
            reply.tell(task.result())

    def _telling(self) -> CutShortError:
        assert self.cut is not None  # noqa: S101 - who asks knows
        self._is_told = True
        return CutShortError(self.cut)

    def step(self, fault: BaseException | None) -> None:
        """Take the coroutine to the next reply that it has to wait for, or to its end."""
        coroutine, self.waits_for = self._coroutine, None
        assert coroutine is not None  # noqa: S101 - nothing tells a call that has ended
        try:
            waits_for: Reply[Any] = coroutine.send(None) if fault is None else coroutine.throw(fault)
        except StopIteration:
            self._coroutine = None
        except BaseException as unanswered:  # noqa: BLE001 - its caller, a parser or a ledger, is not to learn of it
            self._coroutine = None
            self._broken(unanswered)
        else:
            if self.cut is None and isinstance(waits_for, Reply):
                self.waits_for, waits_for.driver = waits_for, self
            else:
                self._wait(waits_for)

    def _wait(self, reply: object) -> None:
        if not isinstance(reply, Reply):
            self.step(RuntimeError("a call waits for replies only: what asyncio is to wait for is done `in_task`"))
            return
        self.waits_for = reply
        reply.driver = self
        if self.cut is not None and not (self._is_told or reply.is_kept):  # cut while it ran
            if reply.task is not None:
                reply.task.cancel()
            else:
                self.step(self._telling())
