"""The program composed in the test: for Base, whose chain is an embedded one under Base's chain id and USDC address.

A world that is paid on Solana has that chain beside it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eth_utils.address import to_checksum_address

from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tests.interop.stack import OnSolana
from tests.specification.client import Chain, Http, Wallet
from tests.specification.solana_world import NETWORK, PaidOnSolana, SolanaWorld, on_solana
from tests.specification.world import World
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.evm.chain import EmbeddedChain
from tollkeeper.sandbox.evm.engine import EngineAccount, GenesisAccount
from tollkeeper.sandbox.evm.node import RELAYER_BALANCE_WEI, open_engine, planted_token
from tollkeeper.sandbox.evm.rpc import evm_rpc_app
from tollkeeper.sandbox.rpc_server import RpcServer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets, fee_payers_of
from tollkeeper.settings.model import NetworkSettings

BASE_CHAIN_ID = 8453
BASE_USDC = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"


@asynccontextmanager
async def base_world(
    folder: Path,
    target: RecordingTarget,
    http: Http,
    beside: Mapping[str, NetworkSettings] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[World]:
    """A world in which `base` is the one network, unless others stand beside it, under these settings."""
    wallets = derive_wallets()
    genesis = {
        BASE_USDC.lower(): planted_token({wallets.buyer.address: 10**9}),
        wallets.relayer.address: GenesisAccount(EngineAccount(balance=RELAYER_BALANCE_WEI), {}),
    }
    engine = open_engine(BASE_CHAIN_ID, None)
    chain = EmbeddedChain(engine, chain_id=BASE_CHAIN_ID, genesis=genesis, clock_ms=lambda: time.time_ns() // 1_000_000)
    node = RpcServer(evm_rpc_app(chain).answer_body, port=0)
    rpc_url = await node.start()
    base = NETWORKS["base"]
    networks = {base.name: NetworkSettings(base, (rpc_url,)), **beside}
    database = folder / "base.db"
    try:
        async with composed(rpc_url, database, networks=networks, default_network=base, **settings) as url:
            yield World(
                gateway_url=url,
                hub_url=url + "/hub",
                rpc_url=rpc_url,
                chain=Chain(to_checksum_address(BASE_USDC), "base", BASE_CHAIN_ID),
                target=target,
                http=http,
                buyer=Wallet(wallets.buyer.private_key_hex),
                log=folder / "nothing.txt",
                database=database,
            )
    finally:
        await node.stop()


@asynccontextmanager
async def solana_world_of_its_own(
    folder: Path, target: RecordingTarget, http: Http, **settings: Any
) -> AsyncIterator[PaidOnSolana]:
    """The same world with an embedded Solana chain, on which its gates are paid."""
    hub = fee_payers_of(derive_wallets().relayer.private_key)
    wallets = replace(derive_solana_wallets(), fee_payers=hub)
    devnet = NETWORKS[NETWORK]
    async with SolanaNode(wallets=wallets) as node:
        chain = OnSolana(
            rpc_url=node.url,
            pay_to=wallets.owner.address,
            buyer_key=wallets.buyer.secret_key,
            buyer_address=wallets.buyer.address,
            token=devnet.usdc.address,
        )
        beside = {NETWORK: NetworkSettings(devnet, (node.url,))}
        async with base_world(folder, target, http, beside, **settings) as world:
            yield on_solana(SolanaWorld(world, chain))
