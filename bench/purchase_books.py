"""`purchase-books`: what a first purchase leaves in the books, claim and grant with its first spend, nothing around it.

`ours` are purchases per second of processor time by the program's units, 32 in a turn of the loop, so two commits for
32. `reference` are the same statements with the same values, written down as the units said them, executed bare on a
copy of the file: no Python of ours takes part. `statements_us` and `recovery_us` (libsecp256k1 finding the payer's key)
are two parts of a first purchase that no gateway with these books can leave out; `peers` says what it is compared with.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import coincurve
import uvloop

from bench.held import HEADER, Shelf, filled, key_of
from bench.measuring import Result, cores, pinned, say
from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.core.purchases import Terms
from tollkeeper.storage.opening import open_database
from tollkeeper.storage.purchase_rows import SpendRequest
from tollkeeper.storage.purchases import Paid

AT_ONCE: Final = 32
TURNS: Final = 10  # in a round
ROUNDS: Final = 7
PURCHASES: Final = AT_ONCE * TURNS
FIRST_NUMBER: Final = 1_000  # behind those of the shelf
RECOVERIES: Final = 500


class _Noting:
    """A connection that notes what it is told."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.said: list[tuple[str, Any]] = []

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:  # noqa: ANN401 - as sqlite3 has it
        self.said.append((sql, values))
        return self._connection.execute(sql, values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the connection's
        return getattr(self._connection, name)


async def _purchase(shelf: Shelf, number: int) -> None:
    gate = shelf.gate
    claim = await shelf.purchases.claim(
        key_of(number),
        Terms(gate.id, gate.version, gate.price_micro, gate.credits, gate.payment_address, gate.network, None),
        purchase_id=f"pur_{number:022}",
        paid=Paid(gate.price_micro, 2**40, HEADER),
        trust=None,
        request_of=lambda _id, _attempt, _is_trusted: b"x" * 900,
        now_ms=clock_ms(),
    )
    assert claim.purchase is not None
    wish = SpendRequest(gate.id, gate.version, HEADER, new_request_id())
    await shelf.purchases.grant(claim.purchase, "0x" + "1" * 64, confirmed=True, wish=wish, now_ms=clock_ms())


async def _by_units(directory: Path) -> tuple[list[float], list[tuple[str, Any]]]:
    """Seconds of each round, and all that was said. Leaves a copy of the file as it was before."""
    database = open_database(str(directory / "books.db"))
    shelf = await filled(database)
    database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # noqa: SLF001 - what it says is what is measured
    shutil.copy(directory / "books.db", directory / "copy.db")
    rounds, number = [], FIRST_NUMBER
    noting = database._writer = _Noting(database._writer)  # type: ignore[assignment]  # noqa: SLF001 - as above
    for _ in range(ROUNDS):
        before = time.process_time()
        for _ in range(TURNS):
            await asyncio.gather(*(_purchase(shelf, number + place) for place in range(AT_ONCE)))
            number += AT_ONCE
        rounds.append(time.process_time() - before)
    await database.close()
    return rounds, noting.said


def _bare(path: Path, said: list[tuple[str, Any]]) -> list[float]:
    """Seconds of each round of the statements alone; what only guards one unit from another is left out."""
    wanted = [one for one in said if not one[0].startswith(("PRAGMA", "SAVEPOINT", "RELEASE"))]
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=512)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    rounds, size = [], len(wanted) // ROUNDS
    for number in range(ROUNDS):
        before = time.process_time()
        for sql, values in wanted[number * size : (number + 1) * size]:
            connection.execute(sql, values).fetchall()
        rounds.append(time.process_time() - before)
    (count,) = connection.execute("SELECT count(*) FROM purchases WHERE state = 'LIVE'").fetchone()
    assert count >= PURCHASES * (ROUNDS - 1)
    connection.close()
    return rounds


def _recovery_seconds() -> float:
    digest = os.urandom(32)
    signature = coincurve.PrivateKey().sign_recoverable(digest, hasher=None)
    before = time.process_time()
    for _ in range(RECOVERIES):
        coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)
    return (time.process_time() - before) / RECOVERIES


def measure() -> Result:
    """Both, best of the rounds: what else runs on the machine only ever adds."""
    with pinned(cores()[0]), tempfile.TemporaryDirectory(prefix="tollkeeper-bench-") as made:
        directory = Path(made)
        units, said = uvloop.run(_by_units(directory))
        bare = _bare(directory / "copy.db", said)
        recovery = min(_recovery_seconds() for _ in range(ROUNDS))
    for name, rounds in (("units", units), ("bare statements", bare)):
        say(f"purchase-books: {name} {', '.join(f'{1e6 * one / PURCHASES:.0f}' for one in rounds)} us a purchase")
    ours, reference = PURCHASES / min(units), PURCHASES / min(bare)
    also: dict[str, float | str] = {
        "units_us": 1e6 / ours,
        "statements_us": 1e6 / reference,
        "recovery_us": 1e6 * recovery,
        "statements": len([one for one in said if one[0].split()[0] in {"SELECT", "INSERT", "UPDATE"}])
        / (PURCHASES * ROUNDS),
    }
    return Result("purchase-books", ours, reference, ours / reference, "purchases/s of cpu", ROUNDS, also)
