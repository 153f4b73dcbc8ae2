"""Gateway and hub apart, each with its own database, killed at any moment under load (security F1 to F4, F19, F24).

Killed are hub and gateway, alone and both at once; who died is started anew. At the end both books agree with the
chain, and no buyer needed a second signature.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import PAYEE
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came, rounds
from tests.faults.load import (
    BOUGHT_CREDITS,
    HELD_CREDITS,
    Load,
    Reached,
    block_number,
    check,
    hold,
    report,
    sell,
    settled,
    wait_at_random,
)
from tests.faults.parts import Part, parts_of
from tests.gateway.recording_target import recording_target
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PURCHASES: Final = 3
VICTIMS: Final = ["hub", "gateway", "hub+gateway"]


def strike(parts: dict[str, Part], names: list[str]) -> int:
    """Kill these at once, and start them anew; how many there were."""
    for name in names:
        parts[name].kill()
    for name in names:
        parts[name].start()
        came(f"kill of a {name} apart, under load")
    return len(names)


async def kill_many(directory: Path, chain: ChainUnderTest, kills: int, seed: int) -> None:
    random_ = random.Random(seed)
    since_block, before_micro = block_number(chain) + 1, chain.balance(PAYEE)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        reached = Reached(target)
        with ExitStack() as stack:
            parts = await asyncio.to_thread(stack.enter_context, parts_of(directory, chain))
            gateway = parts["gateway"]
            held = await sell(buyer, gateway.url, target, HELD_CREDITS)
            sold = await sell(buyer, gateway.url, target, BOUGHT_CREDITS)
            payments = [await hold(buyer, held) for _ in range(PURCHASES)]
            load = Load(held, sold, payments)
            loading = asyncio.create_task(load.run())
            done = 0
            while done < kills:
                await wait_at_random(random_)
                done += await asyncio.to_thread(strike, parts, random_.choice(VICTIMS).split("+"))
            await asyncio.sleep(1)
            load.stop()
            await loading
            await settled(gateway.site, buyer, load.told, sold)
        check(gateway.site, load.told, reached, chain.balance(PAYEE) - before_micro)
        report(gateway.site, load.told)
    paid = [authorization_in(payment) for payment in (*payments, *load.told.bought)]
    sites = [part.configured for part in parts.values()]
    await assert_nothing_lost(directory, chain, paid=paid, sites=sites, since_block=since_block)


@pytest.mark.timeout(600)
async def test_kills_of_gateway_and_hub_apart_lose_and_double_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await kill_many(tmp_path, embedded_chain, 8, seed=5)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_many_kills_of_gateway_and_hub_apart_lose_and_double_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    for seed in rounds(8, seconds=150):
        await kill_many(tmp_path / str(seed), embedded_chain, 25, seed)
