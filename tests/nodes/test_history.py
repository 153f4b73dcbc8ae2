"""100,000 paid calls amid kills of gateways and of PostgreSQL: a counter for each purchase explains every answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import PAYEE
from tests.engines import said_to
from tests.nodes.history import LOST, Call, Outcome, faults
from tests.nodes.town import PORT, Node, Town, town

CALLS = 100_000
CALLERS = 32
PURCHASES = 8
CREDITS = 100_000
DATABASE_KILLS = 5
ANSWER_SECONDS = 60.0


@dataclass
class History:
    """What callers were told."""

    place: Town
    slug: str
    calls: list[Call] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    stopped: bool = False

    async def call_on(self, number: int, payment: str) -> None:
        """Call one gateway after the other until it is enough."""
        random_ = random.Random(number)
        while not self.stopped and len(self.calls) < CALLS:
            node = random_.choice(self.place.gateways)
            try:
                reader, writer = await asyncio.open_connection(node.host.address, PORT)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            head = f"GET /{self.slug} HTTP/1.1\r\nHost: {node.host.address}:{PORT}\r\nX-Payment: {payment}\r\n\r\n"
            try:
                for _ in range(200):
                    if not await self._call(number % PURCHASES, head.encode(), reader, writer) or self.stopped:
                        break
            finally:
                writer.close()

    def logged(self, answer: str) -> list[str]:
        """What gateways logged of the call with this answer."""
        name = answer.partition("\r\nx-request-id: ")[2].partition("\r\n")[0]
        return [line for node in self.place.gateways for line in node.wrote.splitlines() if name in line]

    async def _call(
        self, purchase: int, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Carry out one call; tell whether the connection is of use still."""
        began = time.monotonic()
        try:
            writer.write(head)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                size = int(answer.partition("\r\ncontent-length: ")[2].partition("\r\n")[0] or 0)
                body = await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            self.calls.append(Call(purchase, began, LOST, Outcome.UNKNOWN))
            return False
        status = int(answer.split(" ", 2)[1])
        self.statuses[status] += 1
        if status == 200:
            left = int(answer.partition("\r\nx-credits-remaining: ")[2].partition("\r\n")[0])
            self.calls.append(Call(purchase, began, time.monotonic(), Outcome.SERVED, left))
            return True
        assert status == 503, (answer, self.logged(answer))
        if b"nothing was charged" not in body:  # of a commit that was not answered the gateway itself does not know
            self.calls.append(Call(purchase, began, LOST, Outcome.UNKNOWN))
        await asyncio.sleep(0.05)
        return "connection: close" not in answer


async def kill_on(place: Town, history: History) -> None:
    """Each second kill a gateway, unless it is the last that lives; the database five times. All start again."""
    random_ = random.Random(1)
    starting: dict[str, asyncio.Task[None]] = {}
    databases = kills = 0

    async def again(node: Node) -> None:
        """Start it as often as whoever watches over it would: without a database it ends."""
        while True:
            node.start()
            with suppress(AssertionError):
                await node.ready()
                return

    while len(history.calls) < CALLS:
        await asyncio.sleep(1)
        if len(history.calls) > CALLS // (DATABASE_KILLS + 1) * (databases + 1) and databases < DATABASE_KILLS:
            databases += 1
            place.server.kill()
            await asyncio.to_thread(place.server.start)
        living = [node for node in place.gateways if (task := starting.get(node.url)) is None or task.done()]
        if len(living) > 1:
            node = random_.choice(living)
            node.kill()
            kills += 1
            starting[node.url] = asyncio.create_task(again(node))
    await asyncio.gather(*starting.values())
    print(f"{kills} kills of gateways, {databases} of PostgreSQL")  # noqa: T201 - a figure
    assert databases == DATABASE_KILLS


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_a_counter_for_each_purchase_explains_every_answer_amid_kills(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    before = embedded_chain.balance(PAYEE)
    async with town(tmp_path, embedded_chain) as place:
        gate = await place.gate(credits=CREDITS)
        payments = [await place.bought(gate) for _ in range(PURCHASES)]
        history = History(place, gate["slug"])
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(history.call_on(number, payments[number % PURCHASES]))
            group.create_task(kill_on(place, history))
        for node in place.gateways:
            await node.stop()
        rows = said_to(place.server.url, "SELECT remaining FROM credits ORDER BY number")
        left = {number: int(row["remaining"]) for number, row in enumerate(rows)}
        print(history.statuses, Counter(call.outcome for call in history.calls))  # noqa: T201 - figures
        granted = dict.fromkeys(range(PURCHASES), CREDITS - 1)  # the first call of each bought it
        assert faults(history.calls, granted, left) == []
        assert set(place.target.calls.values()) == {1}
        assert embedded_chain.balance(PAYEE) == before + PURCHASES * 10_000
