"""`Idempotency-Key`: one attempt per key, its outcome for ever, and no other request under it (contract 5.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.chains.batching import payers
from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.gateway_requests import settle_for_gateway
from tests.hub.hub_under_test import HubUnderTest, new_payment
from tollkeeper.storage.engine.database import Statement


async def test_a_key_shows_its_success_again_also_after_others_asked(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    first = await hub.settle(payment, key="claim.1")
    assert (await hub.settle(payment)).reason == "duplicate_settlement"
    for _ in range(3):
        again = await hub.settle(payment, key="claim.1")
        assert (again.body["success"], again.body["transaction"]) == (True, first.body["transaction"])


async def test_a_later_key_shows_the_duplicate_that_it_was_told(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    first = await hub.settle(payment, key="claim.1")
    for _ in range(2):
        other = await hub.settle(payment, key="other.1")
        assert (other.reason, other.body["transaction"]) == ("duplicate_settlement", first.body["transaction"])


@pytest.mark.parametrize("difference", ["payment", "requirements", "confirm", "useDbId", "purchaseData"])
async def test_a_key_with_another_request_is_a_conflict(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, difference: str
) -> None:
    payment = new_payment(embedded_chain)
    await hub.settle(payment, key="claim.1")
    others = {
        "payment": new_payment(embedded_chain).asking(confirm=True),
        "requirements": payment.requiring(resource="https://other.example") | {"confirm": True},
        "confirm": payment.asking(confirm=False),
        "useDbId": payment.asking(confirm=True, useDbId=True),
        "purchaseData": payment.asking(confirm=True, purchaseData={"slug": "x"}),
    }
    answer = await hub.post("/settle", others[difference], Idempotency_Key="claim.1")
    assert (answer.status, answer.code) == (409, "CONFLICT")


async def test_a_key_s_request_may_be_spelled_otherwise(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain)
    await hub.settle(payment, key="claim.1")
    body = dict(reversed(payment.asking(confirm=True, useDbId=False).items()))
    assert (await hub.post("/settle", body, Idempotency_Key="claim.1")).body["success"] is True


async def test_callers_with_one_key_all_get_its_success(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain)
    answers = await asyncio.gather(*(hub.settle(payment, key="claim.1") for _ in range(50)))
    assert {(answer.status, answer.body["success"]) for answer in answers} == {(200, True)}
    assert len({answer.body["transaction"] for answer in answers}) == 1


async def test_callers_with_keys_of_their_own_get_one_success(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    answers = await asyncio.gather(*(hub.settle(payment, key=f"claim-{index}.1") for index in range(50)))
    assert sum(answer.body["success"] for answer in answers) == 1
    again = await asyncio.gather(*(hub.settle(payment, key=f"claim-{index}.1") for index in range(50)))
    assert [answer.body["success"] for answer in again] == [answer.body["success"] for answer in answers]


def of_the_poor(chain: ChainUnderTest) -> dict[str, Any]:
    """A request to settle what its payer does not hold yet."""
    payee = chain.wallets.relayer.address
    payment = new_payment(chain, signer=chain.wallets.owner, pay_to=payee)
    return payment.requiring(payTo=payee) | {"confirm": True}


async def test_a_gateway_s_failed_key_stays_failed_and_the_next_one_succeeds(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    hub, body = trusting_hub, of_the_poor(embedded_chain)
    assert (await settle_for_gateway(hub, body, "claim.1")).reason == "insufficient_funds"
    embedded_chain.mint(embedded_chain.wallets.owner.address, 10_000)
    assert (await settle_for_gateway(hub, body, "claim.1")).reason == "insufficient_funds"
    assert (await settle_for_gateway(hub, body, "claim.2")).body["success"] is True
    assert (await settle_for_gateway(hub, body, "claim.1")).reason == "insufficient_funds"


async def test_a_stranger_s_refusal_leaves_no_row_and_another_key_is_judged_anew(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = of_the_poor(embedded_chain)
    transfer = {"network": body["paymentPayload"]["network"], **body["paymentPayload"]}
    transfer["asset"] = body["paymentRequirements"]["asset"]
    for path, asked in (("/settle", body), ("/transfer", transfer)):
        await hub.post(path, asked, Idempotency_Key="claim.1")
    assert await hub.database.read(Statement("SELECT * FROM idempotency")) == []
    embedded_chain.mint(embedded_chain.wallets.owner.address, 10_000)
    assert (await hub.post("/settle", body, Idempotency_Key="claim.1")).reason == "insufficient_funds", "for a minute"
    for _ in range(2):
        assert (await hub.post("/settle", body, Idempotency_Key="claim.2")).body["success"] is True
    assert (await hub.post("/settle", body, Idempotency_Key="claim.3")).reason == "duplicate_settlement"


async def test_a_key_is_its_payer_s_whoever_took_the_same_words_before(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    thief, honest = payers(embedded_chain, 2)
    assert (await hub.settle(new_payment(embedded_chain, signer=thief), key="order-1001")).body["success"] is True
    payment = new_payment(embedded_chain, signer=honest)
    for _ in range(2):
        assert (await hub.settle(payment, key="order-1001")).body["success"] is True
    other = await hub.settle(new_payment(embedded_chain, signer=honest), key="order-1001")
    assert (other.status, other.code) == (409, "CONFLICT")


@pytest.mark.parametrize("is_before", [True, False])
async def test_who_did_not_sign_takes_and_learns_nothing_of_a_payer_s_key(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, *, is_before: bool
) -> None:
    payment = new_payment(embedded_chain)
    forged = new_payment(embedded_chain, signature=bytes(64) + b"\x1b")
    if not is_before:
        assert (await hub.settle(payment, key="order-1001")).body["success"] is True
    told = await hub.settle(forged, key="order-1001")
    assert (told.status, told.reason) == (200, "invalid_exact_evm_payload_signature")
    assert (await hub.settle(payment, key="order-1001")).body["success"] is True


async def test_a_stranger_takes_no_key_of_a_gateway_s_next_attempt(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    thief, buyer = payers(embedded_chain, 2)
    for key in ("p-1.1", "p-1.2"):
        assert (await trusting_hub.settle(new_payment(embedded_chain, signer=thief), key=key)).body["success"] is True
        body = new_payment(embedded_chain, signer=buyer).asking(confirm=True)
        assert (await settle_for_gateway(trusting_hub, body, key)).body["success"] is True
    taken = await trusting_hub.settle(new_payment(embedded_chain, signer=buyer), key="p-1.2")
    assert taken.body["success"] is True, "nor does the gateway take a payer's"


async def test_a_pending_key_waits_for_its_outcome(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on("eth_sendRawTransaction", Act.CUT)
    payment = new_payment(embedded_chain)
    pending = await chaos_hub.settle(payment, key="claim.1", prefer="wait=0")
    assert pending.code == "SETTLEMENT_PENDING"
    chaos.calm()
    waiting = asyncio.ensure_future(chaos_hub.settle(payment, key="claim.1"))
    await asyncio.sleep(0.1)
    await chaos_hub.complete()
    answer = await waiting
    assert answer.body["transaction"] == pending.body["error"]["details"]["transaction"]
    assert answer.body["success"] is True
    assert (await chaos_hub.settle(payment)).reason == "duplicate_settlement"


async def test_a_key_that_was_given_a_pending_success_shows_it_again(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    for _ in range(2):
        assert (await hub.settle(payment, key="late.1")).body["success"] is True
    assert (await hub.settle(payment)).reason == "duplicate_settlement"


async def test_all_who_ask_with_one_key_for_a_pending_success_get_it(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    asking = [asyncio.create_task(hub.settle(payment, key="late.1")) for _ in range(5)]
    await asyncio.sleep(0.2)
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    assert [(await one).body["success"] for one in asking] == [True] * 5
    assert (await hub.settle(payment, key="later.1")).reason == "duplicate_settlement"


@pytest.mark.parametrize("key", ["", "a" * 256, "with space", "ä"])
async def test_an_unreadable_key_is_refused(hub: HubUnderTest, embedded_chain: ChainUnderTest, key: str) -> None:
    answer = await hub.settle(new_payment(embedded_chain), key=key)
    assert (answer.status, answer.code) == (400, "INVALID_PARAMETER")


async def test_a_key_of_full_length_is_taken(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    assert (await hub.settle(new_payment(embedded_chain), key="a" * 255)).body["success"] is True
