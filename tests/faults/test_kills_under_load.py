"""Workers, ledger, hub and parent killed at any moment under load: no answered spend is lost, none is granted twice.

What a caller was told is compared with the books at the end: each answered call is charged, once; each call that
reached the target was charged before; a payment buys what it says, once, whatever died meanwhile, and without that its
buyer signs another. Once with gateway and hub as one program, once apart, with a database each.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
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
from tests.workers.program import PAYEE, Program, Site, is_alive
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PURCHASES = 3
EACH_PARENT = 16  # kills of which one is the parent's
# Each once in seven strikes, in which eleven processes end, three of them ledgers.
VICTIMS = ["worker 1", "ledger", "worker 2+ledger", "hub", "worker 1+ledger", "worker 2+hub", "worker 1+worker 2"]


def _in_turn(random_: random.Random) -> Iterator[str]:
    while True:
        yield from random_.sample(VICTIMS, len(VICTIMS))


async def _kill_some(program: Program, done: int, wanted: int, random_: random.Random, victims: Iterator[str]) -> int:
    """Kills until there were `wanted` kills or the parent was one of them; returns how many there are now."""
    while done < wanted:
        await wait_at_random(random_)
        if done % EACH_PARENT == EACH_PARENT // 2:
            everybody = list(program.children().values())
            os.kill(program.parent, signal.SIGKILL)
            came("kill of a parent under load")
            await asyncio.to_thread(_wait_for_ends, program, everybody)
            return done + 1
        names = next(victims).split("+")
        living = program.children()
        for name in names:
            if name in living:
                done += 1
                came(f"kill of a {name.split()[0]} under load")
                program.kill(name)
    return done


def _wait_for_ends(program: Program, everybody: list[int]) -> None:
    program.process.process.wait(30)
    while any(is_alive(pid) for pid in everybody):
        time.sleep(0.02)


async def kill_many(directory: Path, chain: ChainUnderTest, kills: int, seed: int) -> int:
    """Returns how many there were, at least `kills`."""
    random_ = random.Random(seed)
    victims = _in_turn(random_)
    since_block = block_number(chain) + 1
    site = await asyncio.to_thread(Site, directory / "home", chain)
    before_micro = chain.balance(PAYEE)
    port = free_port()
    done = starts = 0
    load: Load | None = None
    running: asyncio.Task[None] | None = None
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        reached = Reached(target)
        while load is None or done < kills:
            with site.serving(2, port) as program:
                starts += 1
                if load is None:
                    held = await sell(buyer, program.url, target, HELD_CREDITS)
                    sold = await sell(buyer, program.url, target, BOUGHT_CREDITS)
                    payments = [await hold(buyer, held) for _ in range(PURCHASES)]
                    load = Load(held, sold, payments)
                    running = asyncio.create_task(load.run())
                done = await _kill_some(program, done, kills, random_, victims)
                if done >= kills and program.process.process.poll() is None:
                    await asyncio.sleep(1)
        assert load is not None
        assert running is not None
        load.stop()
        await running
        with site.serving(2, port) as program:
            await settled(site, buyer, load.told, sold)
        check(site, load.told, reached, chain.balance(PAYEE) - before_micro)
        report(site, load.told)
        paid = [authorization_in(payment) for payment in (*payments, *load.told.bought)]
        configured = Configured(site.config, site.environ)
        await assert_nothing_lost(directory, chain, paid=paid, sites=[configured], since_block=since_block)
    return done


@pytest.mark.timeout(600)
async def test_kills_lose_no_answered_spend_and_grant_none_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await kill_many(tmp_path, embedded_chain, 20, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_100_kills_lose_no_answered_spend_and_grant_none_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """The other 900 of a thousand are those of a ledger with its workers, `tests/storage/test_ledger_process.py`."""
    done = 0
    for seed in range(4):
        done += await kill_many(tmp_path / str(seed), embedded_chain, 25, seed)
    assert done >= 100
