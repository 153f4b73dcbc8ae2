"""A failover to a standby that received nothing for a while keeps what was acknowledged, if commits waited for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import PAYEE
from tests.engines import said_to
from tests.faults.aftermath import authorization_in
from tests.nodes.postgresql import Server
from tests.nodes.town import Town, town
from tollkeeper.sandbox.buyer import Answer

ROUNDS = 10
CALLERS = 8
STANDBY_PORT = 5433
PATIENCE_SECONDS = 90.0
PRICE_MICRO = 10_000
FOLLOWS = "SELECT count(*) AS n FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ({})"
SETTLED = "SELECT count(*) AS n FROM settlements WHERE state = 'CONFIRMED'"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@dataclass
class Pair:
    """Two servers, one of which follows the other; what callers were told while that changes."""

    place: Town
    primary: Server
    standby: Server
    is_synchronous: bool
    gate: dict[str, Any]
    sold: dict[str, Any]
    held: list[str]
    earned_before: int
    left: dict[str, int] = field(default_factory=dict)
    bought: list[str] = field(default_factory=list)
    is_over: bool = False

    async def follow(self) -> None:
        """The standby follows, and is waited for where that is wanted."""
        await asyncio.to_thread(self.standby.stand_by, self.primary)
        self.primary.set("synchronous_standby_names", "*" if self.is_synchronous else "")
        kinds = "'sync', 'quorum'" if self.is_synchronous else "'async'"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not said_to(self.primary.url, FOLLOWS.format(kinds))[0]["n"]:  # noqa: ASYNC110 - of another program
                await asyncio.sleep(0.1)

    async def fail_over(self) -> None:
        """The standby receives nothing for half a second, then the primary dies, and the standby takes its place."""
        self.standby.set("primary_conninfo", "")
        await asyncio.sleep(0.5)
        self.primary.kill()
        self.standby.set("synchronous_standby_names", "")
        self.standby.say("SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary

    async def call_on(self, http: aiohttp.ClientSession, payment: str) -> None:
        """Call on held credits; what is left by the last answer is kept."""
        url = f"{self.place.gateways[0].url}/{self.gate['slug']}"
        while not self.is_over:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(url, headers={"X-Payment": payment}) as answer:
                    await answer.read()
                    if answer.status == 200:
                        told = int(answer.headers["X-Credits-Remaining"])
                        self.left[payment] = min(told, self.left.get(payment, told))
            await asyncio.sleep(0.005)

    async def buy_on(self) -> None:
        """Buy; purchases that were acknowledged are kept."""
        url = f"{self.place.gateways[0].url}/{self.sold['slug']}"
        while not self.is_over:
            with suppress(aiohttp.ClientError, TimeoutError, KeyError, ValueError, AssertionError):
                payment = await self.place.payment(self.sold)
                answer = await self.place.buyer.call(url, payment)
                if answer.status == 200:
                    self.bought.append(answer.headers["x-purchase-id"])
            await asyncio.sleep(0.1)

    async def answered(self, payment: str) -> Answer:
        """What a call with this payment is told once the gateway can tell."""
        url = f"{self.place.gateways[0].url}/{self.sold['slug']}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(aiohttp.ClientError, TimeoutError):
                    if (answer := await self.place.buyer.call(url, payment)).status != 503:
                        return answer
                await asyncio.sleep(0.2)

    def known(self, payments: list[str]) -> int:
        """How many of these payments the books have a purchase of."""
        nonces = {row["nonce"] for row in said_to(self.primary.url, "SELECT nonce FROM purchases")}
        return sum(authorization_in(payment).nonce in nonces for payment in payments)

    def lost(self) -> list[str]:
        """Return what was acknowledged and is not there."""
        url = self.primary.url
        sales = {row["id"]: int(row["remaining"]) for row in said_to(url, "SELECT id, remaining FROM holdings")}
        missing = [sale for sale in self.bought if sale not in sales]
        held = [
            int(row["remaining"])
            for row in said_to(url, f"SELECT remaining FROM holdings WHERE gate_id = {self.gate['id']} ORDER BY number")  # noqa: S608
        ]
        late = [
            f"{left} left, and {self.left[payment]} were told"
            for payment, left in zip(self.held, held, strict=True)
            if payment in self.left and left > self.left[payment]
        ]
        return missing + late

    async def is_even(self) -> None:
        """Each settlement of the books is on the chain, once, and no other one."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (row,) = said_to(self.primary.url, SETTLED)
                if self.place.chain.balance(PAYEE) == self.earned_before + row["n"] * PRICE_MICRO:
                    return
                await asyncio.sleep(0.2)


