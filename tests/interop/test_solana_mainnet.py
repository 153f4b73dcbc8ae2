"""Unmodified official clients on a chain that says it is Solana's main network, which version 1 calls `solana`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.recording_target import recording_target
from tests.gateway.solana_market import SolanaMarket, mainnet_market
from tests.interop.official import (
    FACILITATOR_CLIENTS_ON_SOLANA,
    PAYING_CLIENTS_ON_SOLANA,
    SIGNS_NOTHING_ON_SOLANA,
    Json,
    ask_facilitator,
    sign,
)

V1_NAME = "solana"
PRICE_MICRO = 10_000


@pytest_asyncio.fixture
async def market(tmp_path: Path) -> AsyncIterator[SolanaMarket]:
    async with recording_target() as target, mainnet_market(target, tmp_path) as running:
        yield running


async def wallet_balance(market: SolanaMarket, account: str) -> int:
    found = await market.node("getTokenAccountBalance", account)
    return int(found["value"]["amount"])


async def owners_account(market: SolanaMarket, wanted: Json) -> str:
    """The account that a payment of these requirements reaches."""
    draft = await market.draft(wanted)
    return str(draft.instructions[2].accounts[2].pubkey)


@pytest.mark.parametrize("client", ["x402-2.25.0-httpx", "x402-fetch-1.2.0"])
async def test_official_client_knows_the_network_by_the_name_in_the_402(client: str, market: SolanaMarket) -> None:
    gate = await market.gate(credits=2)
    wanted = await market.requirements(gate)
    assert wanted["network"] == V1_NAME
    account = await owners_account(market, wanted)
    had = await wallet_balance(market, account)

    wish = {
        "url": gate["accessUrl"],
        "privateKey": market.wallets.buyer.secret_key,
        "network": V1_NAME,
        "rpcUrl": market.rpc_url,
    }
    bought = await asyncio.to_thread(PAYING_CLIENTS_ON_SOLANA[client].run, wish)

    assert (bought["error"], bought["status"]) == (None, 200), bought
    receipt = bought["receipt"]
    assert (receipt["success"], receipt["payer"]) == (True, market.wallets.buyer.address)
    (status,) = (await market.node("getSignatureStatuses", [receipt["transaction"]]))["value"]
    assert status["err"] is None
    assert await wallet_balance(market, account) == had + PRICE_MICRO
    (paid,) = market.target.requests
    assert paid.header("x-payer") == market.wallets.buyer.address


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS_ON_SOLANA)
async def test_hub_settles_for_an_official_facilitator_client_by_that_name(client: str, market: SolanaMarket) -> None:
    gate = await market.gate()
    requirements = await market.requirements(gate)
    account = await owners_account(market, requirements)
    had = await wallet_balance(market, account)

    def ask() -> list[Json]:
        signer = "npm-x402-1.2.0" if client == SIGNS_NOTHING_ON_SOLANA else client
        keys = [market.wallets.buyer.secret_key]
        (payload,) = sign(FACILITATOR_CLIENTS_ON_SOLANA[signer], requirements, keys, rpcUrl=market.rpc_url)
        assert payload["network"] == V1_NAME
        asked = {"payload": payload, "requirements": requirements}
        calls: list[Json] = [{"operation": operation, **asked} for operation in ("verify", "settle")]
        return ask_facilitator(
            FACILITATOR_CLIENTS_ON_SOLANA[client], f"{market.url}/hub", [*calls, {"operation": "supported"}]
        )

    results = await asyncio.to_thread(ask)

    assert [result.get("error") for result in results] == [None] * 3, json.dumps(results)
    valid, settled, supported = (result["answer"] for result in results)
    assert (valid["isValid"], valid["payer"]) == (True, market.wallets.buyer.address)
    assert (settled["success"], settled["network"]) == (True, V1_NAME)
    assert V1_NAME in {kind["network"] for kind in supported["kinds"]}
    assert await wallet_balance(market, account) == had + PRICE_MICRO
