"""A sale of many credits whose payment may go: what its programs are, and what is shown of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Protocol

from tests.gateway.composed import composed
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.settings.model import Role

CREDITS: Final = 50
DECIDED_SECONDS: Final = 90


class Facilitator(Enum):
    """Who settles."""

    OWN = auto()
    APART = auto()
    FOREIGN = auto()


class Sold(Protocol):
    """On either family."""

    async def call(self) -> Answer:
        """The payment, shown again."""

    async def read(self) -> dict[str, Any]:
        """Its gate, as its owner sees it."""


async def serve_with(
    stack: AsyncExitStack, facilitator: Facilitator, rpc_url: str, folder: Path, foreign_url: str, **changes: Any
) -> str:
    """The URL of a gateway until the stack is closed; its facilitator is at `foreign_url` where it is not ours."""
    if facilitator is Facilitator.OWN:
        return await stack.enter_async_context(composed(rpc_url, folder / "books.db", **changes))
    hub_url = foreign_url
    if facilitator is Facilitator.APART:
        hub_url = await stack.enter_async_context(composed(rpc_url, folder / "hub.db", role=Role.HUB, **changes))
    gateway = composed(rpc_url, folder / "gateway.db", role=Role.GATEWAY, hub_url=hub_url, **changes)
    return await stack.enter_async_context(gateway)


async def until_void(sale: Sold, meanwhile: Callable[[], object] = lambda: None) -> None:
    """What is left of its credits becomes worth nothing, and its owner is told that it was not paid."""
    async with asyncio.timeout(DECIDED_SECONDS):
        while (answer := await sale.call()).status != 402:
            assert answer.status in {200, 503}
            meanwhile()
            await asyncio.sleep(0.5)
    assert answer.json()["errorDetail"]["code"] == "CREDITS_EXHAUSTED"
    read = await sale.read()
    assert read["counters"]["revenue"] == "0"
    assert read["trusted"] == {"open": 0, "openAmount": "0", "failed": 1, "failedAmount": "0.01"}


async def assert_stays_good(sale: Sold, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Its credits are spent one after the other, while it is looked at again; one was spent before."""
    for calls in range(2, 12):
        meanwhile()
        answer = await sale.call()
        assert (answer.status, answer.headers["x-credits-remaining"]) == (200, str(CREDITS - calls))
        await asyncio.sleep(1.5)
    read = await sale.read()
    assert read["counters"]["revenue"] == "0.01"
    assert "trusted" not in read
