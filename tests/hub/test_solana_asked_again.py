"""The same on Solana: who asks again for what was begun is told what came of it (contract 5.2; I8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chains.solana_node import WALLETS
from tests.hub.chaos import run_chaos
from tests.hub.solana_hub import hub_of
from tollkeeper.sandbox.solana_node import SolanaNode

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
