"""A hub as a process of its own: `python -m tests.hub.hub_process DATABASE NODE_URL BATCH_QUEUE_DEPTH [LIFE]`.

It prints its URL. With LIFE, in seconds, DATABASE is the socket of a ledger process that other hubs use too.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.hub.hub_under_test import hub_config, new_hub, serving
from tollkeeper.hub.app import create_app
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.storage import Database, open_database
from tollkeeper.storage.remote import RemoteDatabase


async def main(database_path: str, node_url: str, batch_queue_depth: str, life: str = "") -> None:
    """Serves until it is killed."""
    database: Database
    if life:
        database = remote = RemoteDatabase(Path(database_path))
        await remote.open()
    else:
        database = open_database(database_path)
    key = derive_wallets().relayer.private_key
    hub = new_hub(
        database,
        (key,),
        hub_config(node_url, batch_queue_depth=int(batch_queue_depth)),
        completer_interval_seconds=0.1,
        shared_life_seconds=float(life) if life else None,
    )
    await hub.start()
    async with serving(create_app(hub, manages_hub=False)) as url:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
