"""`ledger`: what a durable spend of a held credit costs by itself: no HTTP, no target, processor time only.

Spends of 256 purchases, 32 in a turn of the loop, with the ends of the calls of the turn before, as paid calls make
them. The reference is what no ledger can do without: one counter of each purchase changed by bare statements, in
commits of as many, in an SQLite file that is synced as ours is. `ratio` is processor time of the reference over ours.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from bench.held import HEADER, PURCHASES, filled, key_of
from bench.measuring import Result, alternate
from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.core.errors import ApiError
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.opening import open_database
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.held import Shelf
    from tollkeeper.storage.database import Database

AT_ONCE: Final = 32
TURNS: Final = 500
ROUNDS: Final = 7
COUNTED_FROM: Final = 100_000_000  # by the reference


class _Spender:
    """Spends of purchases that hold credits, in turns."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._random = random.Random(1)  # noqa: S311 - which purchases
        self._ended: list[str] = []

    async def turn(self) -> None:
        """So many spends at once, and the ends of those before."""
        done = asyncio.get_running_loop().create_future()
        left, begun = AT_ONCE, []

        def spent(result: SpendResult | ApiError) -> None:
            nonlocal left
            assert isinstance(result, SpendResult), result
            assert result.outcome is Spend.SPENT
            left -= 1
            if not left:
                done.set_result(None)

        gate, purchases = self._shelf.gate, self._shelf.purchases
        for call_id in self._ended:
            purchases.ledger.end(call_id, 200)
        for _ in range(AT_ONCE):
            call_id = new_request_id()
            begun.append(call_id)
            wish = SpendRequest(gate.id, gate.version, HEADER, call_id)
            purchases.spend_soon(key_of(self._random.randrange(PURCHASES)), wish, clock_ms(), spent)
        self._ended = begun
        await done


@asynccontextmanager
async def _owning(path: Path) -> AsyncIterator[Database]:
    database = open_database(str(path))
    yield database
    await database.close()


async def _measure(directory: Path) -> Result:
    also: dict[str, float | str] = {"purchases": float(PURCHASES), "at_once": float(AT_ONCE)}
    spends = TURNS * AT_ONCE
    with closing(_bare(directory / "bare.db")) as bare:
        async with _owning(directory / "own.db") as own:
            mine, best_us = _Spender(await filled(own)), float("inf")

            async def ours() -> float:
                nonlocal best_us
                started = time.process_time()
                for _ in range(TURNS):
                    await mine.turn()
                own_us = 1e6 * (time.process_time() - started) / spends
                also["own_us"] = best_us = min(best_us, own_us)
                return 1e6 / own_us

            def reference() -> float:
                started = time.process_time()
                chosen = random.Random(2)  # noqa: S311 - which counters
                for _ in range(TURNS):
                    bare.execute("BEGIN IMMEDIATE")
                    bare.executemany(
                        "UPDATE counters SET remaining = remaining - 1 WHERE id = ? AND remaining > 0",
                        [(chosen.randrange(PURCHASES),) for _ in range(AT_ONCE)],
                    )
                    bare.execute("COMMIT")
                return spends / (time.process_time() - started)

            loop = asyncio.get_running_loop()
            return await asyncio.to_thread(
                alternate,
                "ledger",
                "spends/cpu s",
                ROUNDS,
                lambda: asyncio.run_coroutine_threadsafe(ours(), loop).result(),
                reference,
                also=also,
            )


def _bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE counters (id INTEGER PRIMARY KEY, remaining BIGINT NOT NULL)")
    counters = [(number, COUNTED_FROM) for number in range(PURCHASES)]
    connection.executemany("INSERT INTO counters VALUES (?, ?)", counters)
    return connection


def measure() -> Result:
    """Spends per second of processor time, and what one takes at best, in microseconds."""
    with tempfile.TemporaryDirectory(prefix="tollkeeper-bench-") as directory:
        return uvloop.run(_measure(Path(directory)))
