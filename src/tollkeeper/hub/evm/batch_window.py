"""Window in which settlements gather: some go alone, others wait for a batch (contract 5.2).

While few settlements are under way nobody waits: each goes alone and at once. From a queue depth on, those that come
within a moment of each other go together, as many as a batch holds; the first of them waits at most that moment. The
caller decides how they are sent, and which must go alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")

# No payment waits longer for a batch. The timer is armed for less: what else the loop has to do comes on top.
WAIT_MAX_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 0.8 * WAIT_MAX_SECONDS


class BatchWindow(Generic[T, R]):
    """Batch window of one network. Not thread-safe: used from one event loop."""

    def __init__(
        self,
        queue_depth: int,
        items_max: int,
        under_way: Callable[[], int],
        go: Callable[[list[T]], Awaitable[Sequence[R | Exception]]],
        left: Callable[[R], None],
    ) -> None:
        """`under_way`: settlements that requests carry; one that goes alone is among them at once.

        `go` answers each member in its place, or tells what it is to raise; what it raises itself, all are told.
        `left` is given the part of one who did not wait for it.
        """
        self._queue_depth = queue_depth
        self._items_max = items_max
        self._under_way = under_way
        self._go = go
        self._left = left
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._leaving = 0  # set out together, and perhaps not yet under way
        self._timer: asyncio.TimerHandle | None = None
        self._going: set[asyncio.Task[None]] = set()

    async def join(self, member: T) -> R:
        """Goes, alone or with others, and returns this member's part. Raises: what `go` raises."""
        if self._under_way() + self._leaving + len(self._waiting) < self._queue_depth:
            (result,) = await self._go([member])
            if isinstance(result, Exception):
                raise result
            return result
        loop = asyncio.get_running_loop()
        place: asyncio.Future[R] = loop.create_future()
        self._waiting.append((member, place))
        if len(self._waiting) >= self._items_max:
            self._leave()
        elif self._timer is None:
            self._timer = loop.call_later(WAIT_SECONDS, self._leave)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._left(place.result())  # it came, and was not given to this member any more
            raise

    def _leave(self) -> None:
        """Send out all who wait, and have not gone away meanwhile."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        together = [(member, place) for member, place in self._waiting if not place.done()]
        self._waiting = []
        if together:
            self._leaving += len(together)
            task = asyncio.get_running_loop().create_task(self._travel(together))
            self._going.add(task)
            task.add_done_callback(self._going.discard)

    async def _travel(self, together: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._go([member for member, _ in together])
        except BaseException as error:
            for _, place in together:
                if not place.done():
                    place.set_exception(_for_all(error))
            if not isinstance(error, Exception):
                raise
            return
        finally:
            self._leaving -= len(together)
        for (_, place), result in zip(together, results, strict=True):
            if isinstance(result, Exception):
                if not place.done():
                    place.set_exception(result)
            elif place.done():
                self._left(result)
            else:
                place.set_result(result)


def _for_all(error: BaseException) -> Exception:
    """Return the error that each of the members is told."""
    return error if isinstance(error, Exception) else RuntimeError("settling was ended")
