"""Settling on real chains: success once, its body, its options (specification 4.4; contract 5.1, 5.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import ChaosNode
from tests.hub.hub_under_test import NETWORK, HubUnderTest, new_payment
from tollkeeper.core.evm.encoding import SELECTOR_BALANCE_OF, SELECTOR_TRANSFER, checksum_address
from tollkeeper.hub.evm.family import EvmFamily
from tollkeeper.hub.evm.signing import EvmOrder, FeeTerms
from tollkeeper.hub.settlement.concurrent_payers import balance_beside
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallet
from tollkeeper.storage.engine.database import Statement

MANY = 110  # more of a payer's payments under way than are looked up at once


async def test_settlement_moves_the_money_and_answers_with_every_field(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest
) -> None:
    payment = new_payment(chain)
    before = chain.balance(chain.wallets.owner.address)
    answer = await hub_on_chain.settle(payment)
    assert answer.status == 200
    transaction = answer.body["transaction"]
    assert answer.body | {"timestamp": ""} == {
        "success": True,
        "status": "success",
        "transaction": transaction,
        "network": NETWORK,
        "amount": "10000",
        "payer": checksum_address(payment.authorization.payer),
        "errorReason": None,
        "apiVersion": "v1",
        "timestamp": "",
    }
    assert chain.balance(chain.wallets.owner.address) == before + 10_000
    assert chain.rpc.call("eth_getTransactionReceipt", transaction)["status"] == "0x1"
    assert answer.headers["X402-Version"] == "1"
    assert len(answer.headers["X-Request-Id"]) == 32


async def settle_two_hundred(hub: HubUnderTest, chain: ChainUnderTest) -> None:
    """At once, on one key: each is mined, in a transaction of its own."""
    payments = [new_payment(chain) for _ in range(200)]
    answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
    assert Counter((answer.status, answer.body.get("success")) for answer in answers) == {(200, True): 200}
    hashes = {answer.body["transaction"] for answer in answers}
    assert len(hashes) == 200
    nonces = sorted(int(chain.rpc.call("eth_getTransactionByHash", transaction)["nonce"], 16) for transaction in hashes)
    assert nonces == list(range(nonces[0], nonces[0] + 200))


async def test_two_hundred_concurrent_settlements_are_all_mined_with_dense_nonces(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    await settle_two_hundred(hub, embedded_chain)


async def test_two_hundred_concurrent_settlements_on_anvil_with_the_real_token_are_all_mined_with_dense_nonces(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    await settle_two_hundred(hub_on_anvil, anvil_fiat_token)


@pytest.mark.parametrize("callers", [100, 1000])
async def test_one_payment_has_one_success_and_otherwise_duplicates_with_its_hash(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, callers: int
) -> None:
    payment = new_payment(embedded_chain)
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    answers = await asyncio.gather(*(hub.settle(payment) for _ in range(callers)))
    won = [answer for answer in answers if answer.body.get("success") is True]
    assert len(won) == 1
    transaction = won[0].body["transaction"]
    outcomes = Counter(
        (answer.status, answer.body["status"], answer.reason, answer.body["transaction"]) for answer in answers
    )
    assert outcomes == {
        (200, "success", None, transaction): 1,
        (200, "failed", "duplicate_settlement", transaction): callers - 1,
    }
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 1


async def test_a_payment_settled_before_is_a_duplicate_also_under_other_requirements(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    first = await hub.settle(payment)
    again = await hub.post("/settle", payment.requiring(resource="https://other.example/"))
    assert (again.reason, again.body["transaction"]) == ("duplicate_settlement", first.body["transaction"])


async def test_a_more_generous_payment_settles_with_its_whole_value(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    answer = await hub.settle(new_payment(embedded_chain, value=10_001))
    assert (answer.body["success"], answer.body["amount"]) == (True, "10001")


async def test_use_db_id_puts_the_history_id_in_place_of_the_hash(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    answer = await hub.settle(payment, useDbId=True)
    assert answer.body["success"] is True
    bearer = await hub.login(embedded_chain.wallets.buyer)
    item = await hub.get(f"/api/v1/history/{answer.body['transaction']}", Authorization=bearer)
    assert (item.status, item.body["status"]) == (200, "success")
    status = await hub.get(payment.status_path)
    assert (status.body["id"], status.body["transaction"]) == (answer.body["transaction"], item.body["transactionHash"])


async def test_the_request_s_spelling_of_the_network_is_echoed(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    answer = await hub.post("/api/v1/settle", new_payment(embedded_chain).asking(confirm=True))
    assert (answer.body["network"], answer.body["success"]) == (NETWORK, True)


async def test_the_raw_transaction_and_every_transition_are_stored(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    answer = await hub.settle(payment)
    events = await hub.database.read(Statement("SELECT from_state, to_state FROM settlement_events ORDER BY version"))
    assert [(event["from_state"], event["to_state"]) for event in events] == [
        (None, "CLAIMED"),
        ("CLAIMED", "SIGNED"),
        ("SIGNED", "CONFIRMED"),
    ]
    (raw,) = await hub.database.read(Statement("SELECT hash, raw, signer_nonce FROM raw_transactions"))
    assert raw["hash"] == answer.body["transaction"]


async def test_without_confirm_the_answer_comes_once_a_node_took_it(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    answer = await hub.settle(payment, confirm=False, prefer="wait=0")
    assert (answer.status, answer.body["success"]) == (200, True)
    assert await hub.status(payment) == "pending"
    again = await hub.settle(payment, confirm=False, prefer="wait=0")
    assert (again.reason, again.body["transaction"]) == ("duplicate_settlement", answer.body["transaction"])
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    assert await hub.status(payment) == "success"


async def test_without_confirm_a_receipt_within_four_seconds_is_waited_for(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, confirm=False)).body["success"] is True
    assert await hub.status(payment) == "success"


async def test_with_confirm_an_unmined_transaction_is_pending_and_later_handed_out_once(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    pending = await hub.settle(payment, prefer="wait=1")
    assert (pending.status, pending.code) == (503, "SETTLEMENT_PENDING")
    assert pending.body["error"]["type"] == "payment"
    assert int(pending.headers["Retry-After"]) > 0
    details = pending.body["error"]["details"]
    assert details["statusUrl"] == "https://hub.example/hub" + payment.status_path
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    answers = await asyncio.gather(*(hub.settle(payment) for _ in range(20)))
    assert sum(answer.body["success"] for answer in answers) == 1
    assert {answer.body["transaction"] for answer in answers} == {details["transaction"]}


async def test_a_pending_success_is_not_handed_to_another_authorization_under_its_nonce(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """Of a larger value, say, which its server would enter in its books: only one of the two moves."""
    chain = embedded_chain
    made = new_payment(chain)
    larger = new_payment(chain, nonce=made.authorization.nonce, value=900_000)
    before = chain.balance(chain.wallets.owner.address)
    chain.rpc.call("evm_setAutomine", False)
    try:
        assert (await hub.settle(made, prefer="wait=0")).code == "SETTLEMENT_PENDING"
        asking = asyncio.create_task(hub.settle(larger, key="claim.1"))
        await asyncio.sleep(0.2)
    finally:
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")
    await hub.complete()
    answer = await asking
    assert (answer.body["success"], answer.reason) == (False, "duplicate_settlement")
    assert (await hub.settle(made)).body["success"] is True
    assert chain.balance(chain.wallets.owner.address) == before + 10_000


async def test_a_pending_success_is_not_handed_to_other_requirements(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    other = await hub.post("/settle", payment.requiring(resource="https://other.example/"))
    assert other.reason == "duplicate_settlement"
    assert (await hub.settle(payment)).body["success"] is True


async def test_a_success_waits_for_the_configured_depth(deep_hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain)
    assert (await deep_hub.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
    assert await deep_hub.status(payment) == "pending"
    embedded_chain.rpc.call("anvil_mine", hex(2))
    await deep_hub.complete()
    assert await deep_hub.status(payment) == "success"
    assert (await deep_hub.settle(payment)).body["success"] is True


async def test_a_token_s_lower_or_upper_case_address_is_the_same_asset(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    body = payment.requiring(asset="0x" + USDC_ADDRESS[2:].upper())
    assert (await hub.post("/settle", body | {"confirm": True})).body["success"] is True


async def test_nothing_is_settled_where_nothing_would_be_moved(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """It would cost the hub gas, and whoever asks for it nothing, not even a balance."""
    payment = new_payment(embedded_chain, value=0)
    nonce = embedded_chain.nonce(embedded_chain.wallets.relayer)
    asked = payment.requiring(maxAmountRequired="0")
    assert (await hub.post("/verify", asked)).reason == "invalid_exact_evm_payload_authorization_value"
    assert (await hub.post("/settle", asked)).reason == "invalid_exact_evm_payload_authorization_value"
    assert await hub.status(payment) == "unknown"
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == nonce


async def test_a_settlement_asks_for_its_payer_s_balance_only_beside_others_of_the_payer_s(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    asked: list[str] = []

    def note(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_call":
            asked.append(call["params"][0]["data"][2:10])
        return answer

    chaos.falsify = note
    payment = new_payment(embedded_chain)
    assert (await chaos_hub.post("/verify", payment.body)).body["isValid"] is True
    assert SELECTOR_BALANCE_OF.hex() in asked
    asked.clear()
    assert (await chaos_hub.settle(payment)).body["success"] is True
    assert asked == [SELECTOR_TRANSFER.hex()]  # its simulation

    embedded_chain.rpc.call("evm_setAutomine", False)
    try:
        value = embedded_chain.balance(embedded_chain.wallets.buyer.address)
        waiting = new_payment(embedded_chain)
        assert (await chaos_hub.settle(waiting, confirm=False, prefer="wait=0")).body["success"] is True
        asked.clear()
        excess = new_payment(embedded_chain, value=value)
        assert (await chaos_hub.settle(excess)).reason == "insufficient_funds"
        assert SELECTOR_BALANCE_OF.hex() in asked
        covered = new_payment(embedded_chain, value=value - 10_000)
        assert (await chaos_hub.settle(covered, confirm=False, prefer="wait=0")).body["success"] is True
    finally:
        embedded_chain.rpc.call("evm_setAutomine", True)
        embedded_chain.rpc.call("evm_mine")
    await chaos_hub.complete()
    for one in (waiting, covered):
        await chaos_hub.wait_for_status(one, "success")


async def test_a_payer_who_gets_money_and_signs_more_meanwhile_is_not_called_poor(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time what he holds was read before it, and what is under way after it."""
    chain, payer = embedded_chain, derive_wallet("payer who gets more")
    chain.mint(payer.address, 30_000)
    early, between, late = (new_payment(chain, signer=payer) for _ in range(3))
    simulate, read = EvmFamily.simulate, balance_beside  # what it read is older than it is
    reads = 0

    async def simulate_before(self: EvmFamily, order: EvmOrder, *, with_balance: bool) -> Any:
        terms = await simulate(self, order, with_balance=with_balance)
        assert isinstance(terms, FeeTerms)
        return replace(terms, balance=10_000) if order.key.nonce == nonce else terms

    async def read_before(order: EvmOrder, *given: Any) -> tuple[int, frozenset[str]]:
        nonlocal reads
        reads += 1
        balance, used = await read(order, *given)
        if reads > 1:
            return balance, used
        assert (await hub.settle(between, confirm=False, prefer="wait=0")).body["success"] is True
        return 20_000, used

    nonce = late.authorization.nonce
    chain.rpc.call("evm_setAutomine", False)
    try:
        assert (await hub.settle(early, confirm=False, prefer="wait=0")).body["success"] is True
        monkeypatch.setattr(EvmFamily, "simulate", simulate_before)
        monkeypatch.setattr("tollkeeper.hub.evm.family.balance_beside", read_before)
        answer = await hub.settle(late, confirm=False, prefer="wait=0")
        assert (answer.status, answer.reason, reads) == (200, None, 2)
    finally:
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")
    await hub.complete()
    for one in (early, between, late):
        assert await hub.status(one) == "success"


@pytest.mark.parametrize(("mined", "answered"), [(True, None), (False, "UNAVAILABLE")])
async def test_a_payer_s_many_mined_payments_are_not_taken_for_money_that_it_owes(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, *, mined: bool, answered: str | None
) -> None:
    """However many of them are not known to be mined yet; where that is not looked up, nobody is called poor."""
    chain, payer = embedded_chain, derive_wallet(f"payer of many, {mined}")
    chain.mint(payer.address, (MANY + 1) * 10_000)
    payments = [new_payment(chain, signer=payer) for _ in range(MANY)]
    chain.rpc.call("evm_setAutomine", False)
    try:
        await asyncio.gather(*(hub.settle(one, confirm=False, prefer="wait=0") for one in payments))
        if mined:
            while chain.balance(payer.address) > 10_000:
                chain.rpc.call("evm_mine")
        last = new_payment(chain, signer=payer, value=10_000 if mined else 20_000)
        answer = await hub.settle(last, confirm=False, prefer="wait=0")
        assert (answer.code if answer.status == 503 else answer.reason) == answered
    finally:
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")
    await hub.complete()
    for one in payments:
        assert await hub.status(one) == "success"
