"""Specification 2.5 and 3 on Solana: the item of the transaction history, and its states."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from tests.specification.client import Json
from tests.specification.rows import field_of, row
from tests.specification.solana_world import NETWORK, USDC_MINT, SolanaWorld


async def bought_item(solana: SolanaWorld, gate: Json) -> Json:
    """The history item of a purchase at the gate."""
    _, answer = await solana.buy(gate)
    items = (await solana.history(solana.buyer))["history"]
    (found,) = [item for item in items if item["transactionHash"] == answer.confirmation["transaction"]]
    item: Json = found
    return item


@row("2.5-id-solana")
async def test_id_is_a_unique_string(solana: SolanaWorld) -> None:
    ids = [(await solana.settled_item())["id"] for _ in range(3)]
    assert all(isinstance(name, str) and name for name in ids)
    assert len(set(ids)) == 3


@row("2.5-createdAt-solana", "2.5-updatedAt-solana")
async def test_times_are_timestamps_of_what_happened(solana: SolanaWorld, row_id: str) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    async with solana.pending_item() as (pending, payer):
        created = datetime.fromisoformat(pending["createdAt"])
        assert before <= created <= datetime.fromisoformat(pending["updatedAt"]) <= datetime.now(UTC)
        await asyncio.sleep(0.05)
    item = await solana.decided(payer, "success")
    if row_id == "2.5-createdAt-solana":
        assert item["createdAt"] == pending["createdAt"]
    else:
        assert item["updatedAt"] > pending["updatedAt"]


@row("2.5-signerAddress-solana")
async def test_signer_address_is_the_wallet_that_signed(solana: SolanaWorld) -> None:
    payer = await solana.funded(10_000)
    assert (await solana.world.settle({**await solana.asking(payer=payer), "confirm": True})).status == 200
    assert (await solana.item(payer))["signerAddress"] == str(payer.pubkey())


@row("2.5-amount-solana")
async def test_amount_is_in_base_units(solana: SolanaWorld) -> None:
    for value in (1, 1_234_567):
        assert (await solana.settled_item(value))["amount"] == str(value)


@row("2.5-network-solana", "2.5-chainId-solana")
async def test_the_network_is_named_and_has_no_chain_id(solana: SolanaWorld, row_id: str) -> None:
    """What the specification names are the EVM networks; contract 7 says what stands here in their place."""
    item = await solana.settled_item()
    name = field_of(row_id)
    assert item[name] == {"network": NETWORK, "chainId": None}[name]


@row("2.5-transactionHash-solana")
async def test_transaction_hash_is_null_while_pending(solana: SolanaWorld) -> None:
    async with solana.pending_item() as (pending, _):
        assert pending["transactionHash"] is None
    settled = await solana.settled_item()
    found = await solana.node("getSignatureStatuses", [settled["transactionHash"]])
    assert found["value"][0]["err"] is None


@row("2.5-status-solana")
async def test_status_is_pending_success_or_failed(solana: SolanaWorld) -> None:
    assert (await solana.settled_item())["status"] == "success"
    assert (await solana.failed_item())["status"] == "failed"
    async with solana.pending_item() as (pending, _):
        assert pending["status"] == "pending"


@row("2.5-error-solana")
async def test_error_is_a_string_where_there_is_an_error_and_null_elsewhere(solana: SolanaWorld) -> None:
    assert (await solana.settled_item())["error"] is None
    async with solana.pending_item() as (pending, _):
        assert pending["error"] is None
    failed = await solana.failed_item()
    assert isinstance(failed["error"], str)
    assert failed["error"]


@row("2.5-type-solana")
async def test_type_is_purchase_or_transfer(solana: SolanaWorld) -> None:
    assert (await solana.settled_item())["type"] == "purchase"
    assert (await bought_item(solana, await solana.gate()))["type"] == "purchase"
    payer = await solana.funded(10_000)
    assert (await solana.world.transfer(await solana.moving(payer=payer))).status == 200
    assert (await solana.item(payer))["type"] == "transfer"


@row("2.5-x402Data-solana")
async def test_x402_data_is_what_was_signed_and_asked(solana: SolanaWorld) -> None:
    gate = await solana.gate()
    data = (await bought_item(solana, gate))["x402Data"]
    assert data.keys() == {
        *("x402Version", "scheme", "network", "asset", "payer", "payTo", "value", "messageHash", "payerSignature"),
        *("resource", "maxAmountRequired", "confirm"),
    }
    assert (data["x402Version"], data["scheme"], data["network"], data["asset"]) == (1, "exact", NETWORK, USDC_MINT)
    assert (data["payer"], data["payTo"]) == (str(solana.buyer.pubkey()), solana.owner)
    assert (data["value"], data["maxAmountRequired"]) == ("10000", "10000")
    assert (data["resource"], data["confirm"]) == (gate["accessUrl"], True)


@row("2.5-purchaseData-solana")
async def test_purchase_data_is_there_only_for_purchases_at_a_gate(solana: SolanaWorld) -> None:
    gate = await solana.gate(title="T", credits=4)
    data = (await bought_item(solana, gate))["purchaseData"]
    assert data.pop("purchaseId")
    assert data == {
        "gateway": solana.world.gateway_url,
        "paygateId": gate["id"],
        "slug": gate["slug"],
        "title": "T",
        "price": "0.01",
        "credits": 4,
    }
    assert "purchaseData" not in await solana.settled_item()


@row("3-status-pending-solana")
async def test_pending_lasts_until_the_transaction_is_carried_out(solana: SolanaWorld) -> None:
    async with solana.pending_item() as (pending, payer):
        await asyncio.sleep(2.5)  # the hub looks after what is pending every two seconds
        assert (await solana.item(payer))["status"] == pending["status"] == "pending"
    assert (await solana.decided(payer, "success"))["id"] == pending["id"]


@row("3-status-success-solana")
async def test_success_is_said_when_the_money_has_moved(solana: SolanaWorld) -> None:
    had = await solana.balance(solana.owner)
    assert (await solana.settled_item())["status"] == "success"
    assert await solana.balance(solana.owner) == had + 10_000


@row("3-status-failed-solana")
async def test_failed_is_said_when_the_money_has_not_moved_and_the_transaction_is_over(solana: SolanaWorld) -> None:
    had = await solana.balance(solana.owner)
    item = await solana.failed_item()
    assert await solana.balance(solana.owner) == had + 10_000  # of the other one, which emptied the wallet
    found = await solana.node("getSignatureStatuses", [item["transactionHash"]])
    assert found["value"][0]["err"] is not None


@row("3.1-solana")
async def test_a_pending_item_has_a_null_hash_and_a_decided_one_has_a_hash(solana: SolanaWorld) -> None:
    async with solana.pending_item() as (pending, payer):
        assert (pending["status"], pending["transactionHash"]) == ("pending", None)
    assert (await solana.decided(payer, "success"))["transactionHash"]


@row("3.2-solana")
async def test_the_steps_are_402_then_verification_then_the_targets_response(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate()
    assert (await world.call(gate)).status == 402
    assert (await world.call(gate, await solana.payment(gate, value=1))).status == 402
    assert world.target.requests == []
    answer = await world.call(gate, await solana.payment(gate))
    assert (answer.status, answer.content) == (200, b'{"served":true}')
    assert len(world.target.requests) == 1


@row("3.3-solana")
async def test_with_require_auth_the_steps_are_401_then_402_then_the_targets_response(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate()
    paid = await solana.payment(gate)
    await world.update(gate, requireAuth=True)
    session = await solana.login(solana.buyer, world.gateway_url)
    bearer = {"Authorization": f"Bearer {session['accessToken']}"}
    for answer in (await world.call(gate), await world.call(gate, paid)):
        assert answer.refusal == (401, "AUTH_REQUIRED", "authentication")
    asked = await world.call(gate, headers=bearer)
    assert (asked.status, asked.body["error"]) == (402, "Payment required")
    answer = await world.call(gate, paid, headers=bearer)
    assert (answer.status, answer.content) == (200, b'{"served":true}')
