"""A proxy on the ledger process's socket that reads what workers ask of it, and strikes at one question by its name.

A name is the value that is sent whole (`ClaimPurchase`, `GrantPurchase`, `SpendOne`, `SpendOfPayer`, `Spends`), or the
part or statement that a unit which is driven step by step comes to (`PrepareClaims`, `restore_call`, ...), or `End of`
the last one of those, which commits it. Before it: the process has not seen it; after it: it has answered, and nobody
knows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Final

from tests.faults.striking import Case
from tests.hub.faulty_database import Kind, Moment
from tollkeeper.storage.queries import load_queries
from tollkeeper.storage.remote_messages import (
    Abort,
    Begin,
    End,
    Frames,
    Read,
    Request,
    Run,
    Spends,
    Step,
    decode_answer,
    decode_request,
)

# Longer than the ledger process waits for the next step of a unit.
LATE_SECONDS: Final = 5.5
_LENGTH_SIZE_BYTES: Final = 4
_CREDENTIALS: Final = "iII"  # of SO_PEERCRED: process, user, group


class Harm(Enum):
    """What comes at a boundary."""

    LEDGER_KILLED = "kill of the ledger"
    ASKER_KILLED = "kill of who asks it"
    LOST = "broken connection to the ledger"
    LATE = "late word to or from the ledger"


# To whoever looks at what became of a call: only a worker's own death may cost a credit that nobody was served for.
_KINDS: Final = {
    Harm.LEDGER_KILLED: Kind.ERROR,
    Harm.ASKER_KILLED: Kind.CRASH,
    Harm.LOST: Kind.ERROR,
    Harm.LATE: Kind.TIMEOUT,
}


@dataclass(frozen=True)
class LedgerCase(Case):
    """One harm at one question to the ledger process."""

    harm: Harm = Harm.LOST


def ledger_cases(boundaries: Iterable[str], *harms: Harm) -> list[LedgerCase]:
    """All combinations."""
    return [
        LedgerCase(boundary, moment, _KINDS[harm], harm=harm)
        for boundary in boundaries
        for moment in Moment
        for harm in harms
    ]


@dataclass
class LedgerChaos:
    """`seen`: what was asked. `struck`: how often it came to what was ordered; `deaths`: how often that was a kill."""

    path: Path
    kill_ledger: Callable[[], object]
    seen: set[str] = field(default_factory=set)
    struck: int = 0
    deaths: int = 0
    order: LedgerCase | None = None

    def judge(self, name: str, moment: Moment) -> Harm | None:
        """What comes at this question, or at its answer."""
        order = self.order
        if order is None or (order.boundary, order.moment) != (name, moment):
            return None
        self.order = None
        self.struck += 1
        self.deaths += order.harm in {Harm.LEDGER_KILLED, Harm.ASKER_KILLED}
        return order.harm


class _Link:
    """A worker's connection and the one to the process that belongs to it."""

    def __init__(self, chaos: LedgerChaos, worker: asyncio.StreamWriter, ledger: asyncio.StreamWriter) -> None:
        self._chaos = chaos
        self._worker = worker
        self._ledger = ledger
        self._asked: dict[int, str] = {}  # what was asked last under a number

    async def carry_requests(self, source: asyncio.StreamReader) -> None:
        frames = Frames()
        while sent := await source.read(65536):
            for body in frames.feed(sent):
                request = decode_request(body)
                name = self._asked[request.number] = name_of(request, self._asked.get(request.number, ""))
                self._chaos.seen.add(name)
                if not await self._passes(name, Moment.BEFORE):
                    return
                self._ledger.write(_framed(body))
            await self._ledger.drain()

    async def carry_answers(self, source: asyncio.StreamReader) -> None:
        frames = Frames()
        while answered := await source.read(65536):
            for body in frames.feed(answered):
                name = self._asked.get(decode_answer(body).number, "")
                if not await self._passes(name, Moment.AFTER):
                    return
                self._worker.write(_framed(body))
            await self._worker.drain()

    async def _passes(self, name: str, moment: Moment) -> bool:
        """Does this message, after what comes of it?"""
        harm = self._chaos.judge(name, moment)
        if harm is Harm.LEDGER_KILLED:
            self._chaos.kill_ledger()
        if harm is Harm.ASKER_KILLED:
            with suppress(ProcessLookupError):
                os.kill(peer_of(self._worker), signal.SIGKILL)
        if harm is Harm.LATE:
            await asyncio.sleep(LATE_SECONDS)
        return harm in {None, Harm.LATE}

    def end(self) -> None:
        """Both see it break."""
        self._worker.close()
        self._ledger.close()


def name_of(request: Request, before: str) -> str:
    """What is asked; `before`: what was asked under this number before it."""
    if isinstance(request, Run):
        return type(request.job).__name__
    if isinstance(request, Read):
        return _QUERIES.get(request.sql.text, "read")
    if isinstance(request, Begin | Step):
        return type(request.part).__name__ if request.sql is None else _QUERIES.get(request.sql.text, "statement")
    if isinstance(request, End | Abort):
        return f"{type(request).__name__} of {before}"
    assert isinstance(request, Spends)
    return "Spends"


def peer_of(writer: asyncio.StreamWriter) -> int:
    """The process at the other end."""
    told = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS)
    )
    process: int = struct.unpack(_CREDENTIALS, told)[0]
    return process


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH_SIZE_BYTES, "big") + body


def _names() -> dict[str, str]:
    """Of every statement, by its text."""
    folder = files("tollkeeper.storage").joinpath("queries")
    sources = sorted(one.name for one in folder.iterdir() if one.name.endswith(".sql"))
    return {query.sql: query.name for source in sources for query in load_queries(source)}


_QUERIES: Final = _names()


@asynccontextmanager
async def run_ledger_chaos(
    ledger_path: Path, path: Path, kill_ledger: Callable[[], object]
) -> AsyncIterator[LedgerChaos]:
    """The proxy at `path`, in front of the process that listens at `ledger_path`."""
    chaos = LedgerChaos(path, kill_ledger)
    links: set[asyncio.Task[None]] = set()

    async def carry(worker_reader: asyncio.StreamReader, worker: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        links.add(task)
        try:
            ledger_reader, ledger = await asyncio.open_unix_connection(str(ledger_path))
            link = _Link(chaos, worker, ledger)
            ways = {
                asyncio.create_task(link.carry_requests(worker_reader)),
                asyncio.create_task(link.carry_answers(ledger_reader)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                link.end()
        except (OSError, asyncio.CancelledError):  # the test is over, or the process is away
            pass
        finally:
            worker.close()
            links.discard(task)

    server = await asyncio.start_unix_server(carry, str(path))
    try:
        yield chaos
    finally:
        server.close()
        await asyncio.sleep(0.05)  # whoever was let in just now is known by then
        for link in list(links):
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        await server.wait_closed()
