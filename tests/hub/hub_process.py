"""A hub as a process of its own, to be killed: `python -m tests.hub.hub_process DATABASE NODE_URL BATCH_QUEUE_DEPTH`.

It prints its URL.
"""

from __future__ import annotations

import asyncio
import sys

from tests.hub.hub_under_test import hub_config, new_hub, serving
from tollkeeper.hub.app import create_app
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.storage import open_database


async def main(database_path: str, node_url: str, batch_queue_depth: str) -> None:
    """Serves until it is killed."""
    database = open_database(database_path)
    key = derive_wallets().relayer.private_key
    config = hub_config(node_url, batch_queue_depth=int(batch_queue_depth))
    hub = new_hub(database, (key,), config, completer_interval_seconds=0.1)
    await hub.start()
    async with serving(create_app(hub, manages_hub=False)) as url:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
