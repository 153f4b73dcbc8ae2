"""SIGKILL of a real hub process around each call to its node; the next one finishes what it left (security F1-F5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_process import HubProcess, settle_at
from tests.hub.hub_under_test import new_payment, run_hub


@pytest.mark.parametrize(
    ("moment", "method"),
    [
        ("before", "eth_sendRawTransaction"),
        ("after", "eth_sendRawTransaction"),
        ("before", "eth_getTransactionReceipt"),
        ("after", "eth_getTransactionReceipt"),
    ],
)
async def test_a_hub_killed_once_it_has_signed_settles_exactly_once(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest, moment: str, method: str
) -> None:
    payment = new_payment(embedded_chain)
    before = embedded_chain.balance(embedded_chain.wallets.owner.address)
    nonce = embedded_chain.nonce(embedded_chain.wallets.relayer)
    with await asyncio.to_thread(HubProcess, tmp_path, chaos.url) as process:

        def kill(methods: list[str]) -> None:
            if method in methods:
                process.kill()

        def kill_instead(methods: list[str]) -> Act:
            kill(methods)
            return Act.CUT if method in methods else Act.PASS

        if moment == "before":
            chaos.act = kill_instead
        else:
            chaos.after_pass = kill
        assert await settle_at(process.url, payment.asking(confirm=True)) is None
    chaos.calm()
    chaos.after_pass = lambda _methods: None
    async with run_hub(tmp_path, embedded_chain, completer_interval_seconds=0.05) as hub:
        await hub.wait_for_status(payment, "success")
        first, second = await hub.settle(payment), await hub.settle(payment)
    assert (first.body["success"], second.reason) == (True, "duplicate_settlement")
    assert embedded_chain.balance(embedded_chain.wallets.owner.address) == before + 10_000
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == nonce + 1


async def test_a_hub_killed_before_it_signed_has_charged_nobody_and_knows_nothing(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    with await asyncio.to_thread(HubProcess, tmp_path, chaos.url) as process:

        def kill(methods: list[str]) -> Act:
            if "eth_call" not in methods:
                return Act.PASS
            process.kill()
            return Act.CUT

        chaos.act = kill
        assert await settle_at(process.url, payment.asking(confirm=True)) is None
    chaos.calm()
    async with run_hub(tmp_path, embedded_chain) as hub:
        await hub.complete()
        assert await hub.status(payment) == "unknown"
        assert not embedded_chain.is_used(payment.authorization.payer, payment.authorization.nonce)
        assert (await hub.settle(payment)).body["success"] is True


async def test_a_hub_killed_under_load_loses_and_doubles_nothing(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payments = [new_payment(embedded_chain) for _ in range(60)]
    before = embedded_chain.balance(embedded_chain.wallets.owner.address)
    done = 0
    for round_number in range(3):
        with await asyncio.to_thread(HubProcess, tmp_path, chaos.url) as process:
            sends = 0

            def kill_at_fifth_send(methods: list[str], victim: HubProcess = process) -> None:
                nonlocal sends
                sends += methods.count("eth_sendRawTransaction")
                if sends == 5:
                    victim.kill()

            chaos.after_pass = kill_at_fifth_send
            batch = payments[20 * round_number : 20 * round_number + 20]
            statuses = await asyncio.gather(
                *(settle_at(process.url, payment.asking(confirm=True)) for payment in batch)
            )
            done += statuses.count(200)
            assert None in statuses
    chaos.after_pass = lambda _methods: None
    async with run_hub(tmp_path, embedded_chain, completer_interval_seconds=0.05) as hub:
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert {answer.status for answer in answers} == {200}
        # Whoever had an answer is a duplicate now, and so is who was killed between the record and the answer.
        assert sum(answer.body["success"] for answer in answers) + done <= 60
        assert {await hub.status(payment) for payment in payments} == {"success"}
    assert embedded_chain.balance(embedded_chain.wallets.owner.address) == before + 60 * 10_000
