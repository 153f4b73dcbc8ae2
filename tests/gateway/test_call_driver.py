"""The driver of a call's coroutine: what is told goes on at once, a cut is told once, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tollkeeper.gateway.call.driver import CallDriver, Cut, CutShortError, KeptReply, Reply


class Walk:
    """A coroutine that waits for whatever it is given, one after the other, and notes what comes of each."""

    def __init__(self) -> None:
        self.under_way: dict[asyncio.Task[Any], CallDriver] = {}
        self.noted: list[object] = []
        self.driver = CallDriver(self.under_way, self.noted.append)

    def begin(self, *waits: Callable[[], Awaitable[Any]]) -> None:
        self.driver.begin(self._wait(waits))

    async def _wait(self, waits: tuple[Callable[[], Awaitable[Any]], ...]) -> None:
        for wait in waits:
            try:
                self.noted.append(await wait())
            except CutShortError as cut:
                self.noted.append(cut.cut)
        self.noted.append("end")


def test_a_call_goes_on_within_the_callback_that_tells_it_without_any_loop() -> None:
    walk, first, second = Walk(), Reply[str](), Reply[str]()
    walk.begin(lambda: first, lambda: second)
    first.tell("first")
    assert walk.noted == ["first"]
    second.tell("second")
    assert walk.noted == ["first", "second", "end"]


def test_what_is_told_before_the_call_waits_and_what_is_told_twice() -> None:
    walk, early, late = Walk(), Reply[str](), Reply[str]()
    early.tell("early")
    early.tell("never")
    walk.begin(lambda: early, lambda: late)
    late.tell("late")
    late.fail(ValueError("never"))
    assert walk.noted == ["early", "late", "end"]


def test_a_cut_is_told_once_and_a_reply_that_comes_behind_it_is_dropped() -> None:
    walk, first, second = Walk(), Reply[str](), Reply[str]()
    walk.begin(lambda: first, lambda: second)
    walk.driver.cut_short(Cut.LEFT)
    walk.driver.cut_short(Cut.STOPPED)
    first.tell("too late")
    assert walk.noted == [Cut.LEFT]
    second.tell("second")
    assert walk.noted == [Cut.LEFT, "second", "end"]


def test_a_reply_that_is_kept_is_waited_for_though_the_call_is_cut_and_the_next_wait_is_cut() -> None:
    walk, kept, other = Walk(), KeptReply[str](), Reply[str]()
    walk.begin(lambda: kept, lambda: other)
    walk.driver.cut_short(Cut.LEFT)
    assert walk.noted == []
    kept.tell("kept")
    assert walk.noted == ["kept", Cut.LEFT, "end"]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_work_that_is_kept_ends_and_other_work_is_cancelled(turns: int) -> None:
    for is_kept, noted in ((True, ["done", "end"]), (False, [Cut.STOPPED, "end"])):
        walk = Walk()
        begun = walk.driver.in_kept_task if is_kept else walk.driver.in_task
        walk.begin(partial(begun, asyncio.sleep(0.05, "done")))
        for _ in range(turns):
            await asyncio.sleep(0)
        walk.driver.cut_short(Cut.STOPPED)
        await asyncio.wait(list(walk.under_way))
        await asyncio.sleep(0)
        assert walk.noted == noted
        assert walk.under_way == {}


async def test_a_fault_of_the_work_is_raised_where_the_call_waits_and_one_of_the_call_is_told() -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    walk = Walk()
    walk.begin(lambda: walk.driver.in_task(breaks()))
    while walk.under_way:  # noqa: ASYNC110 - its every turn counts
        await asyncio.sleep(0)
    assert [type(one) for one in walk.noted] == [ZeroDivisionError]


async def test_a_call_that_waits_by_asyncio_outside_of_a_task_is_refused_and_waits_for_nothing() -> None:
    walk = Walk()
    walk.begin(lambda: asyncio.sleep(60))
    assert [type(one) for one in walk.noted] == [RuntimeError]


async def test_work_that_is_cut_before_it_began_leaves_nothing() -> None:
    async def work() -> None:
        raise AssertionError

    walk = Walk()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        walk.begin(lambda: walk.driver.in_task(work()))
        walk.driver.cut_short(Cut.STOPPED)
        while walk.under_way:  # noqa: ASYNC110 - its every turn counts
            await asyncio.sleep(0)
        gc.collect()
    assert walk.noted == [Cut.STOPPED, "end"]
    assert [str(one.message) for one in said] == []


def test_a_call_that_has_ended_lies_in_no_circle() -> None:
    def call() -> None:
        walk, reply = Walk(), Reply[str]()
        walk.begin(lambda: reply)
        reply.tell("value")

    gc.collect()
    gc.disable()
    try:
        call()
        assert [one for one in gc.get_objects() if isinstance(one, CallDriver | Reply)] == []
    finally:
        gc.enable()
