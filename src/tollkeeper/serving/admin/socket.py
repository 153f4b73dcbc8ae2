"""One order a connection, over a Unix socket beside the database: the server takes them, a command gives them.

Whoever may enter the database's directory may give orders: the socket has the database's own mode, 0600.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import stat
import tempfile
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError
from tollkeeper.serving import StartError
from tollkeeper.storage.engine.private_files import make_private_directory
from tollkeeper.storage.urls import server_of, shown_url, sqlite_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tollkeeper.core.json_types import JsonObject

    Carry = Callable[[JsonObject], Awaitable[JsonObject]]

_ORDER_SIZE_BYTES: Final = 64 * 1024
_ANSWER_SECONDS: Final = 120
_UNREADABLE: Final = {"error": "the order cannot be read"}
_LOG = structlog.get_logger("tollkeeper.serving.admin")


def _place(database_url: str) -> Path:
    """Beside the database; for a server's, in a directory of this user's on this machine. Raises: StartError."""
    if server_of(database_url) is None:
        return sqlite_path(database_url).absolute()
    directory = Path(tempfile.gettempdir()) / f"tollkeeper-{os.geteuid()}"
    make_private_directory(directory)
    made = directory.stat()
    if made.st_uid != os.geteuid() or stat.S_IMODE(made.st_mode) & 0o077:
        raise StartError(f"{directory} is to be this user's alone: orders to the server are given there")
    return directory / hashlib.sha256(database_url.encode()).hexdigest()[:16]


@contextmanager
def _address(database_url: str) -> Iterator[str]:
    """The socket's path, short whatever the directory: a Unix address holds about a hundred bytes."""
    path = _place(database_url)
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


async def _outcome(carry: Carry, text: bytes) -> JsonObject:
    """The answer to an order: `done`, or `error` with the reason."""
    try:
        order = json.loads(text)
        return {"done": await carry(order)} if isinstance(order, dict) else _UNREADABLE
    except ApiError as refusal:
        return {"error": refusal.message}
    except RpcUnavailable as error:
        return {"error": f"the chain cannot be asked: {error}"}
    except ValueError:
        return _UNREADABLE
    except Exception:  # noqa: BLE001 - logged; the server goes on
        _LOG.exception("order_failed")
        return {"error": "the order failed: see the server's log"}


@asynccontextmanager
async def taking_orders(database_url: str, carry: Carry) -> AsyncIterator[None]:
    """Take orders until the block ends.

    The caller holds the database's lock, so a socket that is there already is a dead process's.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # a line that is too long, or a command that was ended
            answer = await _outcome(carry, await reader.readline())
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


async def give_order(database_url: str, order: JsonObject) -> JsonObject:
    """The running server's answer: `done` or `error`. Raises: StartError where no server answers."""
    path = shown_url(database_url)
    try:
        with _address(database_url) as address:
            reader, writer = await asyncio.open_unix_connection(address)
    except OSError as error:  # FileNotFoundError, ConnectionRefusedError: nobody listens
        msg = f"no server runs on {path} ({error.strerror}), and it carries orders out: start it, then ask again"
        raise StartError(msg) from error
    try:
        writer.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(_ANSWER_SECONDS):
            line = await reader.readline()
    except (OSError, TimeoutError):
        line = b""
    finally:
        writer.close()
    if not line.endswith(b"\n"):
        raise StartError(f"the server on {path} did not answer: ask again, what it has done is not done twice")
    answer: JsonObject = json.loads(line)
    return answer
