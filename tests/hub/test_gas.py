"""The gas of an hour, the share of trusted gateways, and the signer's money (contract 5.2; security A-24, A-26)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest_asyncio
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import ChaosNode
from tests.hub.gateway_requests import TRUSTED, request_of, signed
from tests.hub.hub_under_test import NETWORK, HubUnderTest, new_payment, run_hub
from tollkeeper.api import clock_ms
from tollkeeper.core.http.client_addresses import ClientAddresses
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

GAS_LIMIT = 150_000
BUDGET = {"gas_budget_per_hour": 30 * GAS_LIMIT}


@pytest_asyncio.fixture
async def small_hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Thirty settlements in an hour; half of them are kept for gateways. Callers are behind a proxy that is trusted."""
    clients = ClientAddresses((IPv4Network("127.0.0.0/8"),))
    async with run_hub(tmp_path, embedded_chain, trusted_keys=TRUSTED, config=BUDGET, clients=clients) as running:
        yield running


async def by_gateway(hub: HubUnderTest, chain: ChainUnderTest, name: str, owner: str = "") -> bool:
    """Whether a sale of that owner's is settled; where not, its gas is used up."""
    body = json.dumps({**json.loads(request_of(new_payment(chain))), **({"tenant": owner} if owner else {})}).encode()
    answer = await hub.send("POST", "/settle", data=body, headers=signed(body, idempotency_key=name))
    assert answer.status == 200 or answer.code == "UNAVAILABLE"
    return answer.status == 200


async def by_stranger(hub: HubUnderTest, chain: ChainUnderTest, address: str) -> bool:
    answer = await hub.post("/settle", new_payment(chain).asking(confirm=True), X_Forwarded_For=address)
    assert answer.status == 200 or (answer.code, answer.body["error"]["type"]) == ("UNAVAILABLE", "server")
    assert answer.status == 200 or int(answer.headers["Retry-After"]) > 0
    assert answer.status == 200 or "the operator's setting gas_budget_per_hour" in answer.body["error"]["message"]
    return answer.status == 200


async def test_of_the_strangers_half_no_address_takes_more_than_half_of_what_it_leaves(
    small_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    async def settled(address: str) -> int:
        return sum(await asyncio.gather(*(by_stranger(small_hub, embedded_chain, address) for _ in range(20))))

    assert [await settled(address) for address in ("192.0.2.1", "192.0.2.2", "2001:db8::1")] == [5, 3, 2]
    assert await settled("2001:db8::2") == 0, "one network of 64 bits is one caller's"
    for number in range(9):
        await settled(f"198.51.100.{number}")
    assert await counted_gas(small_hub, is_trusted=False) <= 15 * GAS_LIMIT


async def test_no_owner_s_sales_take_the_gas_of_another_s(
    small_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """Sales to oneself for next to nothing cost their owner nothing, and the hub its gas."""
    made = itertools.count()

    async def sold(owner: str) -> int:
        sales = (by_gateway(small_hub, embedded_chain, f"claim-{next(made)}.1", owner) for _ in range(20))
        return sum(await asyncio.gather(*sales))

    with capture_logs() as lines:
        assert [await sold(owner) for owner in ("0xgreedy", "0xhonest", "")] == [10, 6, 4]
    told = [line for line in lines if line["event"] == "gas_share_used_up"]
    assert told[0]["tenant"] == "gateway https://gate.example 0xgreedy"
    assert await by_stranger(small_hub, embedded_chain, "192.0.2.1")


async def counted_gas(hub: HubUnderTest, *, is_trusted: bool) -> int:
    statement = Statement(
        "SELECT SUM(gas) AS gas FROM gas_spent WHERE is_trusted = :is_trusted", {"is_trusted": is_trusted}
    )
    return int((await hub.database.read(statement))[0]["gas"])


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
    hub.recovery.check_interval_seconds = 0
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
