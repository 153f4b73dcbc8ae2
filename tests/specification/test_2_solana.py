"""Specification 2.3 and 2.4 on Solana: its payload, its networks and their assets."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import SolanaMarket, header_of, mainnet_market, solana_market
from tests.specification.client import Json, header
from tests.specification.rows import row
from tests.specification.world import World
from tollkeeper.sandbox.stack import Options

TRANSACTION = base64.b64encode(b"\x01" + bytes(200)).decode()
DEVNET_USDC = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
DEVNET = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"  # as x402 version 2 names it
MAINNET_USDC = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"


@row("2.3-transaction")
async def test_a_solana_payload_is_a_pre_signed_transaction_in_base64(
    world: World, tmp_path: Path, target: RecordingTarget
) -> None:
    gate = await world.gate()
    for network, code in (
        ("solana-devnet", "PAYMENT_INVALID"),
        ("solana-mainnet", "INVALID_NETWORK"),
        ("base-sepolia", "PAYMENT_INVALID"),
    ):
        paid = {"x402Version": 1, "scheme": "exact", "network": network, "payload": {"transaction": TRANSACTION}}
        assert (await world.call(gate, header(paid))).refusal == (402, code, "payment")
    async with solana_market(target, Options(data_dir=tmp_path)) as market:
        sold = await market.gate()
        draft = await market.draft(await market.requirements(sold))
        signatures = draft.transaction().signatures
        assert (bytes(signatures[0]), len(signatures)) == (bytes(64), 2)  # the fee payer's is still to come
        at_another_gate = await market.gate(network="base-sepolia", paymentAddress="0x" + "71" * 20)
        refused = await market.pay(at_another_gate, header_of(draft))
        assert (refused.status, refused.error_code) == (402, "INVALID_NETWORK")
        assert (await market.pay(sold, header_of(draft))).status == 200


@row("2.4-solana-devnet")
async def test_solana_devnet_and_its_usdc(tmp_path: Path, target: RecordingTarget) -> None:
    async with solana_market(target, Options(data_dir=tmp_path)) as market:
        await assert_sold(market, "solana-devnet", DEVNET_USDC, ("solana-devnet",))


@row("2.4-solana-mainnet")
async def test_solana_mainnet_and_its_usdc(tmp_path: Path, target: RecordingTarget) -> None:
    async with mainnet_market(target, tmp_path) as market:
        await assert_sold(market, "solana-mainnet", MAINNET_USDC, ("solana", "solana-mainnet"))


async def assert_sold(market: SolanaMarket, network: str, mint: str, names: tuple[str, ...]) -> None:
    """A gate of that network is paid in its USDC, under each of the network's names; clients are told the first."""
    gate = await market.gate(credits=2)
    wanted = await market.requirements(gate)
    assert (gate["network"], wanted["network"], wanted["asset"]) == (network, names[0], mint)
    for name in names:
        assert (await market.gate(network=name))["network"] == network
        bought = await market.pay(gate, header_of(await market.draft(wanted), name))
        receipt = bought.receipt
        assert bought.status == 200, bought.body
        assert receipt is not None
        assert (receipt["network"], receipt["payer"]) == (network, str(market.wallet.pubkey()))


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
    assert {kind["network"] for kind in kinds if "solana" in kind["network"]} == {"solana-devnet", DEVNET}
    for network in ("solana-mainnet", "solana"):
        verified, settled = await world.verify(solana(world, network)), await world.settle(solana(world, network))
        assert (verified.status, verified.body["isValid"]) == (200, False)
        assert (settled.status, settled.body["status"], settled.body["transaction"]) == (200, "failed", "")
        assert verified.body["invalidReason"] == settled.body["errorReason"] == "invalid_network"
        moving = {"network": network, "payload": {"transaction": TRANSACTION}, "asset": "4zMM", "amount": "1"}
        assert (await world.hub("POST", "/transfer", json=moving)).refusal == (400, "INVALID_NETWORK", "validation")
