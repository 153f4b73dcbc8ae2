"""100,000 paid calls amid a kill of a node each second, and of PostgreSQL: a counter for each purchase explains all.

Some of the calls are first ones, so that settlements meet the kills as well. `HISTORY_CALLS` says how many there are.
Nodes start by forks (`tests.forked`), at addresses of one machine, so that one can start each second beside the calls.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import said_to
from tests.faults.aftermath import assert_carried_out, authorization_in
from tests.nodes.history import LOST, Call, Outcome, faults
from tests.nodes.town import PORT, Node, Town, town, until
from tollkeeper.sandbox.buyer import Answer

CALLS = int(os.environ.get("HISTORY_CALLS", "100_000"))
CALLERS = 32
PURCHASES = 8
BUYERS = 4
SOLD_CREDITS = 3  # of a purchase that is made amid the kills, and used up
DATABASE_KILLS = 5
GATEWAYS, HUBS = 6, 3
STRANGE_MAX = 20  # answers, with which it ends early
SECONDS_MAX = 7_200
ANSWER_SECONDS = 60.0
PURCHASES_NOW = """SELECT nonce, remaining, (SELECT count(*) FROM credits_given g
    WHERE g.purchase_id = h.id AND g.reason = 'restore') AS restored FROM holdings h"""


@dataclass
class History:
    """What callers were told. Purchases are numbered; `payments` and `granted` have what each was made with.

    `refused` has payments of which callers were told that nothing was charged, and which they never sent again;
    `strange` what no caller should be told.
    """

    place: Town
    calls: list[Call] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    payments: dict[int, str] = field(default_factory=dict)
    granted: dict[int, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_over(self) -> bool:
        return len(self.calls) >= CALLS or len(self.strange) > STRANGE_MAX

    def purchase(self, payment: str, granted: int) -> int:
        """Number the purchase that is made with this payment."""
        number = next(self.numbers)
        self.payments[number], self.granted[number] = payment, granted
        return number

    async def call_on(self, slug: str, purchase: int, seed: int) -> None:
        """Call one gateway after the other until it is enough."""
        random_ = random.Random(seed)
        while not self.is_over:
            await self._connected(random_, slug, purchase, 200)

    async def buy_on(self, slug: str, unpaid: Answer, seed: int) -> None:
        """Buy by a first call and use that up, again and again until it is enough.

        Half of those who were told that nothing was charged, and nothing else, sign another payment.
        """
        random_ = random.Random(seed)
        while not self.is_over:
            purchase, told = self.purchase(self.place.sign(unpaid), SOLD_CREDITS), set[Outcome]()
            while (outcome := await self._connected(random_, slug, purchase, 1)) is not Outcome.EXHAUSTED:
                told.add(outcome)
                if told == {Outcome.REFUSED} and random_.random() < 1 / 2:
                    self.refused.append(self.payments.pop(purchase))
                    del self.granted[purchase]
                    break

    async def _connected(self, random_: random.Random, slug: str, purchase: int, calls: int) -> Outcome:
        """Carry out so many calls of one connection, or as many as it takes; return how the last one ended."""
        while True:
            node = random_.choice(self.place.gateways)
            try:
                reader, writer = await asyncio.open_connection(node.host.address, PORT)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            break
        payment = self.payments[purchase]
        head = f"GET /{slug} HTTP/1.1\r\nHost: {node.host.address}:{PORT}\r\nX-Payment: {payment}\r\n\r\n"
        try:
            for _ in range(calls):
                outcome = await self._call(purchase, head.encode(), reader, writer)
                if outcome is not Outcome.SERVED or self.is_over:
                    break
        finally:
            writer.close()
        return outcome

    async def _call(
        self, purchase: int, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Outcome:
        """Carry out one call; what may have taken a credit is kept."""
        began = time.monotonic()
        try:
            writer.write(head)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                size = int(answer.partition("\r\ncontent-length: ")[2].partition("\r\n")[0] or 0)
                body = await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            self.calls.append(Call(purchase, began, LOST, Outcome.UNKNOWN))
            return Outcome.UNKNOWN
        status = int(answer.split(" ", 2)[1])
        self.statuses[status] += 1
        if status == 200:
            left = int(answer.partition("\r\nx-credits-remaining: ")[2].partition("\r\n")[0])
            self.calls.append(Call(purchase, began, time.monotonic(), Outcome.SERVED, left))
            return Outcome.SERVED
        if status == 402 and b"CREDITS_EXHAUSTED" in body:
            return Outcome.EXHAUSTED
        if status != 503:
            self.strange.append(self._told(answer, body))
        await asyncio.sleep(0.05)
        outcome = Outcome.REFUSED if b"nothing was charged" in body else Outcome.UNKNOWN  # to the gateway itself, too
        self.calls.append(Call(purchase, began, LOST, outcome))
        return outcome

    def _told(self, answer: str, body: bytes) -> str:
        """An answer, and what gateways logged of its call."""
        name = answer.partition("\r\nx-request-id: ")[2].partition("\r\n")[0]
        logged = [line for node in self.place.gateways for line in node.wrote.splitlines() if name in line]
        return "\n".join([answer, body.decode(errors="replace"), *logged])


async def kill_nodes(place: Town, history: History) -> tuple[Counter[str], float]:
    """Each second by the clock kill a node that is ready and not the last such of its kind; each starts again.

    Return how many of which kind, and in how many seconds.
    """
    random_ = random.Random(1)
    starting: dict[str, asyncio.Task[None]] = {}
    kills: Counter[str] = Counter()
    began = time.monotonic()

    async def again(node: Node) -> None:
        """Start it as often as whoever watches over it would: without a database it ends."""
        while True:
            node.start()
            with suppress(AssertionError):
                await node.ready()
                return

    def may_die() -> Iterator[Node]:
        for nodes in (place.gateways, place.hubs):
            living = [node for node in nodes if (task := starting.get(node.url)) is None or task.done()]
            yield from living if len(living) > 1 else ()

    while not history.is_over:
        mortal = list(may_die())
        if mortal and time.monotonic() - began >= kills.total():
            node = random_.choice(mortal)
            node.kill()
            kills[node.role] += 1
            starting[node.url] = asyncio.create_task(again(node))
        await asyncio.sleep(max(0.02, began + kills.total() - time.monotonic()))
    seconds = time.monotonic() - began
    await asyncio.gather(*starting.values())
    return kills, seconds


async def kill_database(place: Town, history: History) -> None:
    """Kill PostgreSQL five times, evenly over the calls, and start it again."""
    for number in range(1, DATABASE_KILLS + 1):
        due = CALLS * number // (DATABASE_KILLS + 1)
        await until(lambda due=due: history.is_over or len(history.calls) >= due, SECONDS_MAX)
        place.server.kill()
        await asyncio.to_thread(place.server.start)


@pytest.mark.long
@pytest.mark.timeout(SECONDS_MAX)
async def test_a_counter_for_each_purchase_explains_every_answer_amid_kills(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    since_block = int(embedded_chain.rpc.call("eth_blockNumber"), 16) + 1
    async with town(tmp_path, embedded_chain, GATEWAYS, HUBS, are_apart=False) as place:
        held, sold = await place.gate(credits=CALLS), await place.gate(credits=SOLD_CREDITS)
        unpaid = await place.buyer.ask("GET", f"{place.url}/{sold['slug']}")
        history = History(place)
        for _ in range(PURCHASES):
            history.purchase(await place.bought(held), CALLS - 1)  # its first call bought it
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(history.call_on(held["slug"], number % PURCHASES, number))
            for number in range(BUYERS):
                group.create_task(history.buy_on(sold["slug"], unpaid, number))
            group.create_task(kill_database(place, history))
            killing = group.create_task(kill_nodes(place, history))
        kills, seconds = killing.result()
        print(f"{dict(kills)} killed in {seconds:.0f} s")  # noqa: T201 - a figure
        assert min(kills["gateway"], kills["hub"]) > 0
        for node in (*place.gateways, *place.hubs):
            await node.stop()
        paid = {number: authorization_in(payment) for number, payment in history.payments.items()}
        outcomes = Counter(call.outcome for call in history.calls)
        figures = f"{len(paid)} purchases, {len(history.refused)} given up"
        print(history.statuses, outcomes, figures)  # noqa: T201
        rows = said_to(place.server.url, PURCHASES_NOW)
        of_nonce = {row["nonce"]: row for row in rows}
        left, restored = (
            {number: int(of_nonce[one.nonce][name]) for number, one in paid.items()}
            for name in ("remaining", "restored")
        )
        print(f"{sum(restored.values())} credits came back")  # noqa: T201 - a figure
        assert faults(history.calls, history.granted, left, restored) == []
        assert history.strange == []
        assert {left[number] for number, granted in history.granted.items() if granted == SOLD_CREDITS} == {0}
        assert set(place.target.calls.values()) == {1}
        refused = [authorization_in(payment) for payment in history.refused]
        await asyncio.to_thread(assert_carried_out, embedded_chain, list(paid.values()), refused, since_block)
        await place.assert_books_agree(since_block)
