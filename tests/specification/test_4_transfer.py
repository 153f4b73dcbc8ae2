"""Specification 4.1 and 4.4: the hub's transfer and the gateway's direct transfer."""

from __future__ import annotations

import asyncio

from tests.specification.client import Json, Wallet, header
from tests.specification.rows import row
from tests.specification.settling import empty, paused_mining, sent
from tests.specification.world import World


def direct_of(body: Json) -> tuple[Json, Json]:
    """The gateway's body of that transfer, and its payment payload."""
    payment = {"x402Version": 1, "scheme": "exact", "network": body["network"], "payload": body["payload"]}
    return {"network": body["network"], **body["payload"]}, payment


@row("4.1-transfer")
async def test_a_direct_transfer_is_asked_for_by_a_402_and_made_with_a_payment(world: World) -> None:
    recipient = Wallet().address
    direct, payment = direct_of(world.moving(2_500_000, recipient=recipient))
    asked = await world.gateway("POST", "/api/v1/transfer", json=direct)
    assert (asked.status, asked.headers["x402-version"]) == (402, "1")
    assert asked.body["x402"] == {"token": "USDC", "amount": "2.5", "address": recipient}
    assert asked.body["accepts"][0]["maxAmountRequired"] == "2500000"
    assert await world.balance(recipient) == 0
    paid = {"X-Payment": header(payment)}
    answer = await world.gateway("POST", "/api/v1/transfer", json=direct, headers=paid)
    assert (answer.status, answer.body["status"], answer.body["amount"]) == (200, "success", "2500000")
    assert answer.confirmation["transaction"] == answer.body["transaction"]
    assert await world.balance(recipient) == 2_500_000
    for name in ("network", "signature", "authorization"):
        without = {key: value for key, value in direct.items() if key != name}
        refused = await world.gateway("POST", "/api/v1/transfer", json=without, headers=paid)
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")


@row("4.4-transfer-payload", "4.4-transfer-network", "4.4-transfer-asset")
async def test_payload_network_and_asset_are_required(world: World, row_id: str) -> None:
    name = row_id.rpartition("-")[2]
    body = world.moving()
    without = {key: value for key, value in body.items() if key != name}
    assert (await world.transfer(without)).refusal == (400, "MISSING_PARAMETER", "validation")
    wrong = {
        "payload": ({"signature": "0x00"}, "MISSING_PARAMETER", "validation"),
        "network": ("base-goerli", "INVALID_NETWORK", "validation"),
        "asset": ("0x036C", "INVALID_ADDRESS", "validation"),
    }[name]
    assert (await world.transfer({**body, name: wrong[0]})).refusal == (400, *wrong[1:])
    other_token = {"asset": Wallet().address}
    assert (await world.transfer({**body, **other_token})).refusal == (400, "PAYMENT_INVALID", "payment")
    assert (await world.transfer(body)).body["status"] == "success"


@row("4.4-transfer-amount", "4.4-transfer-recipient")
async def test_amount_and_recipient_may_be_left_out_on_evm_and_must_be_those_signed(world: World, row_id: str) -> None:
    recipient = Wallet().address
    body = world.moving(1234, recipient=recipient)
    right, contrary, unreadable, code = {
        "4.4-transfer-amount": ("1234", "1235", "12.34", "INVALID_AMOUNT"),
        "4.4-transfer-recipient": (recipient, Wallet().address, "somebody", "INVALID_ADDRESS"),
    }[row_id]
    name = row_id.rpartition("-")[2]
    assert (await world.transfer({**body, name: contrary})).refusal == (400, "PAYMENT_INVALID", "payment")
    assert (await world.transfer({**body, name: unreadable})).refusal == (400, code, "validation")
    assert (await world.transfer({**body, name: right})).body["status"] == "success"
    assert (await world.transfer(world.moving(1234))).body["status"] == "success"
    assert await world.balance(recipient) == 1234


@row("4.4-transfer-confirm")
async def test_confirm_waits_for_the_chain_and_is_false_by_default(world: World) -> None:
    async with paused_mining(world):
        for body in (world.moving(confirm=False), world.moving()):
            if body["confirm"]:
                del body["confirm"]
            answer = await world.transfer(body, Prefer="wait=0")
            assert answer.body["status"] == "success"
            assert await world.rpc("eth_getTransactionReceipt", answer.body["transaction"]) is None
        waiting = asyncio.create_task(world.transfer(world.moving()))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
    answer = await waiting
    assert (await world.rpc("eth_getTransactionReceipt", answer.body["transaction"]))["status"] == "0x1"
    refused = await world.transfer(world.moving(confirm="true"))
    assert refused.refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.4-transfer-response.status")
async def test_status_is_success_and_failed_where_the_chain_reverted_it(world: World) -> None:
    payer = await world.funded(10_000)
    done = await world.transfer(world.moving())
    async with paused_mining(world):
        await empty(world, payer, 10_000)
        body = world.moving(payer=payer)
        waiting = asyncio.create_task(world.transfer(body))
        await sent(world, payer, body["payload"]["authorization"]["nonce"])
    reverted = await waiting
    assert (done.status, done.body["status"]) == (200, "success")
    assert (reverted.status, reverted.body["status"]) == (200, "failed")


@row("4.4-transfer-response.transaction", "4.4-transfer-response.network", "4.4-transfer-response.amount")
async def test_a_transfer_answers_with_hash_network_and_base_units(world: World, row_id: str) -> None:
    answer = (await world.transfer(world.moving(77))).body
    name = row_id.rpartition(".")[2]
    receipt = await world.rpc("eth_getTransactionReceipt", answer["transaction"])
    expected = {"transaction": receipt["transactionHash"], "network": "base-sepolia", "amount": "77"}[name]
    assert answer[name] == expected
