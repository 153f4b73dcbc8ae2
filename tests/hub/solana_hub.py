"""A hub on a real socket in front of the embedded Solana chain, and payments to bring to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.books import assert_books_agree
from tests.chains.solana_node import FEE_PAYER, WALLETS, paying
from tests.core.solana_payments import Draft
from tests.gateway.composed import settings_for
from tests.hub.hub_under_test import PUBLIC_URL, Answer, HubUnderTest, serving, start_hub
from tollkeeper.api import clock_ms
from tollkeeper.auth import Auth
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.solana.programs import TOKEN_PROGRAM
from tollkeeper.core.solana.rules import read_transfer
from tollkeeper.core.x402.version1 import SolanaPayload
from tollkeeper.hub.app import Hub, create_app
from tollkeeper.hub.families import HubNetwork
from tollkeeper.hub.settlement.recovery import SettlementRecovery
from tollkeeper.hub.solana.account import SolanaAccount
from tollkeeper.hub.solana.signer import FeePayer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import SolanaWallet
from tollkeeper.settings.model import NetworkSettings, Role, Settings
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database

NETWORK: Final = "solana-devnet"
USDC: Final = NETWORKS[NETWORK].usdc.address


def body_of(payload: SolanaPayload, amount: int, **requirements: Any) -> dict[str, Any]:
    """What a resource server sends to verify or settle."""
    return {
        "x402Version": 1,
        "paymentPayload": {
            "x402Version": 1,
            "scheme": "exact",
            "network": NETWORK,
            "payload": {"transaction": payload.transaction},
        },
        "paymentRequirements": {
            "scheme": "exact",
            "network": NETWORK,
            "maxAmountRequired": str(amount),
            "asset": USDC,
            "payTo": WALLETS.owner.address,
            "resource": "https://gate.example/abc",
            "description": "",
            "mimeType": "",
            "maxTimeoutSeconds": 60,
            "extra": {"feePayer": str(FEE_PAYER.pubkey())},
            **requirements,
        },
    }


@dataclass
class SolanaHub:
    """A running hub with its chain."""

    hub: HubUnderTest
    node: SolanaNode

    def payment(self, amount: int = 10_000, **options: Any) -> dict[str, Any]:
        """The body of a new payment of the buyer to the owner."""
        return self.asking(paying(self.node, amount, **options), amount)

    def asking(self, draft: Draft, amount: int = 10_000, **requirements: Any) -> dict[str, Any]:
        """The body of that payment."""
        return body_of(draft.payload(), amount, **requirements)

    async def verify(self, body: dict[str, Any]) -> Answer:
        """One verify."""
        return await self.hub.post("/verify", body)

    async def settle(self, body: dict[str, Any], *, confirm: bool = True, **headers: str) -> Answer:
        """One settle."""
        return await self.hub.post("/settle", {**body, "confirm": confirm}, **headers)

    @property
    def recovery(self) -> SettlementRecovery[Any, Any, Any]:
        """Of the Solana networks."""
        return self.hub.hub.recoveries[Family.SOLANA]

    @property
    def account(self) -> SolanaAccount:
        """Of the chain's network."""
        account = self.hub.hub.accounts[NETWORK]
        assert isinstance(account, SolanaAccount)
        return account

    async def complete(self) -> None:
        """One pass of recovery, now, over everything."""
        await self.recovery.complete(clock_ms() + 3_600_000)

    async def status(self, body: dict[str, Any]) -> str:
        """The public status of a payment; "unknown" where the hub knows none."""
        answer = await self.hub.get(f"/payments/{NETWORK}/{message_hash(body)}")
        return "unknown" if answer.status == 404 else str(answer.body["status"])

    @property
    def earned(self) -> int:
        """What the owner has."""
        return self.node.chain.token_balance(self.node.chain.open_account(WALLETS.owner.address))

    @property
    def fee_money(self) -> int:
        """What our fee payers have together."""
        return sum(self.node.chain.balance(one.address) for one in WALLETS.fee_payers)


def message_hash(body: dict[str, Any]) -> str:
    """The identity of a payment."""
    return read_transfer(SolanaPayload(body["paymentPayload"]["payload"]["transaction"])).transaction.message.hash


def solana_settings(rpc_url: str, database: Path, role: Role = Role.HUB) -> Settings:
    """Of a program of that chain alone."""
    networks = {NETWORK: NetworkSettings(NETWORKS[NETWORK], (rpc_url,))}
    return settings_for(rpc_url, database, role=role, networks=networks)


def new_solana_hub(
    database: Database,
    rpc_url: str,
    *,
    keys: Sequence[SolanaWallet] = WALLETS.fee_payers,
    now_ms: Callable[[], int] = clock_ms,
    recovery_interval_seconds: float = 3600,
    shared_life_seconds: float | None = None,
    trusted_keys: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Hub:
    """A hub of the embedded chain's network, its recovery at rest unless told otherwise."""
    config = replace(SolanaConfig(NETWORKS[NETWORK], (rpc_url,), timeout_seconds=10.0), **changes)
    auth = Auth(database, [("k1", bytes(range(32)))], PUBLIC_URL, clock_ms, os.urandom)
    networks = [HubNetwork(config, [FeePayer(one.seed) for one in keys])]
    return Hub(
        database,
        auth,
        networks,
        public_url=PUBLIC_URL,
        now_ms=now_ms,
        recovery_interval_seconds=recovery_interval_seconds,
        shared_life_seconds=shared_life_seconds,
        trusted_keys=trusted_keys or {},
    )


@asynccontextmanager
async def run_solana_hub(
    directory: Path, *, slot_seconds: float | None = None, token_program: str = TOKEN_PROGRAM, **config: Any
) -> AsyncIterator[SolanaHub]:
    """The chain and a hub of it. Slots pass by hand unless told otherwise."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=slot_seconds, token_program=token_program) as node,
        hub_of(directory, node, **config) as running,
    ):
        yield running


@asynccontextmanager
async def hub_of(directory: Path, node: SolanaNode, *, rpc_url: str = "", **config: Any) -> AsyncIterator[SolanaHub]:
    """A hub of that chain, which may have been there before."""
    database = open_database(str(directory / "hub.db"))
    try:
        async with served(new_solana_hub(database, rpc_url or node.url, **config), database, node) as running:
            yield running
    finally:
        await database.close()
    assert_books_agree(directory)


@asynccontextmanager
async def served(hub: Hub, database: Database, node: SolanaNode) -> AsyncIterator[SolanaHub]:
    """The hub, started, over HTTP, until the block ends."""
    try:
        await start_hub(hub)
        async with (
            serving(create_app(hub)) as url,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            yield SolanaHub(HubUnderTest(hub, database, url, http), node)
    finally:
        await hub.close()
