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
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final, get_args

from tests.faults.linking import Link, linking
from tests.faults.striking import Case
from tests.hub.faulty_database import Kind, Moment
from tollkeeper.storage.queries import load_queries
from tollkeeper.storage.remote_messages import (
    Abort,
    Begin,
    End,
    Failed,
    Frames,
    Read,
    Request,
    Run,
    SentPart,
    Spends,
    Step,
    decode_answer,
    decode_request,
    frame,
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
    DENIED = "error that the ledger answers with"


# What is sent in the middle of a unit, beside statements.
_PARTS: Final = {part.__name__ for part in get_args(SentPart)}
# To whoever looks at what became of a call: only a worker's own death may cost a credit that nobody was served for.
_KINDS: Final = {
    Harm.LEDGER_KILLED: Kind.ERROR,
    Harm.ASKER_KILLED: Kind.CRASH,
    Harm.LOST: Kind.ERROR,
    Harm.LATE: Kind.TIMEOUT,
    Harm.DENIED: Kind.ERROR,
}


@dataclass(frozen=True)
class LedgerCase(Case):
    """One harm at one question to the ledger process."""

    harm: Harm = Harm.LOST


def ledger_cases(boundaries: Iterable[str], *harms: Harm) -> list[LedgerCase]:
    """All combinations, but for an error amid a unit, which the process undoes when it answers with one."""
    return [
        LedgerCase(boundary, moment, _KINDS[harm], harm=harm)
        for boundary in boundaries
        for moment in Moment
        for harm in harms
        if harm is not Harm.DENIED or (boundary[0].isupper() and boundary not in _PARTS)
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


class _Link(Link):
    """A worker's connection and the one to the process that belongs to it."""

    def __init__(self, chaos: LedgerChaos, worker: asyncio.StreamWriter, ledger: asyncio.StreamWriter) -> None:
        super().__init__(worker, ledger)
        self._chaos = chaos
        self._names: dict[int, str] = {}  # what was asked last under a number

    async def carry_requests(self, source: asyncio.StreamReader) -> None:
        frames = Frames()
        while sent := await source.read(65536):
            for body in frames.feed(sent):
                request = decode_request(body)
                name = self._names[request.number] = name_of(request, self._names.get(request.number, ""))
                self._chaos.seen.add(name)
                if await self._passes(request.number, name, Moment.BEFORE):
                    self._asked.write(_framed(body))
            await self._asked.drain()

    async def carry_answers(self, source: asyncio.StreamReader) -> None:
        frames = Frames()
        while answered := await source.read(65536):
            for body in frames.feed(answered):
                number = decode_answer(body).number
                if await self._passes(number, self._names.get(number, ""), Moment.AFTER):
                    self._asker.write(_framed(body))
            await self._asker.drain()

    async def _passes(self, number: int, name: str, moment: Moment) -> bool:
        """Does this message, after what comes of it? Raises: ConnectionAbortedError where nothing does any more."""
        harm = self._chaos.judge(name, moment)
        if harm is Harm.LEDGER_KILLED:
            self._chaos.kill_ledger()
        if harm is Harm.ASKER_KILLED:
            with suppress(ProcessLookupError):
                os.kill(peer_of(self._asker), signal.SIGKILL)
        if harm is Harm.LATE:
            await asyncio.sleep(LATE_SECONDS)
        if harm is Harm.DENIED:
            self._asker.write(frame(Failed(number, "storage", "the disk said no")))
        if harm in {Harm.LEDGER_KILLED, Harm.ASKER_KILLED, Harm.LOST}:
            raise ConnectionAbortedError
        return harm is not Harm.DENIED


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
    async with linking(
        lambda carry: asyncio.start_unix_server(carry, str(path)),
        lambda: asyncio.open_unix_connection(str(ledger_path)),
        partial(_Link, chaos),
    ):
        yield chaos
