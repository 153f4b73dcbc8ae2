"""What any gateway on this event loop costs at least: it reads nothing of what it passes on. Prints {"url": ...}.

    bare relay PORT       every request goes to 127.0.0.1:PORT as it is, on a kept connection, the answer back as it is
    bare commit PORT FILE as `relay`, behind a durable commit for all that came in one turn of the loop: one changed row
    bare statements PORT FILE  the same, but what a call must leave in the books is in that commit: a counter of one of
                               256 purchases, the call, how it ended; by the program's statements and by nothing else
    bare ledger PORT FILE      the same through the program's ledger
    bare secure PORT CERTIFICATE FILE  as `ledger`, to a target behind TLS that shows this certificate

One read is taken for one message, which is true of small messages and of nothing else.
"""

from __future__ import annotations

import asyncio
import sqlite3
import ssl
import sys
from typing import TYPE_CHECKING, cast

from bench.held import filled
from bench.servers.bookkeeping import Statements, behind_ledger
from bench.servers.listening import serve_protocol
from tollkeeper.edge.secure import connect_secure
from tollkeeper.serving.http_server import run, until_signalled
from tollkeeper.storage.opening import open_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.servers.bookkeeping import Books


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
        self._write: Callable[[bytes], None] = self._transport.write

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """See `SecureSpeaker`."""
        self._write = write

    def rest(self) -> None:
        """See `secure.SecureSpeaker`; here nobody else waits."""

    def in_record(self, *, is_begun: bool) -> None:
        """See `secure.SecureSpeaker`; here nobody sends what was not asked for."""

    def ask(self, caller: Caller, data: bytes) -> None:
        """Send these bytes; the answer goes to `caller`."""
        self._caller = caller
        self._write(data)

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


class OneRow:
    """Books of one counter."""

    def __init__(self, path: str) -> None:
        self._database = database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE credits (number INTEGER PRIMARY KEY, remaining INTEGER NOT NULL)")
        database.execute("INSERT INTO credits VALUES (1, 1000000000)")

    def commit(self, count: int) -> None:
        """See `Books`."""
        self._database.execute("UPDATE credits SET remaining = remaining - ? WHERE number = 1", (count,))


class Relay:
    """Passes on what comes, at once or behind one commit for each turn of the loop."""

    def __init__(self, port: int, books: Books | None = None, certificate: str | None = None) -> None:
        self._port = port
        self._tls = None if certificate is None else ssl.create_default_context(cafile=certificate)
        self._books = books
        self._kept: list[Target] = []
        self._waiting: list[tuple[Caller, bytes]] = []
        self._opening: set[asyncio.Task[None]] = set()

    def take(self, caller: Caller, data: bytes) -> None:
        """One request."""
        if self._books is None:
            self.send(caller, data)
            return
        if not self._waiting:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._commit, self._books)  # behind one more look, as the program's ledger
        self._waiting.append((caller, data))

    def _commit(self, books: Books) -> None:
        waiting, self._waiting = self._waiting, []
        books.commit(len(waiting))
        for caller, data in waiting:
            self.send(caller, data)

    def send(self, caller: Caller, data: bytes) -> None:
        """To the target, at once."""
        if self._kept:
            self._kept.pop().ask(caller, data)
        else:
            task = asyncio.get_running_loop().create_task(self._open(caller, data))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, caller: Caller, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        target = Target(self._kept)
        if self._tls is None:
            await loop.create_connection(lambda: target, "localhost", self._port)
        else:
            await connect_secure(self._tls, "localhost", target, "localhost", self._port)
        target.ask(caller, data)


async def _taker(arguments: list[str]) -> Callable[[Caller, bytes], None]:
    kind, number = arguments[0], int(arguments[1])
    if kind == "relay":
        return Relay(number).take
    if kind == "commit":
        return Relay(number, OneRow(arguments[-1])).take
    shelf = await filled(open_database(arguments[-1]))
    if kind == "statements":
        return Relay(number, Statements(arguments[-1], shelf)).take
    return await behind_ledger(Relay(number, certificate=arguments[2] if kind == "secure" else None), shelf)


async def serve(stop: asyncio.Event) -> None:
    """The server, until `stop` is set."""
    take = await _taker(sys.argv[1:])
    await serve_protocol(lambda: Caller(take), stop)


if __name__ == "__main__":
    run(until_signalled(serve))
