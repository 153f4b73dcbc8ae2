"""Callers and buyers under whom nodes restart: each answer that is not what it should be is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tests.nodes.town import Town

CALLERS: Final = 24
PURCHASES: Final = 12
CREDITS: Final = 100_000
_BUYS_EVERY_SECONDS: Final = 1.0


@dataclass
class Load:
    """`failed` has what was answered in place of 200, or what broke."""

    served: int = 0
    bought: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def call_on(self, http: aiohttp.ClientSession, url: str, payment: str) -> None:
        """Call until it is stopped."""
        while not self.stopped.is_set():
            try:
                async with http.get(url, headers={"X-Payment": payment}) as answer:
                    body = await answer.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.failed[repr(error)] += 1
                continue
            if answer.status == 200:
                self.served += 1
            else:
                self.failed[f"{answer.status} {body[:200]!r}"] += 1

    async def buy_on(self, place: Town, gate: dict[str, Any]) -> None:
        """Buy again and again, each time by a first call."""
        while not self.stopped.is_set():
            payment = await place.payment(gate)
            answer = await place.buyer.call(f"{place.url}/{gate['slug']}", payment)
            if answer.status == 200:
                self.bought += 1
            else:
                self.failed[f"bought {answer.status} {answer.body[:200]!r}"] += 1
            await asyncio.sleep(_BUYS_EVERY_SECONDS)


@asynccontextmanager
async def load(place: Town) -> AsyncIterator[Load]:
    """Callers with held credits, and a buyer, through nginx, until the block ends."""
    held, sold = await place.gate(credits=CREDITS), await place.gate(credits=1)
    payments = [await place.bought(held) for _ in range(PURCHASES)]
    load_ = Load()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CALLERS)) as http:
        http._retry_connection = False  # noqa: SLF001 - else it sends a call again, unseen
        url = f"{place.url}/{held['slug']}"
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(load_.call_on(http, url, payments[number % PURCHASES]))
            group.create_task(load_.buy_on(place, sold))
            try:
                yield load_
            finally:
                load_.stopped.set()
