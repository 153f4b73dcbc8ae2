"""Everything of the sandbox in one event loop: chain, hub, gateway and demo target, on this machine only (contract 1).

Its keys are public and its money is play money, so its gates are anybody's to manage and its targets may be private:
never more than a loopback address listens. With `rpc_url` another node takes the embedded chain's place.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.core.configuration import AnonymousPaygates, LogFormat, LogLevel, PublicUrl
from tollkeeper.core.evm.encoding import checksum_address, keccak256
from tollkeeper.core.keys.keyring import Secret
from tollkeeper.core.keys.sealing import KeyRing
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.challenge import Profile
from tollkeeper.core.trust import DEFAULT_EXPOSURE
from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.sandbox.play import TestWalletPlay
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.target import DemoTarget
from tollkeeper.sandbox.wallets import (
    PUBLIC_SEED,
    SolanaWallets,
    TestWallets,
    derive_solana_wallets,
    derive_wallets,
    fee_payers_of,
)
from tollkeeper.serving import StartError
from tollkeeper.serving.composition import compose
from tollkeeper.serving.http.server import HttpServer, listen
from tollkeeper.settings.model import (
    HUB_PREFIX,
    DepthSettings,
    FileSettings,
    GasCaps,
    NetworkSettings,
    Role,
    Settings,
)
from tollkeeper.storage.engine.private_files import make_private_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.sandbox.evm.engine import EngineName

HOST: Final = "127.0.0.1"
NETWORK: Final = NETWORKS["base-sepolia"]
SOLANA: Final = NETWORKS["solana-devnet"]
_DATABASE: Final = "sandbox.db"
_DRAIN_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a sandbox.

    `port` 0 takes a free one, `engine` None the fastest that is there, `data_dir` None a temporary directory,
    `relayer_key` None the public test wallet's.
    """

    port: int = 0
    data_dir: Path | None = None
    engine: EngineName | None = None
    rpc_url: str | None = None
    relayer_key: Secret[bytes] | None = None
    log_level: LogLevel = LogLevel.WARNING


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running sandbox: where its parts are, and who is in it."""

    gateway_url: str
    hub_url: str
    rpc_url: str
    target_url: str
    wallets: TestWallets
    target: DemoTarget
    solana_url: str
    solana_wallets: SolanaWallets

    @property
    def token(self) -> str:
        """The token's address (EIP-55)."""
        return checksum_address(NETWORK.usdc.address)

    @property
    def pay_to(self) -> str:
        """Address that is paid unless a gate names another one (EIP-55)."""
        return checksum_address(self.wallets.owner.address)

    def as_json(self) -> JsonObject:
        """Return what a program needs to know, as JSON."""
        return {
            "gatewayUrl": self.gateway_url,
            "hubUrl": self.hub_url,
            "rpcUrl": self.rpc_url,
            "targetUrl": self.target_url,
            "payTo": self.pay_to,
            "buyerKey": self.wallets.buyer.private_key_hex,
            "buyerAddress": checksum_address(self.wallets.buyer.address),
            "token": self.token,
            "solana": {
                "rpcUrl": self.solana_url,
                "payTo": self.solana_wallets.owner.address,
                "buyerKey": self.solana_wallets.buyer.secret_key,
                "buyerAddress": self.solana_wallets.buyer.address,
                "token": SOLANA.usdc.address,
            },
        }


@asynccontextmanager
async def open_sandbox(options: Options) -> AsyncIterator[Sandbox]:
    """A running sandbox, until the block ends. Raises: StartError, StorageError."""
    wallets = derive_wallets()
    async with AsyncExitStack() as parts:
        directory = options.data_dir or Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-")))
        database = _database_path(directory, has_own_chain=options.rpc_url is None)
        listening = parts.enter_context(listen(HOST, options.port))
        rpc_url = options.rpc_url
        if rpc_url is None:
            rpc_url = (await parts.enter_async_context(_node(options, wallets))).url
        relayer = options.relayer_key or Secret(wallets.relayer.private_key)
        solana_wallets = replace(derive_solana_wallets(), fee_payers=fee_payers_of(relayer.reveal()))
        solana_url = (await parts.enter_async_context(SolanaNode(wallets=solana_wallets))).url
        target = DemoTarget()
        target_server = await parts.enter_async_context(HttpServer(target, listen(HOST, 0), drain_seconds=1))
        gateway_url = f"http://{HOST}:{listening.getsockname()[1]}"
        settings = sandbox_settings(gateway_url, database, rpc_url, relayer, wallets, solana_url)
        app = await parts.enter_async_context(compose(settings, play=TestWalletPlay(wallets)))
        await parts.enter_async_context(HttpServer(app, listening, drain_seconds=_DRAIN_SECONDS))
        yield Sandbox(
            gateway_url=gateway_url,
            hub_url=gateway_url + HUB_PREFIX,
            rpc_url=rpc_url,
            target_url=target_server.url + "/weather",
            wallets=wallets,
            target=target,
            solana_url=solana_url,
            solana_wallets=solana_wallets,
        )


def _node(options: Options, wallets: TestWallets) -> EvmNode:
    """Raises: StartError where the engine is not installed."""
    try:
        return EvmNode(engine=options.engine, wallets=wallets)
    except ImportError as error:
        raise StartError(f"the chain's engine is not installed ({error.name})") from error


def _database_path(directory: Path, *, has_own_chain: bool) -> Path:
    """Raises: StartError for the database of an earlier run whose chain is gone."""
    try:
        make_private_directory(directory)
    except OSError as error:
        raise StartError(f"{directory} cannot be made ({error.strerror})") from error
    path = directory.absolute() / _DATABASE
    if has_own_chain and path.exists():
        raise StartError(f"{path} belongs to an earlier sandbox, whose chain is gone: choose another directory")
    return path


def sandbox_settings(
    gateway_url: str,
    database: Path,
    rpc_url: str,
    relayer: Secret[bytes],
    wallets: TestWallets,
    solana_url: str = "",
) -> Settings:
    """The settings of a sandbox, on Solana too where it has a node. Its keys follow from public words."""
    networks = {NETWORK.name: NetworkSettings(NETWORK, (rpc_url,))}
    if solana_url:
        networks[SOLANA.name] = NetworkSettings(SOLANA, (solana_url,))
    public_url = PublicUrl(gateway_url, HOST)
    return Settings(
        role=Role.SERVE,
        config_path=None,
        host=HOST,
        port=int(gateway_url.rpartition(":")[2]),
        public_url=public_url,
        app_url=gateway_url,
        hub_url=None,
        database_url=f"sqlite:///{database}",
        files=FileSettings(database.parent / "files", min_free_bytes=0),
        networks=networks,
        default_network=NETWORK,
        default_payment_address=wallets.owner.address,
        anonymous_paygates=AnonymousPaygates.MANAGE,
        allow_private_targets=True,
        challenge_profile=Profile.SUPERSET,
        exposure=DEFAULT_EXPOSURE,
        trusted_proxies=(),
        trusted_issuers=(),
        cors_origins=(),
        depths=DepthSettings(),
        gas=GasCaps(),
        encryption_keys=_ring("encryption"),
        encryption_key_paths=(),
        auth_keys=_ring("auth"),
        signer_keys=(relayer,),
        log_level=LogLevel.WARNING,
        log_format=LogFormat.AUTO,
        shutdown_timeout_seconds=_DRAIN_SECONDS,
    )


def _ring(role: str) -> KeyRing:
    return KeyRing("sandbox", {"sandbox": keccak256(f"{PUBLIC_SEED}/{role} key".encode())})
