"""Company: nobody waits while there is little to do, nobody waits long, and who leaves holds up nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tollkeeper.hub.evm.batch import WAIT_MAX_SECONDS, WAIT_SECONDS, BatchWindow


class Journeys:
    """Records who went with whom; each goes for as long as the test holds the gate shut."""

    def __init__(self, queue_depth: int, items_max: int) -> None:
        self.gone: list[list[int]] = []
        self.under_way = 0
        self.gate = asyncio.Event()
        self.left: list[int] = []
        self.gathering: BatchWindow[int, int] = BatchWindow(
            queue_depth, items_max, lambda: self.under_way, self.go, self.left.append
        )

    async def go(self, members: list[int]) -> list[int | Exception]:
        self.gone.append(members)
        self.under_way += len(members)
        await self.gate.wait()
        self.under_way -= len(members)
        if -1 in members:
            message = "nobody arrives"
            raise ValueError(message)
        return [10 * member if member < 100 else KeyError(member) for member in members]

    def join(self, *members: int) -> list[asyncio.Task[int]]:
        return [asyncio.ensure_future(self.gathering.join(member)) for member in members]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_below_the_depth_each_goes_alone_and_at_once() -> None:
    journeys = Journeys(queue_depth=3, items_max=10)
    joined = journeys.join(1, 2, 3)
    await turns()
    assert journeys.gone == [[1], [2], [3]]
    journeys.gate.set()
    assert await asyncio.gather(*joined) == [10, 20, 30]


async def test_from_the_depth_on_they_go_together_after_a_moment() -> None:
    journeys = Journeys(queue_depth=2, items_max=10)
    joined = journeys.join(1, 2, 3, 4, 5)
    await turns()
    assert journeys.gone == [[1], [2]]
    await asyncio.sleep(10 * WAIT_SECONDS)
    assert journeys.gone == [[1], [2], [3, 4, 5]]
    journeys.gate.set()
    assert await asyncio.gather(*joined) == [10, 20, 30, 40, 50]


async def test_who_waits_sets_out_within_50_ms_whoever_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the loop is asked for: when the first who waits is called for, and that nobody later puts that off."""
    assert WAIT_MAX_SECONDS == 0.05
    loop, armed = asyncio.get_running_loop(), list[tuple[float, object]]()
    call_later = loop.call_later

    def recorded(delay: float, callback: Any, *arguments: Any) -> asyncio.TimerHandle:
        armed.append((delay, callback))
        return call_later(delay, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", recorded)
    journeys = Journeys(queue_depth=1, items_max=10)
    joined = journeys.join(0)
    await turns()
    assert (journeys.gone, armed) == ([[0]], [])  # below the depth nothing is armed at all
    for member in range(1, 5):
        joined += journeys.join(member)
        await turns()
    ((delay, set_out),) = armed
    assert 0 < delay < WAIT_MAX_SECONDS
    assert journeys.gone == [[0]]
    set_out()  # type: ignore[operator]  # as the loop does
    await turns()
    assert journeys.gone == [[0], [1, 2, 3, 4]]
    journeys.gate.set()
    assert await asyncio.gather(*joined) == [0, 10, 20, 30, 40]


async def test_a_full_batch_does_not_wait() -> None:
    journeys = Journeys(queue_depth=1, items_max=3)
    joined = journeys.join(*range(8))
    await turns()
    assert journeys.gone == [[0], [1, 2, 3], [4, 5, 6]]
    await asyncio.sleep(10 * WAIT_SECONDS)
    assert journeys.gone[3:] == [[7]]
    journeys.gate.set()
    assert await asyncio.gather(*joined) == [10 * number for number in range(8)]


async def test_once_there_is_little_to_do_nobody_waits_any_more() -> None:
    journeys = Journeys(queue_depth=1, items_max=3)
    journeys.gate.set()
    for number in range(3):
        assert await asyncio.wait_for(journeys.gathering.join(number), 5) == 10 * number
    assert journeys.gone == [[0], [1], [2]]


async def test_a_fault_of_a_batch_is_told_to_each_of_it_and_to_nobody_else() -> None:
    journeys = Journeys(queue_depth=1, items_max=2)
    joined = journeys.join(0, -1, 1, 2, 3)
    await turns()
    journeys.gate.set()
    told = await asyncio.gather(*joined, return_exceptions=True)
    assert [type(one) for one in told] == [int, ValueError, ValueError, int, int]


async def test_one_who_does_not_arrive_keeps_nobody_from_arriving() -> None:
    journeys = Journeys(queue_depth=1, items_max=2)
    journeys.gate.set()
    with pytest.raises(KeyError):
        await journeys.gathering.join(100)
    journeys.under_way = 1
    told = await asyncio.gather(*journeys.join(100, 2), return_exceptions=True)
    assert [type(one) for one in told] == [KeyError, int]


async def test_who_leaves_while_waiting_is_left_behind() -> None:
    journeys = Journeys(queue_depth=1, items_max=10)
    joined = journeys.join(0, 1, 2)
    await turns()
    joined[1].cancel()
    await asyncio.sleep(10 * WAIT_SECONDS)
    assert journeys.gone == [[0], [2]]
    journeys.gate.set()
    assert (await joined[0], await joined[2]) == (0, 20)


async def test_who_leaves_on_the_way_takes_nobody_along() -> None:
    journeys = Journeys(queue_depth=1, items_max=2)
    joined = journeys.join(0, 1, 2)
    await turns()
    joined[1].cancel()
    await turns()
    journeys.gate.set()
    assert await joined[2] == 20
    with pytest.raises(asyncio.CancelledError):
        await joined[1]
    assert journeys.left == [10]


async def test_who_leaves_in_the_very_moment_that_its_part_comes_has_it_let_go() -> None:
    journeys = Journeys(queue_depth=0, items_max=2)
    journeys.gate.set()
    staying, leaving = journeys.join(1, 2)
    waiting = journeys.gathering._waiting  # noqa: SLF001 - when a member's part has come nothing tells from outside
    await asyncio.sleep(0)
    _, place = waiting[0]
    place.add_done_callback(lambda _: leaving.cancel())  # behind its own part's coming, and before it goes on
    assert await staying == 10
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert journeys.left == [20]
