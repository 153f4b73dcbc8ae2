"""Workers, ledger, hub and parent killed at any moment under load: no answered spend is lost, none is granted twice.

What a caller was told is compared with the books at the end: each answered call is charged, once; each call that
reached the target was charged before; a payment buys what it says, once, whatever died meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok, recording_target
from tests.workers.program import PAYEE, Program, Site, is_alive
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CALLERS = 12
PURCHASES = 3
HELD_CREDITS = 1_000_000
BOUGHT_CREDITS = 2
SETTLE_SECONDS = 120
EACH_PARENT = 16  # kills of which one is the parent's
VICTIMS = ["worker 1", "worker 2", "ledger", "hub", "worker 1+ledger", "worker 2+hub", "worker 1+worker 2"]


@dataclass
class Told:
    """What callers saw. `served` and `charged` are ids of calls."""

    served: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0
    bought: list[str] = field(default_factory=list)


class Load:
    """Callers that go on whatever happens, against the program that runs now."""

    def __init__(self, port: int, slug: str, bought_slug: str, payments: list[str]) -> None:
        self.told = Told()
        self._held = f"http://127.0.0.1:{port}/{slug}"
        self._sold = f"http://127.0.0.1:{port}/{bought_slug}"
        self._payments = payments
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(self._call_on(self._payments[number % len(self._payments)]))
            group.create_task(self._buy_on())

    def stop(self) -> None:
        self._stop.set()

    async def _call_on(self, payment: str) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._stop.is_set():
                try:
                    # A POST is not sent again by the client itself.
                    async with session.post(self._held, headers={"X-Payment": payment}) as answer:
                        await answer.read()
                        self.told.statuses[answer.status] += 1
                        if answer.status == 200:
                            self.told.served.add(answer.headers["X-Request-Id"])
                except (aiohttp.ClientError, OSError, TimeoutError):
                    self.told.broken += 1
                await asyncio.sleep(0.02)

    async def _buy_on(self) -> None:
        """One payment after the other, each presented until it is known what became of it."""
        async with Buyer(derive_wallets().buyer) as buyer:
            while not self._stop.is_set():
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
                    terms = (await buyer.ask("GET", self._sold)).json()
                    payment = buyer.sign(terms)
                    self.told.bought.append(payment)
                    await buyer.call(self._sold, payment)
                await asyncio.sleep(0.2)


async def _sell(buyer: Buyer, program: Program, target: RecordingTarget, credits_: int) -> str:
    """The slug of a new gate."""
    body = {"price": "0.01", "targetUrl": target.url, "credits": credits_, "method": "GET, POST"}
    slug: str = (await buyer.ask("POST", program.url + "/api/v1/paygates", body=body)).json()["slug"]
    return slug


async def _hold(buyer: Buyer, url: str) -> str:
    """A payment that holds credits from now on."""
    payment = buyer.sign((await buyer.ask("GET", url)).json())
    assert (await buyer.call(url, payment)).status == 200
    return payment


class Reached:
    """What came to the target: the calls' ids, and those that came twice."""

    def __init__(self, target: RecordingTarget) -> None:
        self.ids: set[str] = set()
        self.twice: list[str] = []
        self._target = target
        target.answer = self._answer

    async def _answer(self, request: Received, writer: Writer) -> None:
        name = request.header("x-request-id") or ""
        if name in self.ids:
            self.twice.append(name)
        self.ids.add(name)
        self._target.requests.clear()
        await answer_ok(request, writer)


async def _kill_some(program: Program, done: int, wanted: int, random_: random.Random) -> int:
    """Kills until there were `wanted` kills or the parent was one of them; returns how many there are now."""
    while done < wanted:
        # Half of the kills come while something is still down or starting.
        await asyncio.sleep(random_.uniform(0.0, 0.3) if random_.random() < 0.5 else random_.uniform(0.8, 2.4))
        if done % EACH_PARENT == EACH_PARENT // 2:
            everybody = list(program.children().values())
            os.kill(program.parent, signal.SIGKILL)
            await asyncio.to_thread(_wait_for_ends, program, everybody)
            return done + 1
        names = random_.choice(VICTIMS).split("+")
        living = program.children()
        done += sum(name in living for name in names)
        for name in names:
            program.kill(name)
    return done


