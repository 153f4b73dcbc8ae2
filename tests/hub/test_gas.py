"""The gas of an hour, the share of trusted gateways, and the signer's money (contract 5.2; security A-24, A-26)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import ChaosNode
from tests.hub.gateway_requests import TRUSTED, request_of, signed
from tests.hub.hub_under_test import NETWORK, HubUnderTest, new_payment, run_hub
from tollkeeper.api import clock_ms
from tollkeeper.sandbox.genesis import USDC_ADDRESS

GAS_LIMIT = 150_000
BUDGET = {"gas_budget_per_hour": 10 * GAS_LIMIT}


@pytest_asyncio.fixture
async def small_hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Ten settlements in an hour; half of them are kept for a gateway."""
    async with run_hub(tmp_path, embedded_chain, trusted_keys=TRUSTED, config=BUDGET) as running:
        yield running


async def by_gateway(hub: HubUnderTest, chain: ChainUnderTest, name: str) -> tuple[int, Any]:
    body = request_of(new_payment(chain))
    answer = await hub.send("POST", "/settle", data=body, headers=signed(body, idempotency_key=name))
    return answer.status, answer.body.get("success")


async def test_strangers_use_half_and_a_trusted_gateway_all_that_is_left(
    small_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    answers = await asyncio.gather(*(small_hub.settle(new_payment(embedded_chain)) for _ in range(40)))
    assert Counter(answer.status for answer in answers) == {200: 5, 503: 35}
    refused = next(answer for answer in answers if answer.status == 503)
    assert (refused.code, refused.body["error"]["type"]) == ("UNAVAILABLE", "server")
    assert int(refused.headers["Retry-After"]) > 0
    sold = await asyncio.gather(*(by_gateway(small_hub, embedded_chain, f"claim-{index}.1") for index in range(8)))
    assert Counter(sold) == {(200, True): 5, (503, None): 3}


async def test_a_token_that_is_not_configured_is_never_asked_and_costs_nothing(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    burner = "0x" + "6a5" * 13 + "6"
    chain.rpc.call("anvil_setCode", burner, "0x5b600056")  # burns all gas that it is given
    asked: list[str] = []

    def keep(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        asked.append(json.dumps(call))
        return answer

    chaos.falsify = keep
    nonce = chain.nonce(chain.wallets.relayer)
    payment = new_payment(chain)
    for path in ("/verify", "/settle"):
        answer = await chaos_hub.post(path, payment.requiring(asset=burner))
        assert answer.reason == "invalid_payment_requirements"
    payload = payment.body["paymentPayload"]["payload"]
    answer = await chaos_hub.post("/transfer", {"network": NETWORK, "asset": burner, "payload": payload})
    assert answer.status == 400
    assert chain.nonce(chain.wallets.relayer) == nonce
    assert not [call for call in asked if burner[2:] in call.lower()]


async def test_transfers_count_too(small_hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    for expected in (*[200] * 5, 503):
        payment = new_payment(embedded_chain)
        payload = payment.body["paymentPayload"]["payload"]
        answer = await small_hub.post("/transfer", {"network": NETWORK, "asset": USDC_ADDRESS, "payload": payload})
        assert answer.status == expected


async def test_a_gateways_transfers_are_strangers(small_hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    """Whoever asks a gateway for one is anybody."""

    async def transfer(name: str) -> int:
        payload = new_payment(embedded_chain).body["paymentPayload"]["payload"]
        body = json.dumps({"network": NETWORK, "asset": USDC_ADDRESS, "payload": payload}).encode()
        headers = signed(body, path="/transfer", idempotency_key=name)
        return (await small_hub.send("POST", "/transfer", data=body, headers=headers)).status

    assert [await transfer(f"free-{number}") for number in range(6)] == [*[200] * 5, 503]


async def test_refused_and_repeated_payments_cost_no_budget(
    small_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    poor = [new_payment(embedded_chain, value=10**15) for _ in range(20)]
    for payment in poor:
        assert (await small_hub.settle(payment)).reason == "insufficient_funds"
    payment = new_payment(embedded_chain)
    await asyncio.gather(*(small_hub.settle(payment, key=f"other-{index}") for index in range(20)))
    for _ in range(4):
        assert (await small_hub.settle(new_payment(embedded_chain))).body["success"] is True


async def test_without_trusted_gateways_the_budget_is_everybody_s_and_a_start_remembers_it(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with run_hub(tmp_path, embedded_chain, config=BUDGET) as hub:
        for _ in range(7):
            assert (await hub.settle(new_payment(embedded_chain))).body["success"] is True
    async with run_hub(tmp_path, embedded_chain, config=BUDGET) as hub:
        for expected in (200, 200, 200, 503):
            assert (await hub.settle(new_payment(embedded_chain))).status == expected
    later = clock_ms() + 3_700_000
    async with run_hub(tmp_path, embedded_chain, config=BUDGET, now_ms=lambda: later) as hub:
        payment = new_payment(embedded_chain, valid_before=embedded_chain.now() + 7200)
        assert (await hub.settle(payment)).body["success"] is True


async def test_a_signer_that_runs_low_is_told_once_and_one_without_money_is_a_problem(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    relayer = embedded_chain.wallets.relayer.address
    chain = hub.account.chain
    fees = await chain.fees((await chain.latest_block()).base_fee_wei)
    hub.completer.check_interval_seconds = 0
    await hub.complete()  # the pass of the start is over, too
    told = []
    for settlements in (50, 50, 0, 1000):
        embedded_chain.rpc.call("anvil_setBalance", relayer, hex(settlements * fees.max_fee_per_gas * GAS_LIMIT))
        await asyncio.sleep(2.1)  # the balance is remembered for about a block
        with capture_logs() as logs:
            await hub.complete()
        told.append([line["event"] for line in logs if "gas" in line["event"]])
        problems = hub.hub.shortages()
        assert problems == ([] if settlements else [f"{NETWORK}: the signer {relayer} has no gas money"])
        answer = await hub.settle(new_payment(embedded_chain))
        assert answer.status == (200 if settlements else 503)
    assert told == [["signer_low_on_gas"], [], ["signer_without_gas"], []]
