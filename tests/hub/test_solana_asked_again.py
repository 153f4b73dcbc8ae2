"""The same on Solana: who asks again for what was begun is told what came of it (contract 5.2; I8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chains.solana_node import WALLETS
from tests.hub.chaos import run_chaos
from tests.hub.hub_under_test import Answer
from tests.hub.solana_hub import NETWORK, USDC, SolanaHub, hub_of
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.solana.node import SolanaNode

KEY = {"Idempotency_Key": "claim-of-a-gateway.1"}


def of_another_cluster(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "result": "1" * 32} if call["method"] == "getGenesisHash" else answer


@pytest.mark.parametrize("key", [KEY, {}], ids=["with a key", "without"])
async def test_a_settlement_under_way_is_pending_while_its_network_is_disabled_and_a_success_then(
    tmp_path: Path, key: dict[str, Any]
) -> None:
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as chaos,
        hub_of(tmp_path, node, rpc_url=chaos.url) as world,
    ):
        node.chain.holds = True
        body = world.payment()
        assert (await world.settle(body, **key, Prefer="wait=0")).code == "SETTLEMENT_PENDING"
        chaos.falsify = of_another_cluster
        await world.account.chain.open()
        assert (await world.settle(world.payment())).reason == "invalid_network"
        again = await world.settle(body, **key, Prefer="wait=0")
        assert (again.status, again.code) == (503, "SETTLEMENT_PENDING")
        chaos.calm()
        await world.account.chain.open()
        node.chain.release()
        await world.complete()
        assert (await world.settle(body, **key)).body["success"] is True
        chaos.falsify = of_another_cluster
        await world.account.chain.open()
        told = await world.settle(body, **key)
        assert (told.body["success"], told.reason) == ((True, None) if key else (False, "duplicate_settlement"))
        unreadable = {**body, "paymentPayload": {**body["paymentPayload"], "payload": {"transaction": "AAAA"}}}
        assert (await world.settle(unreadable)).reason == "invalid_network"


@pytest.mark.parametrize("key", [KEY, {}], ids=["with a key", "without"])
@pytest.mark.parametrize("is_transfer", [False, True])
async def test_a_settlement_under_way_is_pending_at_a_hub_that_has_its_network_no_more(
    tmp_path: Path, key: dict[str, Any], *, is_transfer: bool
) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        node.chain.holds = True

        async def ask(world: SolanaHub) -> Answer:
            if not is_transfer:
                return await world.settle(body, **key, Prefer="wait=0")
            payload = body["paymentPayload"]["payload"]
            moving = {"payload": payload, "network": NETWORK, "asset": USDC, "amount": "10000", "confirm": True}
            return await world.hub.post(
                "/transfer", {**moving, "recipient": WALLETS.owner.address}, **key, Prefer="wait=0"
            )

        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            assert (await ask(world)).code == "SETTLEMENT_PENDING"
        async with hub_of(tmp_path, node, network=NETWORKS["solana-mainnet"]) as world:
            assert NETWORK not in world.hub.hub.accounts
            assert (await ask(world)).code == "SETTLEMENT_PENDING"
        node.chain.release()
        async with hub_of(tmp_path, node) as world:
            await world.complete()
            await world.complete()
            assert (await ask(world)).body["success"] is True
        async with hub_of(tmp_path, node, network=NETWORKS["solana-mainnet"]) as world:
            told = await ask(world)
            if key:
                assert told.body["success"] is True
            elif is_transfer:
                assert (told.status, told.code) == (400, "NONCE_ALREADY_USED")
            else:
                assert (told.body["success"], told.reason) == (False, "duplicate_settlement")
