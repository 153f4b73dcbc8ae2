"""`Idempotency-Key`: one attempt per key, its outcome for ever, and no other request under it (contract 5.2)."""

from __future__ import annotations

import asyncio

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import HubUnderTest, new_payment


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


async def test_a_failed_key_stays_failed_and_the_next_one_succeeds(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    poor = embedded_chain.wallets.owner
    payment = new_payment(embedded_chain, signer=poor, pay_to=embedded_chain.wallets.relayer.address)
    body = payment.requiring(payTo=embedded_chain.wallets.relayer.address) | {"confirm": True}
    assert (await hub.post("/settle", body, Idempotency_Key="claim.1")).reason == "insufficient_funds"
    embedded_chain.mint(poor.address, 10_000)
    assert (await hub.post("/settle", body, Idempotency_Key="claim.1")).reason == "insufficient_funds"
    assert (await hub.post("/settle", body, Idempotency_Key="claim.2")).body["success"] is True
    assert (await hub.post("/settle", body, Idempotency_Key="claim.1")).reason == "insufficient_funds"


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
