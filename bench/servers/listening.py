"""Serving one protocol on a free port of this machine, whose address is printed as a line of JSON."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def serve_protocol(protocol: Callable[[], asyncio.BaseProtocol], stop: asyncio.Event) -> None:
    """Every connection is the protocol's, until `stop` is set."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await stop.wait()
    server.close()
