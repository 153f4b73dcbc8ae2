"""The sandbox's Solana chain in a process of its own. Prints {"url": ...} as one line when it serves.

It executes what it is sent at once; with the argument `slots`, at the next slot's beginning, as a cluster does.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tollkeeper.sandbox.solana_node import SLOT_SECONDS, SolanaNode
from tollkeeper.serving.http_server import run, until_signalled


async def serve(stop: asyncio.Event) -> None:
    """The chain, until `stop` is set."""
    waits = sys.argv[1:] == ["slots"]
    async with SolanaNode(slot_seconds=None if waits else SLOT_SECONDS) as node:
        node.chain.holds = waits
        print(json.dumps({"url": node.url}), flush=True)
        while not stop.is_set():
            await asyncio.sleep(SLOT_SECONDS)
            if waits:
                node.chain.next_slot()
                node.chain.release()
                node.chain.holds = True


if __name__ == "__main__":
    run(until_signalled(serve))
