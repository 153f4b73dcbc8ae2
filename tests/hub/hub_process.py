"""A hub as a process of its own, to be killed: `python -m tests.hub.hub_process OPTIONS`, OPTIONS in JSON.

It prints its URL.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import structlog

from tests.engines import url_of
from tests.forked import start
from tests.hub.faulty_database import FaultyDatabase
from tests.hub.hub_under_test import hub_config, lanes_of, new_hub, serving
from tests.hub.solana_hub import new_solana_hub
from tests.started import light_environment, program
from tollkeeper.hub.app import Hub, create_app
from tollkeeper.hub.evm import batch
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database

ROOT: Final = Path(__file__).parents[2]


def hub_command(directory: Path, node_url: str, **options: Any) -> list[str]:
    """What runs it on the `hub.db` of that directory."""
    given = {"database": url_of(directory / "hub.db"), "node_url": node_url, **options}
    return program("tests.hub.hub_process", json.dumps(given))


class TestProcess:
    """A program that prints its URL once it listens."""

    __test__ = False

    def __init__(self, command: Sequence[str], on_start: Callable[[Any], object] = lambda _process: None) -> None:
        """`on_start` is called with it once it runs, before it listens."""
        environment = light_environment(os.environ)
        self.process: subprocess.Popen[str] = start(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        on_start(self)
        assert self.process.stdout is not None
        self.url: str = self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        """Stop it, or let it go on."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class HubProcess(TestProcess):
    """A hub process. Starting it blocks until it listens: do that in a thread, because it asks its node meanwhile."""

    def __init__(
        self,
        directory: Path,
        node_url: str,
        *,
        other_node_urls: Sequence[str] = (),
        batch_queue_depth: int = 0,
        batch_items_max: int | None = None,
        company_seconds: float | None = None,
        node_timeout_seconds: float = 2.0,
        orders: Path | None = None,
        is_solana: bool = False,
        stuck_seconds: float | None = None,
        wallet_factories: Sequence[str] = (),
        under: Sequence[str] = (),
        trusted_keys: Mapping[str, Mapping[str, str]] | None = None,
        on_start: Callable[[HubProcess], object] = lambda _process: None,
    ) -> None:
        """`orders`: the file that faults of its database are ordered by; `under` is a command that runs it.

        `company_seconds`: how long whoever waits for company does so; until a batch is full at most.
        `stuck_seconds`: how old a transaction is before it may be replaced. `trusted_keys`: of each gateway, by its
        URL, in hex by their names. `on_start` is called once it runs, before it listens.
        """
        command = hub_command(
            directory,
            node_url,
            other_node_urls=list(other_node_urls),
            config={
                "batch_queue_depth": batch_queue_depth,
                **({} if batch_items_max is None else {"batch_items_max": batch_items_max}),
                "timeout_seconds": node_timeout_seconds,
                "wallet_factories": list(wallet_factories),
            },
            company_seconds=company_seconds,
            orders=None if orders is None else str(orders),
            is_solana=is_solana,
            stuck_seconds=stuck_seconds,
            trusted_keys=trusted_keys or {},
        )
        super().__init__([*under, *command], on_start)


async def settle_at(url: str, body: object) -> int | None:
    """The status of the answer; None where the hub died first."""
    try:
        async with aiohttp.ClientSession() as http, http.post(url + "/settle", json=body) as answer:
            return answer.status
    except aiohttp.ClientError:
        return None


def _urls(options: dict[str, Any]) -> tuple[str, ...]:
    return options["node_url"], *options.get("other_node_urls", ())


def on_evm(database: Database, options: dict[str, Any]) -> Hub:
    """A hub of the chain at the node."""
    key = derive_wallets().relayer.private_key
    config = hub_config(options["node_url"], **options.get("config", {}), rpc_urls=_urls(options))
    hub = new_hub(
        database,
        (key,),
        config,
        trusted_keys={
            gateway: {name: bytes.fromhex(key) for name, key in keys.items()}
            for gateway, keys in options.get("trusted_keys", {}).items()
        },
        recovery_interval_seconds=0.1,
    )
    if options.get("company_seconds") is not None:
        batch.WAIT_SECONDS = options["company_seconds"]  # type: ignore[misc]  # as of no test before
    if options.get("stuck_seconds") is not None:
        lanes_of(hub).stuck_seconds = options["stuck_seconds"]
    return hub


def on_solana(database: Database, options: dict[str, Any]) -> Hub:
    """The same of the embedded Solana chain."""
    config = {"timeout_seconds": options["config"]["timeout_seconds"], "rpc_urls": _urls(options)}
    return new_solana_hub(database, options["node_url"], recovery_interval_seconds=0.1, **config)


async def main(options: dict[str, Any]) -> None:
    """Serves until it is killed. Its log goes to standard error: nobody reads the other one after the URL."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    database: Database = open_database(options["database"])
    if options.get("orders") is not None:
        database = FaultyDatabase(database, Path(options["orders"]))
    hub = on_solana(database, options) if options.get("is_solana") else on_evm(database, options)
    try:
        await hub.start()
        async with serving(create_app(hub)) as url:
            sys.stdout.write(url + "\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
    finally:
        await database.close()  # its thread would keep a process alive that could not start


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
