"""What an operator's command asks of a running server: one order a connection, over a socket beside the database.

One process writes a database, so a command that must write while the server runs hands its order over. Whoever may
enter the database's directory may give orders: the socket has the database's own mode, 0600.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.storage.opening import sqlite_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Carry = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_ORDER_SIZE_BYTES: Final = 64 * 1024
_ANSWER_SECONDS: Final = 120
_LOG = structlog.get_logger("tollkeeper.serving.control")


@contextmanager
def _address(database_url: str) -> Iterator[str]:
    """The socket's path, short whatever the directory: a Unix address holds about a hundred bytes."""
    path = sqlite_path(database_url).absolute()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}.control"
    finally:
        os.close(directory)


def _bound(address: str) -> socket.socket:
    _remove(address)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    Path(address).chmod(0o600)  # before anybody can connect
    return listening


def _remove(address: str) -> None:
    Path(address).unlink(missing_ok=True)


async def answer_order(carry: Carry, order: dict[str, Any]) -> dict[str, Any]:
    """What came of an order: `done`, or `error` with the reason, and whether to give it `again`."""
    try:
        return {"done": await carry(order)}
    except ApiError as refusal:
        return {"error": refusal.message, "again": refusal.code is Code.UNAVAILABLE}
    except RpcUnavailable as error:
        return {"error": f"the chain cannot be asked: {error}"}


@asynccontextmanager
async def taking_orders(database_url: str, carry: Carry) -> AsyncIterator[None]:
    """Takes orders until the block ends.

    The caller holds the database's lock, so a socket that is there already is a dead process's.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await answer_order(carry, json.loads(await reader.readline()))
        except (ValueError, OSError):
            answer = {"error": "the order cannot be read"}
        except Exception:  # noqa: BLE001 - logged; the server goes on
            _LOG.exception("order_failed")
            answer = {"error": "the order failed: see the server's log"}
        with suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    with _address(database_url) as address:
        server = await asyncio.start_unix_server(serve, sock=_bound(address), limit=_ORDER_SIZE_BYTES)
        try:
            yield
        finally:
            server.close()
            _remove(address)


async def give_order(database_url: str, order: dict[str, Any]) -> dict[str, Any] | None:
    """The running server's answer; None where none runs. Raises: TimeoutError, OSError."""
    with _address(database_url) as address:
        try:
            reader, writer = await asyncio.open_unix_connection(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
    writer.write(json.dumps(order).encode() + b"\n")
    async with asyncio.timeout(_ANSWER_SECONDS):
        line = await reader.readline()
    writer.close()
    if not line.endswith(b"\n"):
        return {"error": "the server ended before it answered: try again", "again": True}
    answer: dict[str, Any] = json.loads(line)
    return answer
