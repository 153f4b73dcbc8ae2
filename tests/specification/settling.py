"""Payments in each state that the history can show (specification 3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.specification.client import Json, Wallet
from tests.specification.world import World


@asynccontextmanager
async def paused_mining(world: World) -> AsyncIterator[None]:
    """No transaction is mined within the block; all that wait are mined at its end."""
    await world.rpc("evm_setAutomine", False)
    try:
        yield
    finally:
        await world.rpc("evm_setAutomine", True)
        await world.rpc("evm_mine")


def nonce_of(asking: Json) -> str:
    """The authorization's nonce in a body for verify and settle."""
    nonce: str = asking["paymentPayload"]["payload"]["authorization"]["nonce"]
    return nonce


async def settled_item(world: World, payer: Wallet | None = None, value: int = 10_000) -> Json:
    """The history item of a payment that a stranger's server settled with success."""
    payer = payer or world.buyer
    asking = world.asking(value, payer=payer)
    answer = await world.settle({**asking, "confirm": True})
    assert answer.body["status"] == "success", answer.content
    return await world.item(payer, nonce_of(asking))


@asynccontextmanager
async def pending_item(world: World) -> AsyncIterator[Json]:
    """The history item of a payment whose transaction waits for its block, which comes when this block ends."""
    asking = world.asking()
    async with asyncio.TaskGroup() as settling, paused_mining(world):
        settling.create_task(world.settle({**asking, "confirm": True}))
        yield await sent(world, world.buyer, nonce_of(asking))


async def failed_item(world: World) -> Json:
    """The history item of a payment whose transaction was mined and reverted: another one had emptied the wallet."""
    payer = await world.funded(10_000)
    both = [world.asking(payer=payer), world.asking(payer=payer)]
    async with asyncio.TaskGroup() as settling, paused_mining(world):
        for asking in both:
            settling.create_task(world.settle({**asking, "confirm": True}))
            await sent(world, payer, nonce_of(asking))
    return await world.item(payer, nonce_of(both[1]))


async def sent(world: World, payer: Wallet, nonce: str) -> Json:
    """The pending item, once its transaction has been sent."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        items = (await world.history(payer))["history"]
        status = await world.hub("GET", f"/payments/{world.chain.network}/{payer.address}/{nonce}")
        for item in items:
            if item["x402Data"]["nonce"] == nonce and await world.rpc(
                "eth_getTransactionByHash", status.body["transaction"]
            ):
                found: Json = item
                return found
        await asyncio.sleep(0.02)
    raise AssertionError("the payment was not sent")
