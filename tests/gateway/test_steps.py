"""What waits for a request runs in its task, and leaves nothing where that is given up (contract 4.2)."""

from __future__ import annotations

import asyncio
import gc
import warnings
from types import SimpleNamespace
from typing import cast

from tollkeeper.core.api.errors import ApiError
from tollkeeper.gateway.call.context import Shared
from tollkeeper.gateway.call.credit_refusals import ExhaustedError
from tollkeeper.gateway.call.state import Steps


class Request(Steps):
    """A request of which only its task matters."""

    def __init__(self) -> None:
        self.mine: set[asyncio.Task[None]] = set()
        self.shared = cast("Shared", SimpleNamespace(tasks=self.mine))

    def exhausted(self, spent: ExhaustedError) -> None:
        raise AssertionError(spent)

    def refuse(self, error: ApiError) -> None:
        raise AssertionError(error)

    def cut_short(self) -> None:
        raise AssertionError

    def give_up(self, status: int) -> None:
        raise AssertionError(status)


async def test_steps_that_are_given_up_before_they_began_leave_nothing() -> None:
    async def steps() -> None:
        raise AssertionError

    request = Request()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        request.in_task(steps())
        task = request.task
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        request.task = task = None
        gc.collect()
    assert request.mine == set()
    assert [str(one.message) for one in said] == []
