"""Processes of the whole program that hang under load: callers are told in bounded time, no answered call is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
import uvloop

from tests.chains.chain_under_test import ChainUnderTest
from tests.workers.program import Line, Scene, lines_to_all, scene
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.serving.child import Life

BOUND_SECONDS = 45  # ten of silence, a start, and a machine that has other work
CHARGED = """SELECT c.id FROM calls c JOIN purchases p ON p.id = c.purchase_id
WHERE p.gate_id = ? AND c.state <> 'RESTORED'"""


@dataclass
class Load:
    """Calls on held credits over kept connections, one after the other on each."""

    lines: list[Line]
    url: str
    payment: str
    answers: list[tuple[Line, Answer, float]] = field(default_factory=list)
    longest_seconds: float = 0.0
    _is_over: bool = False
    _callers: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._callers = [asyncio.create_task(self._call_on(line)) for line in self.lines]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._callers)

    async def _call_on(self, line: Line) -> None:
        while not self._is_over:
            begun = time.monotonic()
            answer = await line.post(self.url, X_Payment=self.payment)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - begun)
            self.answers.append((line, answer, time.monotonic()))
            await asyncio.sleep(0.01)

    def served(self) -> set[str]:
        """The ids of the calls that were answered 200; every other is a 503 that says when to come again."""
        assert {answer.status for _, answer, _ in self.answers} <= {200, 503}
        assert all("retry-after" in answer.headers for _, answer, _ in self.answers if answer.status == 503)
        return {answer.headers["x-request-id"] for _, answer, _ in self.answers if answer.status == 200}


async def assert_books_agree(shop: Scene, gate: dict[str, Any], served: set[str]) -> None:
    """Beside the call that bought, each served call is charged, once; whoever was not served has the credit back."""

    def charged() -> set[str]:
        return {name for (name,) in shop.site.rows(CHARGED, gate["id"])}

    assert served <= charged()
    await shop.until(lambda: len(charged()) == 1 + len(served))


async def buy_on(shop: Scene, gate: dict[str, Any], bought: list[int]) -> None:
    """First purchases, one after the other, until it is cancelled."""
    while True:
        with suppress(aiohttp.ClientError):
            _, answer = await shop.buy(gate)
            bought.append(answer.status)


@pytest.mark.timeout(240)
async def test_a_hanging_ledger_is_replaced_and_no_call_is_served_unpaid(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=100_000, method="GET, POST")
        payment, _ = await shop.buy(gate)
        stopped = shop.program.children()["ledger"]
        async with lines_to_all(shop.program.url + "/healthz", 2) as lines, Load(lines, gate["url"], payment) as load:
            await asyncio.sleep(1)
            os.kill(stopped, signal.SIGSTOP)
            assert (await shop.buyer.ask("GET", shop.program.url + "/readyz")).status == 503
            assert shop.program.children()["ledger"] == stopped  # told before the hang was
            await shop.until(lambda: shop.program.children().get("ledger", stopped) != stopped, BOUND_SECONDS)
            with pytest.raises(ProcessLookupError):  # it was gone before, so it writes not one byte any more
                os.kill(stopped, signal.SIGCONT)
            back = time.monotonic()
            await shop.until(lambda: any(one.status == 200 and at > back + 1 for _, one, at in load.answers))
        said = [(line["event"], line.get("process")) for line in shop.program.process.lines()]
        started = [place for place, line in enumerate(said) if line == ("process_started", "ledger")]
        assert [event for event, _ in said[started[0] : started[1]] if event.startswith("ledger")] == [
            "ledger_process_hangs",
            "ledger_process_died",
        ]
        assert load.longest_seconds < BOUND_SECONDS
        await assert_books_agree(shop, gate, load.served())


@pytest.mark.timeout(240)
async def test_what_a_call_costs_is_told_in_every_profile_while_the_ledger_hangs(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """A gate that was asked for before is in memory, and its 402 needs no database."""
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate()
        async with lines_to_all(gate["url"], 2, count=4) as lines:
            ledger = shop.program.children()["ledger"]
            os.kill(ledger, signal.SIGSTOP)
            try:
                async with asyncio.timeout(8):  # before it is found to hang
                    for line in lines:
                        for profile in ("", "x402-a", "x402-b"):
                            accept = f'application/json;profile="{profile}"' if profile else "*/*"
                            answer = await line.get(gate["url"], Accept=accept)
                            assert answer.status == 402
                            assert ("accepts" in answer.json()) == (profile != "x402-a")
                        assert (await line.get(gate["url"], Accept="*/*", X_Payment="nonsense")).status == 402
            finally:
                with suppress(ProcessLookupError):
                    os.kill(ledger, signal.SIGCONT)
            assert shop.program.children()["ledger"] == ledger


@pytest.mark.timeout(240)
async def test_a_worker_that_hangs_amid_what_it_asks_of_the_ledger_holds_nobody_up_for_long(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate, other = await shop.gate(credits=100_000, method="GET, POST"), await shop.gate()
        payment, _ = await shop.buy(gate)
        worker = shop.program.children()["worker 2"]
        bought: list[int] = []
        async with lines_to_all(shop.program.url + "/healthz", 2) as lines, Load(lines, gate["url"], payment) as load:
            buyers = [asyncio.create_task(buy_on(shop, other, bought)) for _ in range(4)]
            await asyncio.sleep(1)
            for _ in range(2):
                os.kill(worker, signal.SIGSTOP)
                begun = time.monotonic()
                await asyncio.sleep(8)  # longer than a unit may stand still in its middle
                os.kill(worker, signal.SIGCONT)
                late = {line.marks.copy().pop() for line, answer, at in load.answers if at > begun + 6}
                assert len(late) == 1  # the other worker's
                assert all(answer.status == 200 for _, answer, at in load.answers if at > begun + 6)
                await asyncio.sleep(1)
            for buyer in buyers:
                buyer.cancel()
            await asyncio.gather(*buyers, return_exceptions=True)
        assert shop.program.children()["worker 2"] == worker
        assert set(bought) <= {200, 503}
        assert 200 in bought
        assert load.longest_seconds < BOUND_SECONDS
        await assert_books_agree(shop, gate, load.served())


def test_what_is_said_to_a_process_whose_line_is_closed_keeps_nobody_from_ending_it() -> None:
    async def speak() -> int | None:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        theirs.close()
        process = await asyncio.create_subprocess_exec("sleep", "60")
        life = Life(process, writer)
        for _ in range(3):
            life.say(b"are you there?\n")
            await asyncio.sleep(0.05)
        life.kill()
        life.hang_up()
        return await process.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(speak()) == -signal.SIGKILL
