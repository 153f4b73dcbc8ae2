"""Specification 3: the states that the history shows, and the order of steps at a PayGate."""

from __future__ import annotations

import asyncio

from tests.specification.program import bearer_header
from tests.specification.rows import row
from tests.specification.settling import failed_item, pending_item, settled_item
from tests.specification.world import World


@row("3-status-pending")
async def test_pending_lasts_until_the_transaction_is_mined(world: World) -> None:
    async with pending_item(world) as item:
        await asyncio.sleep(2.5)  # the hub looks after what is pending every two seconds
        assert (await world.item(world.buyer, item["x402Data"]["nonce"]))["status"] == item["status"] == "pending"
    assert (await world.item(world.buyer, item["x402Data"]["nonce"]))["status"] == "success"


@row("3-status-success")
async def test_success_is_said_when_the_money_has_moved(world: World) -> None:
    before = await world.balance(world.buyer.address)
    item = await settled_item(world)
    assert item["status"] == "success"
    assert await world.balance(world.buyer.address) == before - 10_000


@row("3-status-failed")
async def test_failed_is_said_when_the_money_has_not_moved_and_the_transaction_is_over(world: World) -> None:
    item = await failed_item(world)
    assert item["status"] == "failed"
    assert await world.balance(item["x402Data"]["payTo"]) == 0
    receipt = await world.rpc("eth_getTransactionReceipt", item["transactionHash"])
    assert receipt["status"] == "0x0"


@row("3.1")
async def test_a_pending_item_has_a_null_hash_and_a_decided_one_has_a_hash(world: World) -> None:
    async with pending_item(world) as pending:
        assert (pending["status"], pending["transactionHash"]) == ("pending", None)
    item = await world.item(world.buyer, pending["x402Data"]["nonce"])
    assert item["transactionHash"].startswith("0x")
    items = (await world.history(world.buyer))["history"]
    assert all((item["transactionHash"] is None) == (item["status"] == "pending") for item in items)


@row("3.2")
async def test_the_steps_are_402_then_verification_then_the_targets_response(world: World) -> None:
    gate = await world.gate()
    assert (await world.call(gate)).status == 402
    assert (await world.call(gate, await world.payment(gate, value="1"))).status == 402
    assert world.target.requests == []
    answer = await world.call(gate, await world.payment(gate))
    assert (answer.status, answer.content) == (200, b'{"served":true}')
    assert len(world.target.requests) == 1


@row("3.3")
async def test_with_require_auth_the_steps_are_401_then_402_then_the_targets_response(world: World) -> None:
    gate = await world.gate()
    paid = await world.payment(gate)
    await world.update(gate, requireAuth=True)
    bearer = bearer_header((await world.login(world.buyer, world.gateway_url))["accessToken"])
    for answer in (await world.call(gate), await world.call(gate, paid)):
        assert answer.refusal == (401, "AUTH_REQUIRED", "authentication")
    asked = await world.call(gate, headers=bearer)
    assert (asked.status, asked.body["error"]) == (402, "Payment required")
    answer = await world.call(gate, paid, headers=bearer)
    assert (answer.status, answer.content) == (200, b'{"served":true}')
