"""A fee payer that was advertised pays for its 402s, whoever else is advertised meanwhile (contract 5.1, 5.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from tests.chains.solana_node import WALLETS, paid_for_by, paying
from tests.hub.solana_hub import SolanaHub, body_of, hub_of
from tollkeeper.chains.solana.config import RENT_EXEMPT_LAMPORTS
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS
from tollkeeper.hub.signer_pool import LOW_SETTLEMENTS
from tollkeeper.hub.solana.signer import ADVERTISED_SECONDS
from tollkeeper.sandbox.solana.chain import RECENT_SLOTS
from tollkeeper.sandbox.solana.node import SolanaNode

KEYS = {one.address: Keypair.from_seed(one.seed) for one in WALLETS.fee_payers}
HOUR_MS = 1000 * ADVERTISED_SECONDS
START_MS = 1_800_000_000_000 // HOUR_MS * HOUR_MS


class Clock:
    """The hub's, in Unix milliseconds."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def fee_payers_named(world: SolanaHub) -> set[str]:
    """In the kinds of both versions."""
    return {kind["extra"]["feePayer"] for kind in (await world.hub.get("/supported")).body["kinds"]}


async def advertised(world: SolanaHub) -> str:
    """Whom the hub names, once it has seen what its fee payers have."""
    world.recovery.check_interval_seconds = 0
    await world.complete()
    return (await fee_payers_named(world)).pop()


def outstanding(node: SolanaNode, fee_payer: str) -> dict[str, Any]:
    """A payment as a buyer makes it from a 402 that names this fee payer."""
    return body_of(paid_for_by(paying(node, 1_000), KEYS[fee_payer]).payload(), 1_000, extra={"feePayer": fee_payer})


async def settles(world: SolanaHub, body: dict[str, Any]) -> bool:
    assert (await world.verify(body)).body["isValid"]
    return bool((await world.settle(body)).body["success"])


async def test_the_fee_payer_of_an_hour_ago_still_pays(tmp_path: Path, clock: Clock) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, hub_of(tmp_path, node, now_ms=clock) as world:
        first = await advertised(world)
        clock.now_ms += HOUR_MS - 1
        assert await advertised(world) == first
        body = outstanding(node, first)
        clock.now_ms += 1
        assert await advertised(world) != first
        assert await settles(world, body)
        asked_anew = {**body, "paymentRequirements": outstanding(node, await advertised(world))["paymentRequirements"]}
        asked_anew["paymentPayload"] = outstanding(node, first)["paymentPayload"]
        assert await settles(world, asked_anew)  # by a server that copied the newer one


async def test_one_that_runs_low_is_advertised_no_more_and_pays_for_what_names_it(tmp_path: Path, clock: Clock) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, hub_of(tmp_path, node, now_ms=clock) as world:
        first = await advertised(world)
        body = outstanding(node, first)
        config = world.account.chain.config
        enough = RENT_EXEMPT_LAMPORTS + LOW_SETTLEMENTS * config.fee_max_lamports
        node.chain.drain(first)
        node.chain.airdrop(first, enough)
        assert await advertised(world) == first
        node.chain.drain(first)
        node.chain.airdrop(first, enough - 1)
        other = await advertised(world)
        assert other != first
        assert await settles(world, body)
        node.chain.drain(other)
        node.chain.airdrop(other, enough - 1)
        assert await advertised(world) == first  # none is better off


async def test_no_more_is_signed_than_the_fee_payer_can_pay_for(tmp_path: Path, clock: Clock) -> None:
    """While nothing is executed its balance covers each alone: all would be called successes, and some not be made."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, hub_of(tmp_path, node, now_ms=clock) as world:
        first = await advertised(world)
        node.chain.drain(first)
        node.chain.airdrop(first, RENT_EXEMPT_LAMPORTS + world.account.chain.config.fee_max_lamports)
        node.chain.holds = True
        asked = [world.settle(outstanding(node, first), confirm=False, Prefer="wait=0") for _ in range(4)]
        answers = await asyncio.gather(*asked)
        answers += [await world.settle(outstanding(node, first), confirm=False, Prefer="wait=0") for _ in range(6)]
        told = Counter(answer.code if answer.status == 503 else answer.body["success"] for answer in answers)
        fee_lamports = 10_001  # of a usual transaction, of which there are less than five in what one costs at most
        assert told[True] in range(1, 5)
        assert told == {True: told[True], "UNAVAILABLE": 10 - told[True]}
        node.chain.release()
        assert world.earned == 1_000 * told[True]
        assert node.chain.balance(first) == RENT_EXEMPT_LAMPORTS + 50_000 - fee_lamports * told[True]
        await world.complete()
        node.chain.airdrop(first, 50_000)
        assert (await world.settle(outstanding(node, first))).body["success"] is True


async def test_what_can_be_executed_no_more_holds_no_fee_back(tmp_path: Path, clock: Clock) -> None:
    """Also while no node has every block, and so proves that it was not."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, hub_of(tmp_path, node, now_ms=clock) as world:
        first = await advertised(world)
        node.chain.drain(first)
        node.chain.airdrop(first, RENT_EXEMPT_LAMPORTS + 50_000)
        node.chain.next_slot(10)
        node.chain.holds = True
        while (await world.settle(outstanding(node, first), confirm=False, Prefer="wait=0")).status == 200:
            pass
        node.chain.drop()
        node.chain.lacks = range(node.chain.slot, node.chain.slot + 20)
        node.chain.next_slot(2 * RECENT_SLOTS)
        node.chain.release()
        await world.complete()
        assert (await world.settle(outstanding(node, first))).code == "UNAVAILABLE"
        clock.now_ms += 1000 * LIFETIME_DOUBTED_SECONDS + 1
        assert (await world.settle(outstanding(node, first))).body["success"] is True


async def test_a_restart_changes_nobody(tmp_path: Path, clock: Clock) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node, now_ms=clock) as world:
            first = await advertised(world)
            body = outstanding(node, first)
        async with hub_of(tmp_path, node, now_ms=clock) as world:
            assert await fee_payers_named(world) == {first} == {await advertised(world)}
            assert await settles(world, body)


async def test_a_restart_without_a_key_refuses_what_names_it_and_nothing_is_spent(tmp_path: Path, clock: Clock) -> None:
    """The buyer learns who pays now, and signs again."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node, now_ms=clock) as world:
            gone = await advertised(world)
        body, money = outstanding(node, gone), node.chain.balance(gone)
        left = [one for one in WALLETS.fee_payers if one.address != gone]
        async with hub_of(tmp_path, node, now_ms=clock, keys=left) as world:
            for answer in (await world.verify(body), await world.settle(body)):
                assert answer.reason == "fee_payer_not_managed_by_facilitator"
            assert (node.chain.executed, node.chain.balance(gone)) == ({}, money)
            assert await settles(world, outstanding(node, await advertised(world)))


async def test_one_more_key_takes_nothing_from_the_others(tmp_path: Path, clock: Clock) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node, now_ms=clock, keys=WALLETS.fee_payers[:1]) as world:
            body = outstanding(node, await advertised(world))
        async with hub_of(tmp_path, node, now_ms=clock) as world:
            assert await settles(world, body)
