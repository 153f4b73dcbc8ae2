"""How a reference server listens: uvicorn on a free loopback port, its address on standard output once it is bound."""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from fastapi import FastAPI


def serve(app: FastAPI) -> None:
    """Serve until told to stop. Connections made from the moment of the printed line on are answered."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}) + "\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])
