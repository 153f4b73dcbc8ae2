"""Callers and buyers that go on whatever dies, and what must be true of what they were told (security F19, F24)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp

from tests.books import purchases_and_calls
from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import Site
from tests.faults.counts import came
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tollkeeper.core.evm.encoding import Authorization
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CALLERS: Final = 12
BUYERS: Final = 3
HELD_CREDITS: Final = 1_000_000
BOUGHT_CREDITS: Final = 2
SETTLE_SECONDS: Final = 120


@dataclass
class Told:
    """What callers saw. `served` and `charged` are ids of calls."""

    served: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0
    bought: list[str] = field(default_factory=list)


def valid_for_long(wanted: Authorization) -> Authorization:
    """So that no payment ends because its time is over."""
    return replace(wanted, valid_before=wanted.valid_before + 3000)


class Load:
    """Callers that go on whatever happens, against the program that runs now."""

    def __init__(self, held: str, sold: str, payments: list[str]) -> None:
        self.told = Told()
        self._held = held
        self._sold = sold
        self._payments = payments
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(self._call_on(self._payments[number % len(self._payments)]))
            for _ in range(BUYERS):
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
                    payment = buyer.sign(terms, valid_for_long)
                    self.told.bought.append(payment)
                    await buyer.call(self._sold, payment)
                await asyncio.sleep(0.2)


async def sell(buyer: Buyer, url: str, target: RecordingTarget, credits_: int) -> str:
    """The URL of a new gate."""
    body = {"price": "0.01", "targetUrl": target.url, "credits": credits_, "method": "GET, POST"}
    made = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
    return f"{url}/{made['slug']}"


async def hold(buyer: Buyer, url: str) -> str:
    """A payment that holds credits from now on."""
    payment = buyer.sign((await buyer.ask("GET", url)).json(), valid_for_long)
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


async def wait_at_random(random_: random.Random) -> None:
    """Half of the kills come while something is still down or starting."""
    await asyncio.sleep(random_.uniform(0.0, 0.3) if random_.random() < 0.5 else random_.uniform(0.8, 2.4))


async def settled(site: Site, buyer: Buyer, told: Told, sold: str) -> None:
    """Presents each payment until it is known what became of it: each bought what it says; nobody signs another."""
    for payment in told.bought:
        async with asyncio.timeout(SETTLE_SECONDS):
            while (answer := await _presented(buyer, sold, payment)) is None:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.5)
        assert answer.status == 200 or answer.error_code == "CREDITS_EXHAUSTED", answer.body
    async with asyncio.timeout(SETTLE_SECONDS):
        while site.rows("SELECT 1 FROM purchases WHERE state = 'CLAIMED'"):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.5)


async def _presented(buyer: Buyer, url: str, payment: str) -> Answer | None:
    """The answer; None where it is to be presented again."""
    try:
        answer = await buyer.call(url, payment)
    except aiohttp.ClientError:
        return None
    return None if answer.status == 503 else answer


def check(site: Site, told: Told, reached: Reached, paid_micro: int) -> None:
    calls = {name for (name,) in site.rows("SELECT id FROM calls")}
    assert told.served
    assert told.served <= calls, "an answered call was not charged"
    assert reached.ids <= calls, "a call reached the target without a credit"
    assert reached.twice == []
    assert set(told.statuses) <= {200, 502, 503}, told.statuses
    books = site.rows(purchases_and_calls("state, remaining, granted, calls, total"))
    assert all(row[1] == row[2] - row[3] == row[4] for row in books if row[0] == "LIVE")
    assert site.rows("SELECT count(*) FROM credit_entries") == [
        (len(calls) + len(site.rows("SELECT 1 FROM credit_entries WHERE reason = 'grant'")),)
    ]
    # What was paid on the chain was granted, and nothing else was.
    assert paid_micro == 10_000 * len(site.rows("SELECT 1 FROM purchases WHERE state = 'LIVE'"))
    assert set(site.rows("SELECT state FROM purchases")) == {("LIVE",)}


def report(site: Site, told: Told) -> None:
    """What callers saw, for the long form."""
    came("call served under kills", len(told.served))
    came("call told 503 under kills", told.statuses[503])
    came("connection broken under kills", told.broken)
    came("payment made under kills", len(told.bought))
    charged = len(site.rows("SELECT 1 FROM calls"))
    came("call charged that no caller saw served", charged - len(told.served))


def block_number(chain: ChainUnderTest) -> int:
    return int(chain.rpc.call("eth_blockNumber"), 16)
