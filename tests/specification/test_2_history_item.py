"""Specification 2.5: the item of the transaction history."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from tests.specification.client import Json, Wallet
from tests.specification.rows import row
from tests.specification.settling import failed_item, pending_item, settled_item
from tests.specification.world import World


async def bought_item(world: World, gate: Json) -> Json:
    """The history item of a purchase at the gate."""
    _, answer = await world.buy(gate)
    items = (await world.history(world.buyer))["history"]
    (found,) = [item for item in items if item["transactionHash"] == answer.confirmation["transaction"]]
    item: Json = found
    return item


@row("2.5-id")
async def test_id_is_a_unique_string(world: World) -> None:
    for _ in range(3):
        await settled_item(world)
    ids = [item["id"] for item in (await world.history(world.buyer))["history"]]
    assert all(isinstance(name, str) and name for name in ids)
    assert len(set(ids)) == len(ids) >= 3


@row("2.5-createdAt", "2.5-updatedAt")
async def test_times_are_timestamps_of_what_happened(world: World, row_id: str) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    async with pending_item(world) as pending:
        created = datetime.fromisoformat(pending["createdAt"])
        assert before <= created <= datetime.fromisoformat(pending["updatedAt"]) <= datetime.now(UTC)
        await asyncio.sleep(0.05)
    item = await world.item(world.buyer, pending["x402Data"]["nonce"])
    assert item["status"] == "success"
    if row_id == "2.5-createdAt":
        assert item["createdAt"] == pending["createdAt"]
    else:
        assert item["updatedAt"] > pending["updatedAt"]


@row("2.5-signerAddress")
async def test_signer_address_is_the_wallet_that_signed(world: World) -> None:
    payer = await world.funded(10_000)
    assert (await settled_item(world, payer))["signerAddress"].lower() == payer.address.lower()
    assert (await settled_item(world))["signerAddress"].lower() == world.buyer.address.lower()


@row("2.5-amount")
async def test_amount_is_in_base_units(world: World) -> None:
    for value in (1, 1_234_567):
        assert (await settled_item(world, value=value))["amount"] == str(value)


@row("2.5-network")
async def test_network_is_one_of_the_named(world: World) -> None:
    assert (await settled_item(world))["network"] == "base-sepolia"
    assert {item["network"] for item in (await world.history(world.buyer))["history"]} <= {"base", "base-sepolia"}


@row("2.5-chainId")
async def test_chain_id_is_the_networks_integer(world: World) -> None:
    item = await settled_item(world)
    assert (type(item["chainId"]), item["chainId"]) == (int, 84532)


@row("2.5-transactionHash")
async def test_transaction_hash_is_null_while_pending(world: World) -> None:
    async with pending_item(world) as pending:
        assert pending["transactionHash"] is None
    settled = await settled_item(world)
    receipt = await world.rpc("eth_getTransactionReceipt", settled["transactionHash"])
    assert receipt["status"] == "0x1"
    assert receipt["to"].lower() == world.chain.token.lower()


@row("2.5-status")
async def test_status_is_pending_success_or_failed(world: World) -> None:
    assert (await settled_item(world))["status"] == "success"
    assert (await failed_item(world))["status"] == "failed"
    async with pending_item(world) as pending:
        assert pending["status"] == "pending"
    found = {item["status"] for item in (await world.history(world.buyer))["history"]}
    assert found <= {"pending", "success", "failed"}


@row("2.5-error")
async def test_error_is_a_string_where_there_is_an_error_and_null_elsewhere(world: World) -> None:
    assert (await settled_item(world))["error"] is None
    async with pending_item(world) as pending:
        assert pending["error"] is None
    failed = await failed_item(world)
    assert isinstance(failed["error"], str)
    assert failed["error"]


@row("2.5-type")
async def test_type_of_what_was_settled_for_a_purchase_is_purchase(world: World) -> None:
    assert (await settled_item(world))["type"] == "purchase"
    assert (await bought_item(world, await world.gate()))["type"] == "purchase"
    assert {item["type"] for item in (await world.history(world.buyer))["history"]} <= {"transfer", "purchase"}


@row("2.5-x402Data")
async def test_x402_data_is_what_was_signed_and_asked(world: World) -> None:
    recipient = Wallet().address
    gate = await world.gate(paymentAddress=recipient)
    data = (await bought_item(world, gate))["x402Data"]
    assert data.keys() == {
        *("x402Version", "scheme", "network", "asset", "payer", "payTo", "value", "validAfter", "validBefore"),
        *("nonce", "resource", "maxAmountRequired", "confirm"),
    }
    assert (data["x402Version"], data["scheme"], data["network"]) == (1, "exact", "base-sepolia")
    assert data["asset"].lower() == world.chain.token.lower()
    assert (data["payer"].lower(), data["payTo"].lower()) == (world.buyer.address.lower(), recipient.lower())
    assert (data["value"], data["maxAmountRequired"], data["validAfter"]) == ("10000", "10000", "0")
    assert (data["resource"], data["confirm"]) == (gate["accessUrl"], True)


@row("2.5-purchaseData")
async def test_purchase_data_is_there_only_for_purchases_at_a_gate(world: World) -> None:
    gate = await world.gate(title="T", credits=4)
    item = await bought_item(world, gate)
    data = item["purchaseData"]
    assert data.pop("purchaseId")
    assert data == {
        "gateway": world.gateway_url,
        "paygateId": gate["id"],
        "slug": gate["slug"],
        "title": "T",
        "price": "0.01",
        "credits": 4,
    }
    assert "purchaseData" not in await settled_item(world)
    forged = {**world.asking(), "confirm": True, "purchaseData": {"slug": gate["slug"]}}
    assert (await world.settle(forged)).body["status"] == "success"
    nonce = forged["paymentPayload"]["payload"]["authorization"]["nonce"]
    assert "purchaseData" not in await world.item(world.buyer, nonce)
