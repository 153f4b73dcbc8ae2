"""What of the hour's fees is left where nothing was executed (contract 5.2; security A-24, A-26)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chains.solana_node import BUYER, WALLETS, drafted
from tests.core.solana_payments import compute_limit, compute_price, memo, transfer
from tests.hub.hub_under_test import Answer
from tests.hub.solana_hub import NETWORK, USDC, SolanaHub, run_solana_hub
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS

DEAR_LAMPORTS = 50_000  # at both caps


async def dear(world: SolanaHub, text: bytes, path: str, **headers: str) -> Answer:
    """A payment that takes as much of the budget as one may."""
    moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address)
    draft = drafted(world.node, compute_limit(400_000), compute_price(100_000), moved, memo(text))
    body = world.asking(draft)
    if path == "/transfer":
        payload = body["paymentPayload"]["payload"]
        moving = {"payload": payload, "network": NETWORK, "asset": USDC, "amount": "10000"}
        body = {**moving, "recipient": WALLETS.owner.address}
    return await world.hub.post(path, {**body, "confirm": True}, **headers)


@pytest.mark.parametrize("path", ["/settle", "/transfer"])
async def test_payments_that_no_block_ever_held_take_nothing_of_the_hours_fees(tmp_path: Path, path: str) -> None:
    """Whoever signs them with a blockhash of the last moment pays nothing, and must not stop the sales of others."""
    async with run_solana_hub(tmp_path, fee_budget_per_hour_lamports=6 * DEAR_LAMPORTS) as world:
        world.node.chain.holds = True
        answers = [await dear(world, text, path, Prefer="wait=0") for text in (b"1", b"2", b"3")]
        assert [answer.code for answer in answers] == [*["SETTLEMENT_PENDING"] * 2, "UNAVAILABLE"]
        refused = await world.settle(world.payment())
        assert refused.code == "UNAVAILABLE"
        assert "the operator's setting fee_budget_per_hour_lamports" in refused.body["error"]["message"]
        world.node.chain.drop()
        world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
        await world.complete()
        world.node.chain.release()
        answers = [await dear(world, text, path) for text in (b"4", b"5", b"6")]
        assert [answer.status for answer in answers] == [200, 200, 503]
        assert len(world.node.chain.executed) == 2
        await world.complete()
        assert (await dear(world, b"7", path)).code == "UNAVAILABLE"  # what was executed stays counted
