"""A program killed at any moment under load: no answered spend is lost, none is granted twice.

What a caller was told is compared with the books at the end: each answered call is charged, once; each call that
reached the target was charged before; a payment buys what it says, once, whatever died meanwhile, and without that its
buyer signs another. Gateway and hub are one program here; apart they are killed in `test_kills_apart`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import PAYEE, Site
from tests.faults.aftermath import Site as Configured
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came
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
from tests.gateway.recording_target import recording_target
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PURCHASES = 3


async def kill_many(directory: Path, chain: ChainUnderTest, kills: int, seed: int) -> None:
    random_ = random.Random(seed)
    since_block = block_number(chain) + 1
    site = await asyncio.to_thread(Site, directory / "home", chain)
    before_micro = chain.balance(PAYEE)
    port = free_port()
    load: Load | None = None
    running: asyncio.Task[None] | None = None
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        reached = Reached(target)
        for _ in range(kills):
            with site.serving(port) as program:
                if load is None:
                    held = await sell(buyer, program.url, target, HELD_CREDITS)
                    sold = await sell(buyer, program.url, target, BOUGHT_CREDITS)
                    payments = [await hold(buyer, held) for _ in range(PURCHASES)]
                    load = Load(held, sold, payments)
                    running = asyncio.create_task(load.run())
                await wait_at_random(random_)
                os.kill(program.pid, signal.SIGKILL)
                await asyncio.to_thread(program.process.process.wait, 30)
                came("kill of a program under load")
        assert load is not None
        assert running is not None
        with site.serving(port):
            while not (load.told.served and load.told.bought):  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.1)
            load.stop()
            await running
            await settled(site, buyer, load.told, sold)
        check(site, load.told, reached, chain.balance(PAYEE) - before_micro)
        report(site, load.told)
        paid = [authorization_in(payment) for payment in (*payments, *load.told.bought)]
        configured = Configured(site.config, site.environ)
        await assert_nothing_lost(directory, chain, paid=paid, sites=[configured], since_block=since_block)


@pytest.mark.timeout(600)
async def test_kills_lose_no_answered_spend_and_grant_none_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await kill_many(tmp_path, embedded_chain, 10, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_100_kills_lose_no_answered_spend_and_grant_none_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """The other 1,000 are those of a process that spends and grants, `tests/storage/test_ledger_kills.py`."""
    for seed in range(4):
        await kill_many(tmp_path / str(seed), embedded_chain, 25, seed)
