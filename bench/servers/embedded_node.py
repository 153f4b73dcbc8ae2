"""The sandbox's chain in a process of its own. Prints {"url": ...} as one line when it serves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.serving.http.server import run, until_signalled

if TYPE_CHECKING:
    import asyncio


async def serve(stop: asyncio.Event) -> None:
    """The chain, until `stop` is set."""
    async with EvmNode() as node:
        print(json.dumps({"url": node.url}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    run(until_signalled(serve))
