"""A gateway as a process of its own, to be killed: `python -m tests.gateway.gateway_process OPTIONS`, OPTIONS in JSON.

It prints its URL, and its database fails where a file orders it to. Without a hub's URL it has a hub of its own. Its
keys are a sandbox's; with a `solana_url` it sells on that chain alone, with one `beside` on both.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from tests.engines import IS_POSTGRESQL, url_of
from tests.gateway.composed import settings_for
from tests.hub.faulty_database import FaultyDatabase
from tests.hub.hub_process import TestProcess
from tests.started import program
from tollkeeper.core.http.signatures import Algorithm, SigningKey
from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway.purchase.recovery import PurchaseRecovery
from tollkeeper.serving import composition
from tollkeeper.serving.http.server import HttpServer, listen
from tollkeeper.settings.model import NetworkSettings, Role, Settings
from tollkeeper.storage.urls import open_database

HOST: Final = "127.0.0.1"
_NEVER_SECONDS: Final = 10**6


def gateway_settings(directory: Path, node_url: str, hub_url: str, port: int, **changes: Any) -> Settings:
    """Of a gateway on the `gateway.db` of that directory."""
    database, url = directory / "gateway.db", f"http://{HOST}:{port}"
    if hub_url:
        changes |= {"role": Role.GATEWAY, "hub_url": hub_url}
    return settings_for(node_url, database, url, **changes)


def gateway_keys(port: int) -> dict[str, dict[str, str]]:
    """By what a hub knows the requests of the gateway at that port: its public keys in hex, by their names."""
    ring = settings_for("", Path("gateway.db")).auth_keys
    assert ring is not None
    signing = (SigningKey(name, Algorithm.ED25519, seed) for name, seed in ring.keys.items())
    return {f"http://{HOST}:{port}": {key.key_id: key.verifying_key().material.hex() for key in signing}}


class GatewayProcess(TestProcess):
    """A gateway process; `changes`: of settings. `orders`: the file that faults of its database are ordered by."""

    def __init__(
        self,
        directory: Path,
        node_url: str,
        hub_url: str,
        port: int,
        *,
        orders: Path,
        on_start: Callable[[TestProcess], object],
        under: Sequence[str] = (),
        **changes: Any,
    ) -> None:
        """`under`: a command that runs it."""
        given = {"directory": str(directory), "node_url": node_url, "hub_url": hub_url, "port": port, **changes}
        database = url_of(directory / "gateway.db")
        options = json.dumps({"orders": str(orders), "settings": given, "server": database if IS_POSTGRESQL else None})
        super().__init__([*under, *program("tests.gateway.gateway_process", options)], on_start)


async def main(options: dict[str, Any]) -> None:
    """Serves until it is killed. Its log goes to standard error: nobody reads the other one after the URL."""
    renderer = structlog.processors.KeyValueRenderer()
    structlog.configure(
        [structlog.processors.format_exc_info, renderer], logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    PurchaseRecovery.interval_seconds = 0.1
    given = options["settings"]
    if solana_url := given.pop("solana_url", ""):
        network = NETWORKS["solana-devnet"]
        given |= {"networks": {network.name: NetworkSettings(network, (solana_url,))}, "default_network": network}
    if solana_url := given.pop("beside", ""):
        nodes = {"base-sepolia": given["node_url"], "solana-devnet": solana_url}
        given |= {"networks": {name: NetworkSettings(NETWORKS[name], (url,)) for name, url in nodes.items()}}
    settings = gateway_settings(Path(given.pop("directory")), **given)
    if options["server"] is not None:
        settings = replace(settings, database_url=options["server"])

    def open_faulty(url: str) -> FaultyDatabase:
        return FaultyDatabase(open_database(url), Path(options["orders"]))

    setattr(composition, open_database.__name__, open_faulty)
    async with (
        composition.compose(settings, _NEVER_SECONDS) as app,
        HttpServer(app, listen(HOST, settings.port), drain_seconds=1) as server,
    ):
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
