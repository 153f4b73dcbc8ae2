"""`tollkeeper serve` killed at any step of a purchase loses and doubles nothing (F1, F2, F3, F10, F11; contract 4.3).

The node stands behind a proxy that kills the process, and its own answer with it, when a chosen call comes by. After a
restart on the same files the same payment is presented again: it was settled at most once, and it is served what it
bought, less at most the one call that was under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came
from tests.faults.shop import PAYEE, Shop, present, url_of
from tests.gateway.recording_target import Received, Writer, answer_ok, recording_target
from tests.hub.chaos import Act, ChaosNode, run_chaos
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CREDITS = 3

Arm = Callable[[ChaosNode, Callable[[], None]], None]


def before(method: str) -> Arm:
    """Kill when the call comes; the node never sees it."""

    def arm(chaos: ChaosNode, kill: Callable[[], None]) -> None:
        def judge(methods: list[str]) -> Act:
            if method not in methods:
                return Act.PASS
            kill()
            return Act.CUT

        chaos.act = judge

    return arm


def after(method: str) -> Arm:
    """Kill once the node has carried the call out."""

    def arm(chaos: ChaosNode, kill: Callable[[], None]) -> None:
        def passed(methods: list[str]) -> None:
            if method in methods:
                kill()

        chaos.after_pass = passed

    return arm


POINTS: list[tuple[str, Arm]] = [
    ("while it verifies", before("eth_call")),
    ("after the last reads", after("eth_call")),
    ("after signing, before the node sees it", before("eth_sendRawTransaction")),
    ("after the node took it", after("eth_sendRawTransaction")),
    ("before the receipt is seen", before("eth_getTransactionReceipt")),
    ("after the receipt is seen", after("eth_getTransactionReceipt")),
]


@pytest.mark.timeout(300)
async def test_a_purchase_that_is_killed_at_any_step_is_settled_once_and_served_what_it_bought(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """One program after the other: each takes up what the last one left, and is killed over the next purchase."""
    chain = embedded_chain
    payments: list[str] = []
    async with (
        run_chaos(chain.url) as chaos,
        recording_target() as target,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        shop = await asyncio.to_thread(Shop, tmp_path / "home", chain, chaos.url)
        before_micro = chain.balance(PAYEE)
        slug = ""
        for number, (name, arm) in enumerate([*POINTS, ("not at all", lambda _chaos, _kill: None)]):
            with shop.serving() as program:
                url = await asyncio.to_thread(url_of, program)
                if not slug:
                    body = {"price": "0.01", "targetUrl": target.url, "credits": CREDITS}
                    slug = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()["slug"]
                if payments:
                    answers = [await present(buyer, f"{url}/{slug}", payments[-1]) for _ in range(CREDITS + 1)]
                    assert len([answer for answer in answers if answer.status == 200]) >= CREDITS - 1, name
                    assert answers[-1].error_code == "CREDITS_EXHAUSTED"
                    assert len(target.requests) == CREDITS * number
                if number == len(POINTS):
                    break
                payments.append(buyer.sign((await buyer.ask("GET", f"{url}/{slug}")).json()))
                pid = program.process.pid

                def kill(victim: int = pid) -> None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)

                arm(chaos, kill)
                with contextlib.suppress(aiohttp.ClientError):
                    await buyer.call(f"{url}/{slug}", payments[-1])
                assert await asyncio.to_thread(program.process.wait, 10) == -signal.SIGKILL, name
            came("kill at a step of a purchase")
            chaos.calm()
            chaos.after_pass = lambda _methods: None
        assert chain.balance(PAYEE) - before_micro == 10_000 * len(payments)
        paid = [authorization_in(payment) for payment in payments]
        await assert_nothing_lost(tmp_path, chain, paid=paid, sites=[shop.site])


async def test_a_call_whose_process_dies_while_the_target_works_stays_charged_and_is_never_sent_again(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    shop = await asyncio.to_thread(Shop, tmp_path / "home", embedded_chain, embedded_chain.url)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with shop.serving() as program:
            url = await asyncio.to_thread(url_of, program)
            body = {"price": "0.01", "targetUrl": target.url, "credits": CREDITS}
            slug = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()["slug"]
            payment = buyer.sign((await buyer.ask("GET", f"{url}/{slug}")).json())

            async def kill(_request: Received, _writer: Writer) -> None:
                program.process.kill()

            target.answer = kill
            with pytest.raises(aiohttp.ClientError):
                await buyer.call(f"{url}/{slug}", payment)
            assert await asyncio.to_thread(program.process.wait, 10) == -signal.SIGKILL
            came("kill while the target works")
        target.answer = answer_ok
        with shop.serving() as program:
            url = await asyncio.to_thread(url_of, program)
            with closing(sqlite3.connect(shop.database)) as books:
                assert books.execute("SELECT state FROM calls").fetchall() == [("INTERRUPTED",)]
            answers = [await present(buyer, f"{url}/{slug}", payment) for _ in range(CREDITS)]
    assert [answer.status for answer in answers] == [200] * (CREDITS - 1) + [402]
    names = [request.header("x-request-id") for request in target.requests]
    assert len(names) == len(set(names)) == CREDITS
    await assert_nothing_lost(tmp_path, embedded_chain, paid=[authorization_in(payment)], sites=[shop.site])
