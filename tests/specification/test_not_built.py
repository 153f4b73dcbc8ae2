"""Rows that are not built yet (`rows.NOT_BUILT`): each is refused in so many words, and nothing is ignored."""

from __future__ import annotations

import base64

from tests.specification.client import Json, header
from tests.specification.rows import row
from tests.specification.world import World

TRANSACTION = base64.b64encode(b"\x01" + bytes(200)).decode()


async def assert_field_refused(world: World, code: str, **fields: object) -> None:
    """Create and update refuse the field by its name, and no gate is made or changed."""
    (name,) = fields
    gate = await world.gate()
    for answer in (await world.create(**fields), await world.update(gate, **fields)):
        assert answer.refusal == (400, code, "validation"), answer.content
        assert answer.error["details"]["field"] == name
    assert {**await world.read(gate), "timestamp": gate["timestamp"]} == gate


@row("2.3-transaction")
async def test_a_solana_payload_is_refused_at_a_gate(world: World) -> None:
    gate = await world.gate()
    for network, code in (
        ("solana-devnet", "INVALID_NETWORK"),
        ("solana-mainnet", "INVALID_NETWORK"),
        ("solana", "INVALID_NETWORK"),
        ("base-sepolia", "PAYMENT_INVALID"),
    ):
        paid = {"x402Version": 1, "scheme": "exact", "network": network, "payload": {"transaction": TRANSACTION}}
        assert (await world.call(gate, header(paid))).refusal == (402, code, "payment")
    assert world.target.requests == []


@row("2.4-solana-devnet", "2.4-solana-mainnet")
async def test_solana_networks_are_refused(world: World, row_id: str) -> None:
    network = row_id.removeprefix("2.4-")
    await assert_field_refused(world, "INVALID_NETWORK", network=network)
    asking = solana(world, network)
    reason = "invalid_network" if network == "solana-mainnet" else "invalid_exact_svm_payload_transaction"
    assert (await world.verify(asking)).body["invalidReason"] == reason
    assert (await world.settle(asking)).body["errorReason"] == reason


def solana(world: World, network: str) -> Json:
    """A body for verify and settle on Solana."""
    payload = {"x402Version": 1, "scheme": "exact", "network": network, "payload": {"transaction": TRANSACTION}}
    mint = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
    changes = {"network": network, "asset": mint, "payTo": mint, "extra": {"feePayer": mint}}
    return {
        "x402Version": 1,
        "paymentPayload": payload,
        "paymentRequirements": {**world.requirements(mint, 10_000), **changes},
    }


async def test_a_hub_without_a_node_of_a_network_says_that_it_settles_nothing_there(world: World) -> None:
    kinds = (await world.hub("GET", "/supported")).body["kinds"]
    assert {kind["network"] for kind in kinds if "solana" in kind["network"]} == {"solana-devnet"}
    for network in ("solana-mainnet", "solana"):
        verified, settled = await world.verify(solana(world, network)), await world.settle(solana(world, network))
        assert (verified.status, verified.body["isValid"]) == (200, False)
        assert (settled.status, settled.body["status"], settled.body["transaction"]) == (200, "failed", "")
        assert verified.body["invalidReason"] == settled.body["errorReason"] == "invalid_network"
        moving = {"network": network, "payload": {"transaction": TRANSACTION}, "asset": "4zMM", "amount": "1"}
        assert (await world.hub("POST", "/transfer", json=moving)).refusal == (400, "INVALID_NETWORK", "validation")
