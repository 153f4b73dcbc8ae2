"""What any gateway on this event loop costs at least: it reads nothing of what it passes on. Prints {"url": ...}.

    bare answer BYTES     every request is answered with an answer of so many bytes
    bare relay PORT       every request goes to 127.0.0.1:PORT as it is, on a kept connection, the answer back as it is
    bare commit PORT FILE as `relay`, behind a durable commit for all that came in one turn of the loop: one changed row

One read is taken for one message, which is true of small messages and of nothing else.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from tollkeeper.serving.http_server import run, until_signalled

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD: Final = b"HTTP/1.1 402 Payment Required\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class Caller(asyncio.Protocol):
    """One caller's connection; `take` is told what came."""

    def __init__(self, take: Callable[[Caller, bytes], None]) -> None:
        self._take = take
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._take(self, data)


class Target(asyncio.Protocol):
    """One connection to the target; idle ones are in `kept`."""

    def __init__(self, kept: list[Target]) -> None:
        self._kept = kept
        self._caller: Caller | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, caller: Caller, data: bytes) -> None:
        """Send these bytes; the answer goes to `caller`."""
        self._caller = caller
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        caller, self._caller = self._caller, None
        if b"\r\nConnection: close" not in data and not self._transport.is_closing():
            self._kept.append(self)
        if caller is not None and not caller.transport.is_closing():
            caller.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        if self in self._kept:
            self._kept.remove(self)


class Relay:
    """Passes on what comes, at once or behind one commit for each turn of the loop."""

    def __init__(self, port: int, database: sqlite3.Connection | None) -> None:
        self._port = port
        self._database = database
        self._kept: list[Target] = []
        self._waiting: list[tuple[Caller, bytes]] = []
        self._opening: set[asyncio.Task[None]] = set()

    def take(self, caller: Caller, data: bytes) -> None:
        """One request."""
        if self._database is None:
            self._send(caller, data)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit, self._database)
        self._waiting.append((caller, data))

    def _commit(self, database: sqlite3.Connection) -> None:
        waiting, self._waiting = self._waiting, []
        database.execute("UPDATE credits SET remaining = remaining - ? WHERE number = 1", (len(waiting),))
        for caller, data in waiting:
            self._send(caller, data)

    def _send(self, caller: Caller, data: bytes) -> None:
        if self._kept:
            self._kept.pop().ask(caller, data)
        else:
            task = asyncio.get_running_loop().create_task(self._open(caller, data))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, caller: Caller, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, target = await loop.create_connection(lambda: Target(self._kept), "127.0.0.1", self._port)
        target.ask(caller, data)


def _taker(arguments: list[str]) -> Callable[[Caller, bytes], None]:
    kind, number = arguments[0], int(arguments[1])
    if kind == "answer":
        answer = _HEAD % (number, b"x" * number)
        return lambda caller, _: caller.transport.write(answer)
    database: sqlite3.Connection | None = None
    if kind == "commit":
        database = sqlite3.connect(arguments[2], isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE credits (number INTEGER PRIMARY KEY, remaining INTEGER NOT NULL)")
        database.execute("INSERT INTO credits VALUES (1, 1000000000)")
    return Relay(number, database).take


async def serve(stop: asyncio.Event) -> None:
    """The server, until `stop` is set."""
    take = _taker(sys.argv[1:])
    server = await asyncio.get_running_loop().create_server(lambda: Caller(take), "127.0.0.1", 0)
    said: dict[str, Any] = {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    print(json.dumps(said), flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    run(until_signalled(serve))