def _wait_for_ends(program: Program, everybody: list[int]) -> None:
    program.process.process.wait(30)
    while any(is_alive(pid) for pid in everybody):
        time.sleep(0.02)


async def _settled(site: Site, program: Program, buyer: Buyer, told: Told, sold: str) -> None:
    """Waits until every payment that was made is decided, as its buyer presents it again."""
    for payment in told.bought:
        for _ in range(SETTLE_SECONDS * 2):
            with contextlib.suppress(aiohttp.ClientError):
                if (await buyer.call(f"{program.url}/{sold}", payment)).status != 503:
                    break
            await asyncio.sleep(0.5)
    for _ in range(SETTLE_SECONDS * 2):
        if not site.rows("SELECT 1 FROM purchases WHERE state = 'CLAIMED'"):
            return
        await asyncio.sleep(0.5)
    raise AssertionError(site.rows("SELECT * FROM purchases WHERE state = 'CLAIMED'"))


def check(site: Site, told: Told, reached: Reached, paid_micro: int) -> None:
    calls = {name for (name,) in site.rows("SELECT id FROM calls")}
    assert told.served
    assert told.served <= calls, "an answered call was not charged"
    assert reached.ids <= calls, "a call reached the target without a credit"
    assert reached.twice == []
    assert set(told.statuses) <= {200, 502, 503}, told.statuses
    for remaining, granted, spent, entries in site.rows(
        "SELECT remaining, granted, (SELECT count(*) FROM calls c WHERE c.purchase_id = p.id),"
        " (SELECT sum(delta) FROM credit_entries e WHERE e.purchase_id = p.id) FROM purchases p WHERE state = 'LIVE'"
    ):
        assert remaining == granted - spent == entries
    assert site.rows("SELECT count(*) FROM credit_entries") == [
        (len(calls) + len(site.rows("SELECT 1 FROM credit_entries WHERE reason = 'grant'")),)
    ]
    # What was paid on the chain was granted, and nothing else was.
    assert paid_micro == 10_000 * len(site.rows("SELECT 1 FROM purchases WHERE state = 'LIVE'"))
    assert set(site.rows("SELECT state FROM purchases")) <= {("LIVE",), ("FAILED",)}
    audited = finished("db", "check", "--config", site.config, environ=site.environ)
    assert audited.returncode == 0, audited.stdout


async def kill_many(home: Path, chain: ChainUnderTest, kills: int, seed: int) -> None:
    random_ = random.Random(seed)
    site = await asyncio.to_thread(Site, home, chain)
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
                    held = await _sell(buyer, program, target, HELD_CREDITS)
                    sold = await _sell(buyer, program, target, BOUGHT_CREDITS)
                    payments = [await _hold(buyer, f"{program.url}/{held}") for _ in range(PURCHASES)]
                    load = Load(port, held, sold, payments)
                    running = asyncio.create_task(load.run())
                done = await _kill_some(program, done, kills, random_)
                if done >= kills and program.process.process.poll() is None:
                    await asyncio.sleep(1)
        assert load is not None
        assert running is not None
        load.stop()
        await running
        with site.serving(2, port) as program:
            await _settled(site, program, buyer, load.told, sold)
        check(site, load.told, reached, chain.balance(PAYEE) - before_micro)
        told, charged = load.told, len(site.rows("SELECT 1 FROM calls"))
        sys.stdout.write(  # what the long form is run for; pytest shows it with -s
            f"{done} kills, {starts} starts: {len(told.served)} calls served, {told.statuses[503]} told 503,"
            f" {told.statuses[502]} told 502, {told.broken} connections broken, {len(told.bought)} payments made,"
            f" {charged - len(told.served)} calls charged that no caller saw served\n"
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.timeout(600)
async def test_kills_lose_no_answered_spend_and_grant_none_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await kill_many(tmp_path / "home", embedded_chain, 20, seed=1)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 104))  # of a fresh database each, so that none grows without end
async def test_many_kills_lose_no_answered_spend_and_grant_none_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest, seed: int
) -> None:
    await kill_many(tmp_path / "home", embedded_chain, 250, seed)
