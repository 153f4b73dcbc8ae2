"""The database fails: callers are told so at once, nothing is sent that is not committed, and all goes on by itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import PAYEE
from tests.engines import said_to
from tests.nodes.town import Node, Town, town

CREDITS = 100_000
DOWN_SECONDS = 30.0
TOLD_SECONDS = 5.0
BACK_SECONDS = 2.0
BUSY_SECONDS = 4.0  # more, of a machine that has other work
PATIENCE_SECONDS = 60.0
PRICE_MICRO = 10_000
SETTLED = "SELECT count(*) AS n FROM settlements WHERE state = 'CONFIRMED'"

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@dataclass
class Scene:
    """Two gateways and a hub, a call on held credits, and payments that have bought nothing yet."""

    place: Town
    gate: dict[str, Any]
    held: str
    unused: list[str]
    earned_before: int
    since_block: int
    told_seconds: float = 0.0
    served: int = 1  # of the purchase, by its first call

    async def ask(self, payment: str) -> set[int]:
        """What the gateways answer."""

        async def told(node: Node) -> int:
            answer = await self.place.told(node, self.gate, payment)
            self.served += answer.status == 200 and payment == self.held
            if answer.status == 503:
                assert answer.error_code in {"UNAVAILABLE", "SETTLEMENT_PENDING"}, answer.body
            return answer.status

        return set(await asyncio.gather(*map(told, self.place.gateways)))

    async def is_told(self) -> None:
        """Every gateway says at once that it cannot."""
        for payment in (self.held, self.unused[0]):
            began = time.monotonic()
            assert await self.ask(payment) == {503}
            self.told_seconds = max(self.told_seconds, time.monotonic() - began)
        assert self.told_seconds < TOLD_SECONDS + BUSY_SECONDS

    async def goes_on(self, at: float) -> None:
        """Every gateway serves by itself, soon after `at`; what was refused buys now, and no 503 was charged."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.ask(self.held) != {200}:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        back = time.monotonic() - at
        print(f"told after at most {self.told_seconds:.2f} s, back after {back:.2f} s")  # noqa: T201 - figures
        assert back < BACK_SECONDS + BUSY_SECONDS
        for payment in self.unused:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (status := await self.ask(payment)) == {503}:  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.1)
            assert 200 in status
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._taken() != self.served:  # noqa: ASYNC110 - of another program
                await asyncio.sleep(0.2)
        await self.is_even()

    def _taken(self) -> int:
        """How many credits of the purchase are gone."""
        (row,) = said_to(self.place.server.url, "SELECT remaining FROM credits ORDER BY number LIMIT 1")
        return CREDITS - int(row["remaining"])

    async def is_even(self) -> None:
        """Each settlement that the books have is on the chain, once, and no other one."""
        chain = self.place.chain
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (row,) = said_to(self.place.server.url, SETTLED)
                if row["n"] == 1 + len(self.unused):
                    break
                await asyncio.sleep(0.2)
        assert chain.balance(PAYEE) == self.earned_before + row["n"] * PRICE_MICRO
        await self.place.assert_books_agree(self.since_block)


@asynccontextmanager
async def scene(directory: Path, chain: ChainUnderTest) -> AsyncIterator[Scene]:
    before, block = chain.balance(PAYEE), int(chain.rpc.call("eth_blockNumber"), 16) + 1
    async with town(directory, chain, gateways=2, hubs=1) as place:
        gate = await place.gate(credits=CREDITS)
        held = await place.bought(gate)
        unused = [await place.payment(gate) for _ in range(3)]
        yield Scene(place, gate, held, unused, before, block)


async def test_a_database_that_is_stopped_for_a_while_is_told_and_missed_no_longer_than_that(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path, embedded_chain) as site:
        earned = embedded_chain.balance(PAYEE)
        site.place.server.stop()
        until = time.monotonic() + DOWN_SECONDS
        while time.monotonic() < until:
            await site.is_told()
            await asyncio.sleep(1)
        assert embedded_chain.balance(PAYEE) == earned
        site.place.server.start()
        await site.goes_on(time.monotonic())


async def test_a_database_that_hangs_for_a_while_is_told_and_missed_no_longer_than_that(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path, embedded_chain) as site:
        earned = embedded_chain.balance(PAYEE)
        site.place.server.send(signal.SIGSTOP)
        until = time.monotonic() + DOWN_SECONDS
        while time.monotonic() < until:
            await site.is_told()
        assert embedded_chain.balance(PAYEE) == earned
        site.place.server.send(signal.SIGCONT)
        await site.goes_on(time.monotonic())


async def test_a_database_that_is_killed_again_and_again_loses_no_purchase_and_doubles_none(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path, embedded_chain) as site:
        for _ in range(5):
            buying = asyncio.gather(*(site.ask(payment) for payment in site.unused))
            await asyncio.sleep(0.3)
            site.place.server.kill()
            await site.is_told()
            with suppress(Exception):
                await buying
            site.place.server.start()
        await site.goes_on(time.monotonic())


async def test_a_database_without_connections_to_spare_is_told_and_used_again_once_it_has_some(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path, embedded_chain) as site, AsyncExitStack() as taken:
        server = site.place.server
        others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tollkeeper'"

        async def take() -> bool:
            try:
                connection = await asyncpg.connect(server.url)
            except asyncpg.TooManyConnectionsError:
                return False
            taken.push_async_callback(connection.close)
            return True

        first = await asyncpg.connect(server.url)
        taken.push_async_callback(first.close)
        for _ in range(5):  # what programs get back meanwhile is taken, too
            await first.fetchval(others)
            while await take():
                pass
        await site.is_told()
        await taken.aclose()
        await site.goes_on(time.monotonic())