@asynccontextmanager
async def pair(directory: Path, chain: ChainUnderTest, *, is_synchronous: bool) -> AsyncIterator[Pair]:
    before = chain.balance(PAYEE)
    async with town(directory, chain, gateways=1, hubs=1, standby=STANDBY_PORT) as place:
        standby = Server(place.server.address, STANDBY_PORT)
        try:
            gate, sold = await place.gate(credits=1_000_000), await place.gate(credits=1)
            held = [await place.bought(gate) for _ in range(CALLERS)]
            yield Pair(place, place.server, standby, is_synchronous, gate, sold, held, before)
        finally:
            standby.remove()


async def test_a_failover_to_a_synchronous_standby_loses_nothing_that_was_acknowledged(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with pair(tmp_path, embedded_chain, is_synchronous=True) as two, aiohttp.ClientSession() as http:
        async with asyncio.TaskGroup() as group:
            for payment in two.held:
                group.create_task(two.call_on(http, payment))
            group.create_task(two.buy_on())
            for _ in range(ROUNDS):
                await two.follow()
                told, bought = sum(two.left.values()), len(two.bought)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not (sum(two.left.values()) < told and len(two.bought) > bought):  # noqa: ASYNC110 - over HTTP
                        await asyncio.sleep(0.05)
                await two.fail_over()
                assert two.lost() == []
            two.is_over = True
        await two.is_even()
        assert two.lost() == []


async def test_a_failover_to_an_asynchronous_standby_loses_what_was_acknowledged(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with pair(tmp_path, embedded_chain, is_synchronous=False) as two, aiohttp.ClientSession() as http:
        await two.follow()
        async with asyncio.TaskGroup() as group:
            for payment in two.held:
                group.create_task(two.call_on(http, payment))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(two.left) < CALLERS:  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.05)
            await two.fail_over()
            lost = two.lost()
            two.is_over = True
        assert lost


async def test_commits_that_only_a_restarted_primary_showed_settle_nothing_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with pair(tmp_path, embedded_chain, is_synchronous=True) as two:
        await two.follow()
        payments = [await two.place.payment(two.sold) for _ in range(4)]
        two.standby.set("primary_conninfo", "")
        url = f"{two.place.gateways[0].url}/{two.sold['slug']}"
        asked = [asyncio.create_task(two.place.buyer.call(url, payment)) for payment in payments]
        await asyncio.sleep(2)  # they are committed here, and the standby is waited for
        two.primary.kill()
        two.primary.start()
        two.primary.set("synchronous_standby_names", "")  # what only it has is carried out
        await asyncio.gather(*asked, return_exceptions=True)
        carried_out = two.earned_before + (CALLERS + len(payments)) * PRICE_MICRO
        for payment in payments:
            assert (await two.answered(payment)).status == 200
        assert two.place.chain.balance(PAYEE) == carried_out
        await two.fail_over()
        assert two.known(payments) == 0
        for payment in payments:
            answer = await two.answered(payment)  # of a payment of ours that the books know no more
            assert answer.status == 200, answer.body
        assert two.place.chain.balance(PAYEE) == carried_out
        await two.is_even()
