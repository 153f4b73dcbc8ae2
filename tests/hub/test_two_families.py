"""One hub of an EVM network and of Solana: logins, history, one transaction, CSV (specification 4.2, 4.3).

Wallets on Solana sign by solders, as Phantom does: ed25519 over the text's bytes, shown in base58 or base64.
"""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair

from tests.auth.server import Wallet
from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.solana_node import BUYER, SECOND_BUYER, WALLETS, paying
from tests.hub.hub_under_test import (
    PUBLIC_URL,
    Answer,
    TestPayment,
    hub_config,
    new_payment,
    served,
)
from tests.hub.solana_hub import NETWORK, USDC, SolanaHub, message_hash
from tests.hub.tables import cells, filled, read_table
from tollkeeper.api import clock_ms
from tollkeeper.auth import Auth
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.networks import NETWORKS
from tollkeeper.hub.app import Hub
from tollkeeper.hub.evm.signer import Signer
from tollkeeper.hub.families import HubNetwork
from tollkeeper.hub.solana.signer import FeePayer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.storage.urls import open_database

OWNER = Keypair.from_seed(WALLETS.owner.seed)


@pytest_asyncio.fixture
async def world(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[SolanaHub]:
    database = open_database(str(tmp_path / "hub.db"))
    auth = Auth(database, [("k1", bytes(range(32)))], PUBLIC_URL, clock_ms, os.urandom)
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        evm = HubNetwork(hub_config(embedded_chain.url), (Signer(embedded_chain.wallets.relayer.private_key),))
        payers = [FeePayer(one.seed) for one in WALLETS.fee_payers]
        solana = HubNetwork(SolanaConfig(NETWORKS[NETWORK], (node.url,)), payers)
        hub = Hub(database, auth, [evm, solana], public_url=PUBLIC_URL, recovery_interval_seconds=3600)
        async with served(hub, database) as running:
            yield SolanaHub(running, node)
    assert_books_agree(tmp_path)


async def log_in(world: SolanaHub, wallet: Keypair, *, in_base64: bool = False) -> str:
    """As a page with Phantom does; the bearer."""
    asked = await world.hub.get(f"/api/v1/auth/message?walletAddress={wallet.pubkey()}")
    message: str = asked.body["message"]
    assert f"with your Solana account:\n{wallet.pubkey()}\n" in message
    signature = wallet.sign_message(message.encode())
    shown = base64.b64encode(bytes(signature)).decode() if in_base64 else str(signature)
    answer = await world.hub.post("/api/v1/auth/login", {"message": message, "signature": shown})
    assert answer.status == 200, answer.body
    assert answer.body["user"]["walletAddress"] == str(wallet.pubkey())
    return f"Bearer {answer.body['accessToken']}"


async def history(world: SolanaHub, bearer: str, query: str = "") -> list[dict[str, Any]]:
    answer = await world.hub.get(f"/api/v1/history?limit=100{query}", Authorization=bearer)
    assert answer.status == 200
    found: list[dict[str, Any]] = answer.body["history"]
    return found


def moving(world: SolanaHub, amount: int) -> dict[str, Any]:
    """The body of a transfer of the second buyer to the first."""
    draft = paying(world.node, amount, pay_to=WALLETS.buyer.address, buyer=SECOND_BUYER)
    return {
        "payload": {"transaction": draft.payload().transaction},
        "network": NETWORK,
        "asset": USDC,
        "amount": str(amount),
        "recipient": WALLETS.buyer.address,
        "confirm": True,
    }


@pytest.fixture
async def played(world: SolanaHub, embedded_chain: ChainUnderTest) -> dict[str, Any]:
    """A purchase on each network and a transfer on Solana; what each was answered."""
    payment: TestPayment = new_payment(embedded_chain)
    return {
        "evm": (await world.hub.settle(payment)).body,
        "solana": (await world.settle(world.payment())).body,
        "transfer": (await world.hub.post("/transfer", moving(world, 4_000))).body,
    }


@pytest.mark.parametrize("in_base64", [False, True])
async def test_a_solana_wallet_logs_in_as_phantom_signs(world: SolanaHub, *, in_base64: bool) -> None:
    bearer = await log_in(world, BUYER, in_base64=in_base64)
    me = await world.hub.get("/api/v1/auth/me", Authorization=bearer)
    assert me.body["walletAddress"] == str(BUYER.pubkey())


async def test_a_message_for_another_wallet_logs_nobody_in(world: SolanaHub) -> None:
    asked = await world.hub.get(f"/api/v1/auth/message?walletAddress={BUYER.pubkey()}")
    message = asked.body["message"]
    thief = {"message": message, "signature": str(SECOND_BUYER.sign_message(message.encode()))}
    refused = await world.hub.post("/api/v1/auth/login", thief)
    assert (refused.status, refused.code) == (401, "INVALID_SIGNATURE")
    evm = Wallet()
    crossed = {"message": message, "signature": evm.sign(message)}
    assert (await world.hub.post("/api/v1/auth/login", crossed)).status == 401


async def test_wallets_of_each_family_see_their_own_history_only(
    world: SolanaHub, played: dict[str, Any], embedded_chain: ChainUnderTest
) -> None:
    evm = await world.hub.login(embedded_chain.wallets.buyer)
    (item,) = await history(world, evm)
    assert (item["network"], item["transactionHash"]) == ("base-sepolia", played["evm"]["transaction"])
    (item,) = await history(world, await log_in(world, OWNER))
    assert (item["network"], item["transactionHash"]) == (NETWORK, played["solana"]["transaction"])
    newest, oldest = await history(world, await log_in(world, BUYER))
    assert [newest["type"], oldest["type"]] == ["transfer", "purchase"]
    assert newest["transactionHash"] == played["transfer"]["transaction"]
    assert (newest["signerAddress"], newest["amount"]) == (str(SECOND_BUYER.pubkey()), "4000")
    for bearer in (evm, await log_in(world, SECOND_BUYER)):
        other = "base-sepolia" if bearer is not evm else NETWORK
        assert await history(world, bearer, f"&network={other}") == []


async def test_roles_narrow_a_history_on_solana(world: SolanaHub, played: dict[str, Any]) -> None:
    bearer = await log_in(world, BUYER)
    (paid,) = await history(world, bearer, "&role=signer")
    (received,) = await history(world, bearer, "&role=recipient")
    assert paid["transactionHash"] == played["solana"]["transaction"]
    assert received["transactionHash"] == played["transfer"]["transaction"]


async def test_one_transaction_is_for_its_two_sides_only(world: SolanaHub, played: dict[str, Any]) -> None:
    bearer = await log_in(world, BUYER)
    newest, oldest = await history(world, bearer)
    assert played["transfer"]["amount"] == newest["amount"]
    one = await world.hub.get(f"/api/v1/history/{oldest['id']}", Authorization=bearer)
    assert one.body | oldest == one.body
    seller = await world.hub.get(f"/api/v1/history/{oldest['id']}", Authorization=await log_in(world, OWNER))
    assert seller.body | oldest == seller.body
    other = await world.hub.get(f"/api/v1/history/{oldest['id']}", Authorization=await log_in(world, SECOND_BUYER))
    assert (other.status, other.code) == (404, "NOT_FOUND")


async def test_a_solana_history_is_csv_too(world: SolanaHub, played: dict[str, Any]) -> None:
    bearer = await log_in(world, BUYER)
    rows = await read_table(world.hub, bearer)
    assert [row["transactionHash"] for row in rows] == [played[name]["transaction"] for name in ("transfer", "solana")]
    assert [row["type"] for row in rows] == ["transfer", "purchase"]
    assert {row["chainId"] for row in rows} == {""}
    assert {row["network"] for row in rows} == {NETWORK}
    items = await history(world, bearer)
    assert all(item["x402Data"]["messageHash"] and item["x402Data"]["payerSignature"] for item in items)
    assert [filled(row) for row in rows] == [cells(item) for item in items]


async def test_the_database_id_stands_for_the_signature_where_it_is_wished(world: SolanaHub) -> None:
    body = world.payment()
    settled: Answer = await world.hub.post("/settle", {**body, "confirm": True, "useDbId": True})
    bearer = await log_in(world, BUYER)
    (item,) = await history(world, bearer)
    assert settled.body["transaction"] == item["id"]
    assert item["x402Data"]["messageHash"] == message_hash(body)
    assert (await world.hub.get(f"/api/v1/history/{item['id']}", Authorization=bearer)).status == 200


async def test_what_is_pending_shows_no_signature(world: SolanaHub) -> None:
    world.node.chain.holds = True
    assert (await world.settle(world.payment(), Prefer="wait=0")).status == 503
    bearer = await log_in(world, BUYER)
    (item,) = await history(world, bearer)
    assert (item["status"], item["transactionHash"]) == ("pending", None)
    world.node.chain.release()
    await world.complete()
    (item,) = await history(world, bearer)
    assert item["status"] == "success"
    assert item["transactionHash"] in world.node.chain.executed
