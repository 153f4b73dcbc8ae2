"""npm x402 1.2.0 on the embedded Solana chain: its client pays our gate and our hub, its facilitator uses our node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest_asyncio

from tests.interop.official import PAYING_CLIENTS, Driver, Json
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


async def test_the_official_client_buys_a_call_at_a_gate(sandbox: Sandbox) -> None:
    """Nothing but the gate's 402 says what to pay, to whom, and who pays the fee."""
    wallets = sandbox.solana_wallets
    sold = {
        "targetUrl": sandbox.target_url,
        "price": "0.01",
        "credits": 2,
        "network": "solana-devnet",
        "paymentAddress": wallets.owner.address,
    }
    async with aiohttp.ClientSession() as http:
        gate = await ask(http, f"{sandbox.gateway_url}/api/v1/paygates", sold)
    wish = {
        "url": gate["accessUrl"],
        "privateKey": wallets.buyer.secret_key,
        "network": "solana-devnet",
        "rpcUrl": sandbox.solana_url,
    }
    bought = await asyncio.to_thread(PAYING_CLIENTS["x402-fetch-1.2.0"].run, wish)
    assert (bought["error"], bought["status"]) == (None, 200), bought
    receipt = bought["receipt"]
    assert (receipt["success"], receipt["network"]) == (True, "solana-devnet")
    assert receipt["payer"] == wallets.buyer.address
    assert (bought["headers"]["x-credits-total"], bought["headers"]["x-credits-remaining"]) == ("2", "1")


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
