"""Once an update or delete was answered no worker shows or sells by the former state (contract 3.3)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.chains.chain_under_test import ChainUnderTest
from tests.workers.program import Line, is_alive, lines_to_all, price_in, scene

NEW_PAYEE = "0x" + "78" * 20


async def test_no_worker_shows_a_former_price_after_the_answer(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain, workers=3) as shop:
        gate = await shop.gate()
        async with lines_to_all(gate["url"], 3, count=24) as lines:
            for number in range(1, 60):
                price = f"0.{number:02}"
                await shop.change(gate, price=price.rstrip("0"))
                answers = await asyncio.gather(*(line.get(gate["url"]) for line in lines))
                assert {price_in(answer) for answer in answers} == {price.rstrip("0")}


async def test_copies_that_are_read_meanwhile_are_no_former_ones(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate()
        async with lines_to_all(gate["url"], 2, count=16) as lines:
            stop = asyncio.Event()

            async def read_on() -> None:
                while not stop.is_set():
                    await asyncio.gather(*(line.get(gate["url"]) for line in lines[:8]))

            reading = asyncio.create_task(read_on())
            for number in range(1, 40):
                price = f"0.{number:02}".rstrip("0")
                await shop.change(gate, price=price)
                answers = await asyncio.gather(*(line.get(gate["url"]) for line in lines[8:]))
                assert {price_in(answer) for answer in answers} == {price}
            stop.set()
            await reading


async def test_no_worker_takes_a_payment_to_a_former_address(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate()
        async with lines_to_all(gate["url"], 2) as lines:
            terms = (await lines[0].get(gate["url"])).json()
            await shop.change(gate, paymentAddress=NEW_PAYEE)
            answers = [await line.get(gate["url"], X_Payment=shop.buyer.sign(terms)) for line in lines]
        assert {answer.status for answer in answers} == {402}
        assert {answer.json()["accepts"][0]["payTo"].lower() for answer in answers} == {NEW_PAYEE}
        assert not shop.target.requests


async def test_disabled_and_deleted_gates_are_gone_everywhere(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate, other = await shop.gate(), await shop.gate()
        async with lines_to_all(gate["url"], 2) as lines, lines_to_all(other["url"], 2) as others:
            await shop.change(gate, isEnabled=False)
            assert {(await line.get(gate["url"])).status for line in lines} == {404}
            deleted = await shop.buyer.ask("DELETE", f"{shop.program.url}/api/v1/paygates/{other['id']}")
            assert deleted.status == 200
            assert {(await line.get(other["url"])).status for line in others} == {404}


async def test_a_worker_that_does_not_answer_is_replaced_before_the_update_is_answered(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate()
        async with lines_to_all(gate["url"], 2) as lines:
            stopped = shop.program.children()["worker 2"]
            os.kill(stopped, signal.SIGSTOP)
            api = f"{shop.program.url}/api/v1/paygates/{gate['id']}"

            async def update(line: Line) -> int:
                async with line.session.put(api, json={"price": "0.5"}) as answer:
                    assert answer.status != 200 or not is_alive(stopped)
                    return answer.status

            # Whatever the stopped one was asked is asked again, of its successor, when its connections break.
            answers = await asyncio.gather(*map(update, lines), return_exceptions=True)
            assert 200 in answers, answers
            assert not any(isinstance(answer, AssertionError) for answer in answers)
            assert not is_alive(stopped)
        assert "process_hangs" in shop.program.process.wrote
        await shop.until(lambda: "worker 2" in shop.program.children())
        async with lines_to_all(gate["url"], 2) as lines:
            assert {price_in(await line.get(gate["url"])) for line in lines} == {"0.5"}
