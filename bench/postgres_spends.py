"""`postgres-spends`: durable spends of held credits on PostgreSQL beside SQLite, proven to be the same before.

Batches of calls on known purchases, with the ends of the calls of the batch before, one transaction each: through the
program's own store on an SQLite file (`sqlite`), by the same statements in PostgreSQL's words, one after the other in a
transaction (`by_statement`), and as one statement (`at_once`). Each engine syncs what it commits; PostgreSQL has the
other core. Of 256 purchases (`many`) and of one (`hot`). `*_us` is this process's processor time for a spend, without
what makes the batch, `*_server_us` PostgreSQL's, `*_ms` and `*_p99_ms` what a batch takes. `ratio` is spends a second
at once over SQLite's, 64 in a batch, many purchases.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench.held import filled
from bench.measuring import Result, cores, cpu_seconds, pinned, say
from bench.postgres import Postgres, connected, server
from bench.postgres_batch import AtOnce
from bench.postgres_exact import copied, prove
from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.storage.batching import answer_to
from tollkeeper.storage.opening import open_database
from tollkeeper.storage.spending import KnownSpends, SpendBatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.storage.database import Database
    from tollkeeper.storage.spending import Spent

SIZES: Final = (1, 8, 32, 64)
KINDS: Final = ("many", "hot")
ROUNDS: Final = 7
BATCHES: Final = 80  # in a turn
_PROCESSES: Final = "SELECT pid FROM pg_stat_activity WHERE backend_type <> 'autovacuum worker'"


@dataclass(slots=True)
class Side:
    """One engine and way to ask it, and what its turns of one kind of batch came to."""

    run: Callable[[SpendBatch], Awaitable[Any]]
    server: list[int]  # processes beside this one
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)

    async def turn(self, batches: list[SpendBatch], *, counts: bool) -> None:
        """So many batches, one after the other."""
        spends = sum(len(batch.known.calls) for batch in batches if batch.known is not None)
        took_ms, server = [], sum(map(cpu_seconds, self.server))
        began, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            sent = time.perf_counter()
            spent = await self.run(batch)
            took_ms.append(1e3 * (time.perf_counter() - sent))
            assert None not in spent.lefts
        cpu, took = time.process_time() - cpu, time.perf_counter() - began
        if counts:
            self.rates.append(spends / took)
            self.cpu_us.append(1e6 * cpu / spends)
            self.server_us.append(1e6 * (sum(map(cpu_seconds, self.server)) - server) / spends)
            self.took_ms += took_ms

    def tell(self, name: str) -> dict[str, float | str]:
        """Medians, but of the server's time, which is counted in hundredths of a second, the mean."""
        told: dict[str, float | str] = {
            name: statistics.median(self.rates),
            f"{name}_us": statistics.median(self.cpu_us),
            f"{name}_ms": statistics.median(self.took_ms),
            f"{name}_p99_ms": statistics.quantiles(self.took_ms, n=100)[98],
        }
        return told | ({f"{name}_server_us": statistics.mean(self.server_us)} if self.server else {})


def _batches(gate: tuple[int, int], numbers: range, size: int, chosen: random.Random) -> list[SpendBatch]:
    made: list[SpendBatch] = []
    ended: list[str] = []
    for _ in range(BATCHES):
        calls = {new_request_id(): chosen.choice(numbers) for _ in range(size)}
        made.append(SpendBatch([], clock_ms(), known=KnownSpends({gate}, calls, size, {200: ended} if ended else {})))
        ended = [*calls]
    return made


async def _posted(database: Database, batch: SpendBatch) -> Spent:
    """As the ledger does."""
    future: asyncio.Future[Spent] = asyncio.get_running_loop().create_future()
    database.post(batch, answer_to(future))
    return await future


async def _measure(directory: Path, place: str) -> Result:
    also = await prove(directory / "proof.db", place)
    path = directory / "own.db"
    own = open_database(str(path))
    shelf = await filled(own)
    await own.close()
    connections = [await copied(path, place, "measured"), await connected(place, "measured")]
    with closing(sqlite3.connect(path)) as file:
        ((first, last),) = file.execute("SELECT min(number), max(number) FROM purchases")
    own, chosen = open_database(str(path)), random.Random(3)  # noqa: S311 - which purchases
    by_statement, together = Postgres(connections[0]), AtOnce(connections[1])
    processes = [row["pid"] for row in await connections[0].fetch(_PROCESSES)]
    sides = {
        f"{name}_{kind}_{size}": Side(run, [] if name == "sqlite" else processes)
        for size in SIZES
        for kind in KINDS
        for name, run in (
            ("sqlite", partial(_posted, own)),
            ("by_statement", by_statement.run),
            ("at_once", together.run),
        )
    }
    gate = (shelf.gate.id, shelf.gate.version)
    for number in range(ROUNDS + 1):
        for name, side in sides.items():
            numbers = range(first, first + 1 if "hot" in name else last + 1)
            await side.turn(_batches(gate, numbers, int(name.rpartition("_")[2]), chosen), counts=number > 0)
        if number:
            rates = ", ".join(f"{name} {side.rates[-1]:.0f}" for name, side in sides.items() if "_64" in name)
            say(f"postgres-spends {number}/{ROUNDS}: {rates} spends/s")
    await own.close()
    for connection in connections:
        await connection.close()
    for name, side in sides.items():
        also |= side.tell(name)
    ours, reference = float(also["at_once_many_64"]), float(also["sqlite_many_64"])
    return Result("postgres-spends", ours, reference, ours / reference, "spends/s", ROUNDS, also)


def measure() -> Result:
    """Spends a second on PostgreSQL, at once, over those on SQLite. Raises: RuntimeError where anything differs."""
    own_core, other_core = cores()
    temporary = tempfile.TemporaryDirectory(prefix="tollkeeper-bench-")
    with temporary as directory, server(other_core) as place, pinned(own_core):
        return uvloop.run(_measure(Path(directory), place))
