"""Payments in each state that the history can show (specification 3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eth_account import Account

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
    """The history item of a payment whose transaction was mined and reverted: the wallet had been emptied before it."""
    payer = await world.funded(10_000)
    asking = world.asking(payer=payer)
    async with asyncio.TaskGroup() as settling, paused_mining(world):
        await empty(world, payer, 10_000)
        settling.create_task(world.settle({**asking, "confirm": True}))
        await sent(world, payer, nonce_of(asking))
    return await world.item(payer, nonce_of(asking))


async def empty(world: World, payer: Wallet, value: int) -> None:
    """Has the wallet send so much away by itself, in the next block, before whatever is sent from now on."""
    await world.rpc("anvil_setBalance", payer.address, hex(10**18))
    transfer = {
        "to": world.chain.token,
        "data": "0xa9059cbb" + world.buyer.address[2:].lower().rjust(64, "0") + f"{value:064x}",
        "nonce": int(await world.rpc("eth_getTransactionCount", payer.address, "latest"), 16),
        "chainId": int(await world.rpc("eth_chainId"), 16),
        "gas": 100_000,
        "gasPrice": 10**12,
    }
    signed = Account.from_key(payer.key).sign_transaction(transfer)
    assert await world.rpc("eth_sendRawTransaction", "0x" + bytes(signed.raw_transaction).hex())


async def sent(world: World, payer: Wallet, nonce: str) -> Json:
    """The pending item, once its transaction has been sent."""
    deadline = time.monotonic() + 30
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
