"""Specification 2.4: the EVM networks, their chain ids and assets."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.recording_target import RecordingTarget
from tests.specification.client import Http, Json, header
from tests.specification.other_network import BASE_USDC, base_world
from tests.specification.rows import row
from tests.specification.world import World

BASE_SEPOLIA_USDC = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"


async def kinds(world: World) -> list[Json]:
    """What the hub supports, by the specification's names."""
    found: list[Json] = (await world.hub("GET", "/supported")).body["kinds"]
    return [kind for kind in found if kind["x402Version"] == 1]


@row("2.4-base")
async def test_base_is_8453_and_its_usdc(tmp_path: Path, target: RecordingTarget, http: Http) -> None:
    async with base_world(tmp_path, target, http) as world:
        assert int(await world.rpc("eth_chainId"), 16) == 8453
        assert [(kind["network"], kind["assets"][0]["address"]) for kind in await kinds(world)] == [("base", BASE_USDC)]
        gate = await world.gate(credits=2)
        asked = await world.asked(gate)
        assert gate["network"] == asked["paymentRequired"]["network"] == asked["accepts"][0]["network"] == "base"
        assert asked["accepts"][0]["asset"] == BASE_USDC
        other_chain = world.signed(await world.wanted(gate), chainId=84532)
        assert (await world.call(gate, header(other_chain))).refusal == (402, "INVALID_SIGNATURE", "payment")
        for name in ("base", "base-mainnet"):
            signed = {**world.signed(await world.wanted(gate)), "network": name}
            answer = await world.call(gate, header(signed))
            assert (answer.status, answer.confirmation["network"]) == (200, "base")
        item = (await world.history(world.buyer))["history"][0]
        assert (item["network"], item["chainId"], item["status"]) == ("base", 8453, "success")
        alias = await world.gate(network="base-mainnet")
        assert alias["network"] == "base"


@row("2.4-base-sepolia")
async def test_base_sepolia_is_84532_and_its_usdc(world: World) -> None:
    assert int(await world.rpc("eth_chainId"), 16) == 84532
    (kind,) = [one for one in await kinds(world) if one["network"] != "solana-devnet"]
    assert (kind["network"], kind["assets"][0]["address"]) == ("base-sepolia", BASE_SEPOLIA_USDC)
    gate = await world.gate(network="base-sepolia")
    asked = await world.asked(gate)
    assert asked["accepts"][0]["asset"] == BASE_SEPOLIA_USDC == world.chain.token
    other_chain = world.signed(await world.wanted(gate), chainId=8453)
    assert (await world.call(gate, header(other_chain))).refusal == (402, "INVALID_SIGNATURE", "payment")
    _, answer = await world.buy(gate)
    assert answer.confirmation["network"] == "base-sepolia"
    for other in ("base", "ethereum", "", 84532):
        refused = await world.create(network=other)
        assert refused.refusal == (400, "INVALID_NETWORK", "validation")


@row("2.4-node-address")
async def test_payments_are_settled_at_the_networks_node(world: World) -> None:
    _, answer = await world.buy(await world.gate())
    mined = await world.rpc("eth_getTransactionByHash", answer.confirmation["transaction"])
    assert (int(mined["chainId"], 16), mined["to"].lower()) == (84532, world.chain.token.lower())
