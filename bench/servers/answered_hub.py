"""Our hub with a chain that answers at once, inside the process: what is left is everything else of /verify.

Prints {"url": ...} as one line when it serves. HTTP server, application, access log, rules and database are the
product's own; only `EvmChain.state` is replaced, by the facts of a healthy payer.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.payments import NETWORK, sandbox_asset
from bench.servers.our_hub import serve_application
from tollkeeper.api import clock_ms
from tollkeeper.auth import Auth
from tollkeeper.chains.blocks import Block
from tollkeeper.chains.evm import EvmChain, EvmConfig
from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.verification import ChainFacts
from tollkeeper.hub.accounts import Account
from tollkeeper.hub.app import Hub, create_app
from tollkeeper.hub.families import HubNetwork
from tollkeeper.hub.signer import Signer
from tollkeeper.logs import configure_logs
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.access import AccessLog
from tollkeeper.serving.http_server import run, until_signalled
from tollkeeper.storage import open_database

if TYPE_CHECKING:
    import asyncio

    from tollkeeper.core.verification import EvmAsset
    from tollkeeper.core.wire import EvmPayload

FACTS: Final = ChainFacts(asset_has_code=True, wallet_accepts=None, nonce_used=False, balance=10**12, revert=None)
PUBLIC_URL: Final = "http://127.0.0.1:8402"


class AnsweredChain(EvmChain):
    """A network that needs no node: every payer is healthy, and the latest block is of now."""

    async def open(self) -> None:
        """Adopts the sandbox's token."""
        self.asset = sandbox_asset()

    async def state(
        self, payload: EvmPayload, asset: EvmAsset, sender: str, *, is_signed_by_key: bool
    ) -> tuple[ChainFacts, Block]:
        """The facts, without a question."""
        del payload, asset, sender, is_signed_by_key
        return FACTS, Block(number=1, timestamp_seconds=int(time.time()), base_fee_wei=1)


async def serve_hub(directory: str, stop: asyncio.Event) -> None:
    """The hub, its database in `directory`, until `stop` is set."""
    database = open_database(f"sqlite:///{Path(directory) / 'hub.db'}")
    signer = Signer(derive_wallets().relayer.private_key)
    config = EvmConfig(network=NETWORK, rpc_urls=())
    auth = Auth(database, (("bench", bytes(32)),), PUBLIC_URL, clock_ms, os.urandom, networks=(NETWORK,))
    hub = Hub(database, auth, [HubNetwork(config, (signer,))], public_url=PUBLIC_URL)
    chain = AnsweredChain(config)
    await chain.open()
    account = hub.accounts[NETWORK.name]
    assert isinstance(account, Account)
    hub.accounts[NETWORK.name] = replace(account, chain=chain)
    try:  # not started: nothing is settled here, so nothing needs to be completed
        await serve_application(AccessLog(create_app(hub, manages_hub=False)), stop)
    finally:
        await hub.close()
        await database.close()


def main() -> None:
    """Serve until told to stop."""
    configure_logs(LogLevel.WARNING, LogFormat.JSON, colours=False)
    with tempfile.TemporaryDirectory(prefix="tollkeeper-bench-") as directory:
        run(until_signalled(lambda stop: serve_hub(directory, stop)))


if __name__ == "__main__":
    main()
