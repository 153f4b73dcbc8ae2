"""npm x402 1.2.0 on the embedded Solana chain: its client pays through our hub, its facilitator settles on our node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest_asyncio

from tests.interop.official import Driver, Json
from tollkeeper.sandbox.stack import Options, Sandbox, open_sandbox

CLIENT = Driver("npm", "solana_v1.mjs")


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with open_sandbox(Options()) as running:
        yield running


async def ask(http: aiohttp.ClientSession, url: str, body: object = None) -> Json:
    async with http.request("GET" if body is None else "POST", url, json=body) as response:
        answer: Json = await response.json()
        return answer


async def requirements_of(http: aiohttp.ClientSession, sandbox: Sandbox) -> Json:
    """What a resource server asks that copies /supported into its 402."""
    kinds = (await ask(http, f"{sandbox.hub_url}/supported"))["kinds"]
    (kind,) = [one for one in kinds if one["network"] == "solana-devnet"]
    return {
        "scheme": "exact",
        "network": "solana-devnet",
        "maxAmountRequired": "10000",
        "resource": "https://gate.example/abc",
        "description": "",
        "mimeType": "application/json",
        "payTo": sandbox.solana_wallets.owner.address,
        "maxTimeoutSeconds": 60,
        "asset": kind["assets"][0]["address"],
        "extra": kind["extra"],
    }


async def signed(sandbox: Sandbox, requirements: Json) -> Json:
    """A payment payload of the official client's."""
    wish: dict[str, Any] = {
        "operation": "sign",
        "privateKey": sandbox.solana_wallets.buyer.secret_key,
        "requirements": requirements,
        "rpcUrl": sandbox.solana_url,
    }
    return await asyncio.to_thread(CLIENT.run, wish)


async def test_the_official_client_pays_through_our_hub(sandbox: Sandbox) -> None:
    async with aiohttp.ClientSession() as http:
        requirements = await requirements_of(http, sandbox)
        payload = await signed(sandbox, requirements)
        body = {"x402Version": 1, "paymentPayload": payload, "paymentRequirements": requirements}
        verified = await ask(http, f"{sandbox.hub_url}/verify", body)
        assert (verified["isValid"], verified["invalidReason"]) == (True, None)
        settled = await ask(http, f"{sandbox.hub_url}/settle", {**body, "confirm": True})
        assert (settled["success"], settled["payer"]) == (True, sandbox.solana_wallets.buyer.address)


async def test_the_official_facilitator_settles_on_our_node(sandbox: Sandbox) -> None:
    """By the node's methods and by its WebSocket."""
    async with aiohttp.ClientSession() as http:
        requirements = await requirements_of(http, sandbox)
    payload = await signed(sandbox, requirements)
    fee_payers = {one.address: one.secret_key for one in sandbox.solana_wallets.fee_payers}
    wish = {
        "operation": "facilitate",
        "privateKey": fee_payers[requirements["extra"]["feePayer"]],
        "requirements": requirements,
        "rpcUrl": sandbox.solana_url,
        "payload": payload,
    }
    answer = await asyncio.to_thread(CLIENT.run, wish)
    assert answer["verified"]["isValid"] is True
    assert answer["settled"]["success"] is True
    assert answer["settled"]["payer"] == sandbox.solana_wallets.buyer.address
