"""`/transfer`: any recipient, once, refusals as 400s of specification 7 (specification 4.4; contract 5.1, 5.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.gateway_requests import settle_for_gateway
from tests.hub.hub_under_test import NETWORK, Answer, HubUnderTest, TestPayment, in_the_pool, new_payment
from tollkeeper.core.evm.encoding import checksum_address, transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

STRANGER = "0x" + "5a" * 20


def body_of(payment: TestPayment, **fields: Any) -> dict[str, Any]:
    """A transfer of that payment with confirmation; a field of None is left out."""
    plain = {
        "payload": payment.body["paymentPayload"]["payload"],
        "network": NETWORK,
        "asset": USDC_ADDRESS,
        "confirm": True,
        **fields,
    }
    return {name: value for name, value in plain.items() if value is not None}


async def transfer(hub: HubUnderTest, payment: TestPayment, *, headers: Any = None, **fields: Any) -> Answer:
    return await hub.send("POST", "/transfer", json=body_of(payment, **fields), headers=headers or {})


def error_of(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.code, answer.body["error"]["type"]


async def test_a_transfer_to_anybody_moves_the_money_on_every_chain(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest
) -> None:
    payment = new_payment(chain, pay_to=STRANGER, value=123_456)
    answer = await transfer(hub_on_chain, payment)
    transaction = answer.body["transaction"]
    assert answer.body | {"timestamp": ""} == {
        "success": True,
        "status": "success",
        "transaction": transaction,
        "network": NETWORK,
        "amount": "123456",
        "payer": checksum_address(payment.authorization.payer),
        "errorReason": None,
        "apiVersion": "v1",
        "timestamp": "",
    }
    assert chain.balance(STRANGER) == 123_456
    assert chain.rpc.call("eth_getTransactionReceipt", transaction)["status"] == "0x1"


async def test_a_transfer_is_a_transfer_in_the_history_of_both_sides(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    answer = await transfer(hub, payment, purchaseData={"slug": "forged"})
    for wallet in (embedded_chain.wallets.buyer, embedded_chain.wallets.owner):
        bearer = await hub.login(wallet)
        (item,) = (await hub.get("/api/v1/history?limit=10", Authorization=bearer)).body["history"]
        assert (item["type"], item["status"], item["transactionHash"]) == (
            "transfer",
            "success",
            answer.body["transaction"],
        )
        assert "purchaseData" not in item
        assert item["x402Data"]["maxAmountRequired"] == item["x402Data"]["value"] == "10000"


async def test_a_hundred_callers_move_one_payment_once(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain, pay_to=STRANGER)
    calls = [transfer(hub, payment) for _ in range(50)]
    settles = [hub.settle(payment) for _ in range(50)]
    before = embedded_chain.nonce(embedded_chain.wallets.relayer)
    answers = await asyncio.gather(*calls, *settles)
    assert sum(answer.status == 200 and answer.body["success"] for answer in answers) == 1
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == before + 1
    assert embedded_chain.balance(STRANGER) == 10_000


async def test_a_payment_that_was_settled_or_transferred_before_is_refused_with_its_transaction(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    settled, transferred = new_payment(embedded_chain), new_payment(embedded_chain)
    first = await hub.settle(settled)
    second = await transfer(hub, transferred)
    for payment, transaction in ((settled, first), (transferred, second)):
        again = await transfer(hub, payment)
        assert error_of(again) == (400, "NONCE_ALREADY_USED", "payment")
        assert again.body["error"]["details"]["transaction"] == transaction.body["transaction"]
    assert (await hub.settle(transferred)).reason == "duplicate_settlement"


async def test_a_success_that_nobody_was_given_goes_to_the_kind_of_request_that_began_it(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    pending = await transfer(hub, payment, headers={"Prefer": "wait=0"})
    assert error_of(pending) == (503, "SETTLEMENT_PENDING", "payment")
    assert int(pending.headers["Retry-After"]) > 0
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    assert (await hub.settle(payment)).reason == "duplicate_settlement"
    again = await transfer(hub, payment)
    details = pending.body["error"]["details"]
    assert (again.status, again.body["transaction"]) == (200, details["transaction"])
    assert error_of(await transfer(hub, payment)) == (400, "NONCE_ALREADY_USED", "payment")


async def test_without_confirm_the_answer_comes_once_a_node_took_it(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    answer = await transfer(hub, payment, confirm=None, headers={"Prefer": "wait=0"})
    assert (answer.status, answer.body["status"]) == (200, "success")
    assert await hub.status(payment) == "pending"


async def test_a_key_shows_its_outcome_again_and_takes_no_other_request(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    headers = {"Idempotency-Key": "mine"}
    answers = [await transfer(hub, payment, headers=headers) for _ in range(3)]
    assert {(answer.status, answer.body["transaction"]) for answer in answers} == {
        (200, answers[0].body["transaction"])
    }
    for other in (
        await transfer(hub, new_payment(embedded_chain), headers=headers),
        await transfer(hub, payment, headers=headers, confirm=False),
        await hub.settle(payment, key="mine"),
    ):
        assert error_of(other) == (409, "CONFLICT", "validation")


async def test_the_database_id_stands_in_for_the_hash_where_it_is_asked_for(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    answer = await transfer(hub, new_payment(embedded_chain), useDbId=True)
    (row,) = await hub.database.read(Statement("SELECT id FROM settlements"))
    assert answer.body["transaction"] == row["id"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"network": None}, "MISSING_PARAMETER"),
        ({"payload": None}, "MISSING_PARAMETER"),
        ({"asset": None}, "MISSING_PARAMETER"),
        ({"network": 5}, "INVALID_PARAMETER"),
        ({"payload": []}, "INVALID_PARAMETER"),
        ({"confirm": "yes"}, "INVALID_PARAMETER"),
        ({"x402Version": 2}, "INVALID_PARAMETER"),
        ({"x402Version": True}, "INVALID_PARAMETER"),
        ({"network": "ethereum"}, "INVALID_NETWORK"),
        ({"network": "base"}, "INVALID_NETWORK"),
        ({"network": "solana-devnet", "payload": {"transaction": "AQ=="}}, "INVALID_NETWORK"),
        ({"asset": "0x12"}, "INVALID_ADDRESS"),
        ({"asset": "0x036Cbd53842c5426634e7929541eC2318f3dCF7e"}, "INVALID_ADDRESS"),
        ({"recipient": "somebody"}, "INVALID_ADDRESS"),
        ({"amount": "1.5"}, "INVALID_AMOUNT"),
        ({"amount": -1}, "INVALID_AMOUNT"),
        ({"amount": True}, "INVALID_AMOUNT"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_code(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, fields: dict[str, Any], code: str
) -> None:
    payment = new_payment(embedded_chain)
    body = {name: value for name, value in (body_of(payment) | fields).items() if value is not None}
    answer = await hub.post("/transfer", body)
    assert error_of(answer) == (400, code, "validation")
    assert await hub.database.read(Statement("SELECT id FROM settlements")) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"asset": STRANGER}, "PAYMENT_INVALID"),
        ({"amount": "9999"}, "PAYMENT_INVALID"),
        ({"recipient": STRANGER}, "PAYMENT_INVALID"),
        ({"payload": {"transaction": "AQ=="}}, "PAYMENT_INVALID"),
    ],
)
async def test_what_contradicts_the_signed_transfer_is_refused(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, fields: dict[str, Any], code: str
) -> None:
    answer = await transfer(hub, new_payment(embedded_chain), **fields)
    assert error_of(answer) == (400, code, "payment")


async def test_what_repeats_the_signed_transfer_is_taken(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    recipient = checksum_address(embedded_chain.wallets.owner.address)
    answer = await transfer(hub, new_payment(embedded_chain), amount="10000", recipient=recipient, x402Version=1)
    assert answer.status == 200


async def test_refused_transfers_have_the_code_of_their_cause_and_leave_no_row(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    now = embedded_chain.now()
    poor = embedded_chain.wallets.owner
    used = new_payment(embedded_chain, pay_to=STRANGER)
    embedded_chain.send_and_wait(
        embedded_chain.wallets.faucet, USDC_ADDRESS, transfer_calldata_of(embedded_chain, used)
    )
    refused = [
        await transfer(hub, new_payment(embedded_chain, signature=bytes(64) + b"\x1b")),
        await transfer(hub, new_payment(embedded_chain, value=0)),
        await transfer(hub, new_payment(embedded_chain, signer=poor, pay_to=STRANGER)),
        await transfer(hub, new_payment(embedded_chain, valid_before=now - 1)),
        await transfer(hub, new_payment(embedded_chain, valid_after=now + 100_000)),
        await transfer(hub, used),
    ]
    assert [error_of(answer) for answer in refused] == [
        (400, "INVALID_SIGNATURE", "payment"),
        (400, "INVALID_AMOUNT", "validation"),
        (400, "INSUFFICIENT_FUNDS", "payment"),
        (400, "PAYMENT_EXPIRED", "payment"),
        (400, "PAYMENT_INVALID", "payment"),
        (400, "NONCE_ALREADY_USED", "payment"),
    ]
    assert (
        refused[-1].body["error"]["details"]["transaction"]
        == embedded_chain.rpc.call("eth_getBlockByNumber", "latest", False)["transactions"][0]
    )
    assert await hub.database.read(Statement("SELECT id FROM settlements")) == []


def transfer_calldata_of(chain: ChainUnderTest, payment: TestPayment) -> bytes:
    """The calldata that somebody else relays."""
    return transfer_calldata(payment.authorization, chain.sign(payment.authorization))


async def test_a_lost_answer_of_the_node_is_pending_and_never_a_failure(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on("eth_sendRawTransaction", Act.LOSE_ANSWER, times=1)
    chaos.act = _cutting_looks(chaos.act)
    payment = new_payment(embedded_chain)
    pending = await transfer(chaos_hub, payment, headers={"Prefer": "wait=0"})
    assert error_of(pending) == (503, "SETTLEMENT_PENDING", "payment")
    chaos.calm()
    await chaos_hub.complete()
    again = await transfer(chaos_hub, payment)
    assert (again.status, again.body["transaction"]) == (200, pending.body["error"]["details"]["transaction"])


def _cutting_looks(act: Any) -> Any:
    looks = {"eth_getTransactionReceipt", "eth_getTransactionByHash"}
    return lambda methods: Act.CUT if looks & set(methods) else act(methods)


async def test_a_transfer_that_failed_on_the_chain_answers_failed_with_its_hash(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """The buyer's balance is gone between the simulation and the block."""
    payment = new_payment(embedded_chain, value=embedded_chain.balance(embedded_chain.wallets.buyer.address))
    embedded_chain.rpc.call("evm_setAutomine", False)
    drain = new_payment(embedded_chain, pay_to=STRANGER)
    spent = transfer_calldata_of(embedded_chain, drain)
    embedded_chain.send(
        embedded_chain.wallets.faucet,
        USDC_ADDRESS,
        spent,
        max_fee_per_gas=50_000_000_000,
        max_priority_fee_per_gas=40_000_000_000,
    )
    signed_before = embedded_chain.nonce(embedded_chain.wallets.relayer)
    waiting = asyncio.ensure_future(transfer(hub, payment))
    await in_the_pool(embedded_chain, signed_before + 1)
    embedded_chain.rpc.call("evm_mine")
    answer = await waiting
    assert (answer.status, answer.body["status"], answer.body["success"]) == (200, "failed", False)
    receipt = embedded_chain.rpc.call("eth_getTransactionReceipt", answer.body["transaction"])
    assert receipt["status"] == "0x0"


async def test_both_paths_take_transfers_and_no_other_method(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    answers = [await hub.post(path, body_of(new_payment(embedded_chain))) for path in ("/transfer", "/api/v1/transfer")]
    assert Counter(answer.status for answer in answers) == {200: 2}
    refused = await hub.get("/transfer")
    assert (refused.status, refused.headers["Allow"]) == (405, "POST")


async def test_a_network_whose_node_is_silent_is_unavailable(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.act = lambda _methods: Act.CUT
    for account in chaos_hub.hub.accounts.values():
        account.chain.asset = None
    assert error_of(await transfer(chaos_hub, new_payment(embedded_chain))) == (503, "UNAVAILABLE", "server")


async def test_a_gateway_s_purchase_data_that_is_none_leaves_its_transfer_as_it_is(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = body_of(new_payment(embedded_chain), purchaseData="p-1")
    answer = await settle_for_gateway(trusting_hub, body, "claim.1", "/transfer")
    assert (answer.status, answer.body["success"]) == (200, True)
