"""Who asks again for what was begun is told what came of it, whatever the hub takes by now (contract 5.2; I8).

To call a payment whose transaction is on its way refused would make its buyer pay again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import ChaosNode
from tests.hub.gateway_requests import TRUSTED, settle_for_gateway
from tests.hub.hub_under_test import NETWORK, Answer, HubUnderTest, new_payment, run_hub
from tests.hub.test_contract_wallets import SIGNATURE, by_wallet, in_thread
from tests.hub.test_transfer import body_of
from tollkeeper.core.networks import NETWORKS

KEY: Final = "claim-of-a-gateway.1"


def other_chain_id(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "result": "0x1"} if call["method"] == "eth_chainId" else answer


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_settlement_under_way_is_pending_while_its_network_is_disabled_and_a_success_then(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, key: str | None
) -> None:
    payment = new_payment(embedded_chain)
    assert (await chaos_hub.settle(payment, key=key, prefer="wait=0")).code == "SETTLEMENT_PENDING"
    chaos.falsify = other_chain_id
    await chaos_hub.account.chain.open()
    assert (await chaos_hub.settle(new_payment(embedded_chain))).reason == "invalid_network"
    again = await chaos_hub.settle(payment, key=key, prefer="wait=0")
    assert (again.status, again.body.get("errorReason")) == (503, None)
    assert again.code == "SETTLEMENT_PENDING"
    chaos.calm()
    await chaos_hub.account.chain.open()
    await chaos_hub.complete()
    assert (await chaos_hub.settle(payment, key=key)).body["success"] is True
    chaos.falsify = other_chain_id
    await chaos_hub.account.chain.open()
    told = await chaos_hub.settle(payment, key=key)
    assert (told.body["success"], told.reason) == ((True, None) if key else (False, "duplicate_settlement"))


@pytest.mark.parametrize("is_transfer", [False, True])
async def test_a_settlement_under_way_is_pending_at_a_hub_that_has_its_network_no_more(
    tmp_path: Path, embedded_chain: ChainUnderTest, *, is_transfer: bool
) -> None:
    payment = new_payment(embedded_chain)

    async def ask(hub: HubUnderTest) -> Answer:
        if is_transfer:
            body = body_of(payment, confirm=True)
            return await hub.post("/transfer", body, Idempotency_Key=KEY, Prefer="wait=0")
        return await hub.settle(payment, key=KEY, prefer="wait=0")

    async with run_hub(tmp_path, embedded_chain) as hub:
        assert (await ask(hub)).code == "SETTLEMENT_PENDING"
    async with run_hub(tmp_path, embedded_chain, config={"network": NETWORKS["base"]}) as hub:
        assert NETWORK not in hub.hub.accounts
        assert (await ask(hub)).code == "SETTLEMENT_PENDING"
    async with run_hub(tmp_path, embedded_chain) as hub:
        await hub.complete()
        assert (await ask(hub)).body["success"] is True
    async with run_hub(tmp_path, embedded_chain, config={"network": NETWORKS["base"]}) as hub:
        assert (await ask(hub)).body["success"] is True


@pytest.mark.parametrize("is_transfer", [False, True])
@pytest.mark.parametrize("rule", ["network", "signature"])
async def test_a_gateway_s_key_that_showed_a_refusal_by_rule_shows_it_also_once_the_rule_is_kept(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest, rule: str, *, is_transfer: bool
) -> None:
    """A copy of the request may come later than its answer: who was told that nothing was charged must be right."""
    chain = embedded_chain
    wallet = await in_thread(chain.plant_smart_wallet, chain.wallets.buyer.address)
    await in_thread(chain.mint, wallet, 20_000)
    code = await in_thread(chain.rpc.call, "eth_getCode", wallet, "latest")
    payment = await in_thread(by_wallet, chain, wallet)

    async with run_hub(tmp_path, chain, rpc_url=chaos.url, trusted_keys=TRUSTED) as hub:

        async def ask(key: str) -> Answer:
            if is_transfer:
                return await settle_for_gateway(hub, body_of(payment, confirm=True), key, "/transfer")
            return await settle_for_gateway(hub, payment.asking(confirm=True), key)

        if rule == "network":
            chaos.falsify = other_chain_id
            await hub.account.chain.open()
        else:
            await in_thread(chain.rpc.call, "anvil_setCode", wallet, "0x")
        refused = [await ask("claim.1") for _ in range(2)]
        chaos.calm()
        await hub.account.chain.open()
        await in_thread(chain.rpc.call, "anvil_setCode", wallet, code)
        for told in (*refused, await ask("claim.1")):
            if is_transfer:
                assert (told.status, told.code) == (400, f"INVALID_{rule.upper()}")
            else:
                assert told.reason == {"network": "invalid_network", "signature": SIGNATURE}[rule]
        assert await in_thread(chain.balance, wallet) == 20_000
        assert (await ask("claim.2")).body["success"] is True
