"""Once an update or delete was answered no worker shows or sells by the former state (contract 3.3)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.test_changes_under_load import Sales
from tests.workers.program import Line, is_alive, lines_to_all, mark_of, price_in, scene
from tollkeeper.core.usdc import format_usdc

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


VERSIONS = range(2, 22)


async def test_each_purchase_at_any_worker_is_one_version_that_was_shown_and_none_is_of_a_former_recipient(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """A version n sells n credits for n micro-units to a recipient of its own, at two workers, while it changes."""

    def recipient(version: int) -> str:
        return f"0x{'d4' * 19}{version:02x}"

    def terms(version: int) -> dict[str, object]:
        return {"price": format_usdc(version), "credits": version, "paymentAddress": recipient(version)}

    sold = Sales()
    sellers: set[str] = set()
    answered, late, done = 1, 0, asyncio.Event()
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(**terms(1))

        async def update() -> None:
            nonlocal answered
            for version in VERSIONS:
                await shop.change(gate, **terms(version))
                answered = version
                await sold.of(version)
            done.set()

        async def buy(line: Line) -> None:
            nonlocal late
            while not done.is_set():
                shown = (await line.get(gate["url"])).json()
                version = int(shown["accepts"][0]["maxAmountRequired"])
                assert shown["accepts"][0]["payTo"].lower() == recipient(version)  # never a mixture
                payment = shop.buyer.sign(shown)
                await sold.keep(version, lambda: answered > version or done.is_set())  # noqa: B023 - of this turn
                was_former = answered > version
                answer = await line.get(gate["url"], X_Payment=payment)
                if answer.status == 200 and answer.receipt is not None:
                    assert not was_former
                    assert (int(answer.receipt["amount"]), int(answer.headers["x-credits-total"])) == (version, version)
                    sold[version] += 1
                    sellers.add(mark_of(answer))
                else:
                    assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID")
                    late += 1

        async with lines_to_all(gate["url"], 2) as lines:
            await asyncio.gather(update(), *map(buy, lines))
        paid = {version: embedded_chain.balance(recipient(version)) for version in (1, *VERSIONS)}
        assert paid == {version: version * sold[version] for version in paid}
        assert len(shop.target.requests) == sold.total() >= len(VERSIONS)
    assert late >= len(VERSIONS) - 1
    assert len(sellers) == 2


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
