"""Our hub as `tollkeeper hub` composes it, with the sandbox's public keys, on a chain whose node is the first argument.

`solana` as the second says that it is a node of Solana.
Prints {"url": ...} as one line when it serves. Its log shows warnings and worse, as the reference's does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.keys.keyring import Secret
from tollkeeper.core.networks import Family
from tollkeeper.logs import configure_logs
from tollkeeper.sandbox.stack import sandbox_settings
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.composition import compose
from tollkeeper.serving.http.server import HttpServer, listen, run, until_signalled
from tollkeeper.settings.model import GasCaps, Role

if TYPE_CHECKING:
    from tollkeeper.serving.http.asgi import Application


async def serve_application(app: Application, stop: asyncio.Event) -> None:
    """Listen on a free port, say where, and serve until `stop` is set."""
    async with HttpServer(app, listen("127.0.0.1", 0), drain_seconds=1) as server:
        print(json.dumps({"url": server.url}), flush=True)
        await stop.wait()


async def serve_hub(directory: str, rpc_url: str, stop: asyncio.Event, *, is_solana: bool) -> None:
    """The hub, its database in `directory`, until `stop` is set."""
    wallets = derive_wallets()
    relayer = Secret(wallets.relayer.private_key)
    path = Path(directory) / "hub.db"
    settings = sandbox_settings(
        "http://127.0.0.1:8402", path, rpc_url, relayer, wallets, solana_url=rpc_url if is_solana else ""
    )
    if is_solana:
        networks = {name: one for name, one in settings.networks.items() if one.network.family is Family.SOLANA}
        settings = dataclasses.replace(settings, networks=networks, gas=GasCaps(budget_per_hour_lamports=10**15))
    async with compose(dataclasses.replace(settings, role=Role.HUB)) as app:
        await serve_application(app, stop)


def main() -> None:
    """Serve until told to stop."""
    configure_logs(LogLevel.WARNING, LogFormat.JSON, colours=False)
    with tempfile.TemporaryDirectory(prefix="tollkeeper-bench-") as directory:
        run(until_signalled(lambda stop: serve_hub(directory, sys.argv[1], stop, is_solana=sys.argv[2:] == ["solana"])))


if __name__ == "__main__":
    main()
