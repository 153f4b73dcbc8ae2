"""The sandbox's Solana chain in a process of its own. Prints {"url": ...} as one line when it serves.

It executes what it is sent at the next slot's beginning, as a cluster does.
"""

from __future__ import annotations

import asyncio
import json

from tollkeeper.sandbox.solana.node import SLOT_SECONDS, SolanaNode
from tollkeeper.serving.http.server import run, until_signalled


async def serve(stop: asyncio.Event) -> None:
    """The chain, until `stop` is set."""
    async with SolanaNode(slot_seconds=None) as node:
        node.chain.holds = True
        print(json.dumps({"url": node.url}), flush=True)
        while not stop.is_set():
            await asyncio.sleep(SLOT_SECONDS)
            node.chain.next_slot()
            node.chain.release()
            node.chain.holds = True


if __name__ == "__main__":
    run(until_signalled(serve))
