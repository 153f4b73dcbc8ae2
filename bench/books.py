# ruff: noqa: S608 - our own text
"""`books`: a check of what changed where the journal has ten million calls, on both engines, and what a call weighs.

A hundred calls on each of a hundred thousand purchases lie in the journal, as many as sixty-four callers at once leave
in a row, a hundred calls in a second; the last two minutes' are not counted yet. The reference is the limit of 2 s;
the quickest of three counts. Beside it: a check of all purchases, one that reads the journal too, counting and folding
a million calls, and bytes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.measuring import Result, say
from tests.books import BOUNDS
from tests.engines import PostgresqlServer, programs
from tests.storage.test_purchases import Shop
from tollkeeper.api import clock_ms
from tollkeeper.core.paygates.statistics import DAY_MS
from tollkeeper.storage.books.invariants import EVERYTHING, Extent, inspect
from tollkeeper.storage.engine.database import Statement, rows_of
from tollkeeper.storage.ledger.call_days import count_calls, fold_journal
from tollkeeper.storage.postgresql.words import said
from tollkeeper.storage.urls import open_database, open_snapshot, server_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.engine.database import Database, Unit

LIMIT_SECONDS: Final = 2.0
CALLS: Final = 10_000_000
PURCHASES: Final = 100_000
ROW: Final = 64  # calls
WORK: Final = 640_000  # calls that are counted, and folded
A_SECOND: Final = 100  # calls
_UNCOUNTED_MS: Final = 120_000  # before now: a call is counted one to two minutes after it was spent
_LOOKED_AT_MS: Final = 180_000  # a minute, and the two that are looked at again
_RUNS: Final = 3

_NUMBERS: Final = "WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < :many)"
_PURCHASES: Final = f"""{_NUMBERS}
INSERT INTO purchases (number, id, network, asset, payer, nonce, gate_id, gate_version, price_micro, credits, pay_to,
    value_micro, valid_before_seconds, header_hash, assume_valid, confirmed, state, attempt, transaction_hash,
    claimed_ms, attempt_ms, granted_ms, updated_ms, paid_ms)
SELECT n.n, 'pur_' || n.n, t.network, t.asset, t.payer, 'nonce ' || n.n, t.gate_id, t.gate_version, t.price_micro,
    t.credits, t.pay_to, t.value_micro, t.valid_before_seconds, t.header_hash, t.assume_valid, t.confirmed, t.state,
    t.attempt, t.transaction_hash, c.at_ms, c.at_ms, c.at_ms, c.at_ms, c.at_ms
FROM purchases t CROSS JOIN n CROSS JOIN (SELECT CAST(:begun_ms AS BIGINT) AS at_ms) c WHERE t.number = 1
"""
_CREDITS: Final = """INSERT INTO credits (number, granted, remaining, token_used, is_live)
SELECT p.number, p.credits, p.credits - :each, 0, 1 FROM purchases p WHERE p.number > 1"""
_GRANTS: Final = """INSERT INTO credits_given (cause, reason, purchase_id, delta, created_ms)
SELECT p.id, 'grant', p.id, p.credits, p.claimed_ms FROM purchases p WHERE p.number > 1"""
# Row by row of the journal: each call's id begins with its time, and its purchase is any; its end is in the same row.
_JOURNAL_SQLITE: Final = """WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < :rows - 1),
k (k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM k WHERE k < :row - 1),
c AS (
    SELECT n, 2 + (n * :row + k) * 7919 % (:purchases - 1) AS number,
        printf('%012xc0ffee00%012x', :begun_ms + n * :step_ms, (n * :row + k) * 2654435761 % 281474976710655) AS id
    FROM n CROSS JOIN k
)
INSERT INTO call_journal (written_ms, spent, ended, interrupted)
SELECT :begun_ms + n * :step_ms, json_group_object(id, number), json_object('200', json_group_array(id)), '[]'
FROM c GROUP BY n"""
_JOURNAL_POSTGRESQL: Final = """WITH c AS (
    SELECT n, 2 + (n * CAST(:row AS BIGINT) + k) * 7919 % (CAST(:purchases AS BIGINT) - 1) AS number,
        lpad(to_hex(CAST(:begun_ms AS BIGINT) + n * CAST(:step_ms AS BIGINT)), 12, '0') || 'c0ffee00'
            || lpad(to_hex((n * CAST(:row AS BIGINT) + k) * 2654435761 % 281474976710655), 12, '0') AS id
    FROM generate_series(0, CAST(:rows AS BIGINT) - 1) n, generate_series(0, CAST(:row AS BIGINT) - 1) k
)
INSERT INTO call_journal (written_ms, spent, ended, interrupted)
SELECT CAST(:begun_ms AS BIGINT) + n * CAST(:step_ms AS BIGINT),
    '{' || string_agg('"' || id || '":' || number, ',') || '}',
    '{"200":[' || string_agg('"' || id || '"', ',') || ']}', '[]'
FROM c GROUP BY n ORDER BY n"""
_COUNTERS: Final = """UPDATE paygate_counters SET purchases = :purchases,
revenue_micro = :purchases * (SELECT CAST(value_micro AS BIGINT) FROM purchases WHERE number = 1)"""
_MARKS: Final = "INSERT INTO journal_marks (name, counted, seen, seen_ms) VALUES ('journal', :counted, :seen, 0)"
_DAYS: Final = "INSERT INTO call_days SELECT purchase_number, day, calls, 0, 0 FROM counted_calls"


async def _said(database: Database, url: str, statement: Statement) -> None:
    """Carry out a statement, however long that takes: PostgreSQL by a connection that has no limit."""
    if server_of(url) is None:
        await database.run(rows_of(statement))
        return
    import asyncpg  # noqa: PLC0415 - only this engine needs it

    connection = await asyncpg.connect(url)
    text, values = said(statement)
    await connection.execute(text, *values)
    await connection.close()


async def _filled(url: str) -> Database:
    """A database with so many calls, of which the last ones are not counted."""
    database = open_database(url)
    shop = Shop(database)
    await shop.bought(await shop.gate(1_000), 1)
    rows = CALLS // ROW
    step_ms = 1_000 * ROW // A_SECOND
    values = {
        "many": PURCHASES + 1,
        "purchases": PURCHASES + 1,
        "each": CALLS // PURCHASES,
        "rows": rows,
        "row": ROW,
        "step_ms": step_ms,
        "begun_ms": clock_ms() - rows * step_ms,
        "seen": rows - _UNCOUNTED_MS // step_ms,
        "counted": rows - _UNCOUNTED_MS // step_ms - WORK // ROW,
    }
    journal = _JOURNAL_SQLITE if server_of(url) is None else _JOURNAL_POSTGRESQL
    for sql in (_PURCHASES, _CREDITS, _GRANTS, _COUNTERS, journal, _MARKS, _DAYS):
        named = {name: value for name, value in values.items() if f":{name}" in sql}
        await _said(database, url, Statement(sql, named))
    await database.close()  # the log is folded into the file, as it is every two seconds while a program serves
    return open_database(url)


async def _seconds(database: Database, make: Callable[[], Unit[object]]) -> float:
    """How long units of a kind take until one has nothing to do."""
    begun = time.monotonic()
    while await database.run(make()):
        pass
    return time.monotonic() - begun


def _check(url: str, extent: Extent) -> float:
    begun = time.monotonic()
    with open_snapshot(url) as snapshot:
        found = inspect(snapshot, clock_ms(), BOUNDS, is_shared=False, extent=extent).differences
    if found:
        raise AssertionError(found[:3])
    return time.monotonic() - begun


async def _bytes_of(database: Database, url: str, table: str) -> float:
    """How many bytes a table has on disk with its indexes, written anew: what is dead or free in it is not counted."""
    size = f"(SELECT sum(pgsize) FROM dbstat WHERE name = '{table}')"
    if server_of(url) is not None:
        for sql in (f"CREATE TABLE anew (LIKE {table} INCLUDING ALL)", f"INSERT INTO anew SELECT * FROM {table}"):
            await _said(database, url, Statement(sql))
        size = "pg_total_relation_size('anew')"
    (row,) = await database.read(Statement(f"SELECT {size} AS size, (SELECT count(*) FROM {table}) AS many"))
    say(f"{table}: {row['size']:,} bytes, {row['many']:,} rows")
    return float(row["size"])


async def _measured(engine: str, url: str) -> dict[str, float]:
    database = await _filled(url)
    try:
        told = {"count_million": await _seconds(database, lambda: count_calls(clock_ms())) * 1e6 / WORK}
        told["check_changes"] = min(_check(url, Extent(clock_ms() - _LOOKED_AT_MS)) for _ in range(_RUNS))
        told["check"] = _check(url, Extent(with_journal=False))
        told["check_all"] = _check(url, EVERYTHING)
        told["bytes_call"] = await _bytes_of(database, url, "call_journal") / CALLS
        await database.run(rows_of(Statement("DROP TABLE IF EXISTS anew")))
        (days,) = await database.read(Statement("SELECT count(*) AS many FROM call_days"))
        after: int | None = 0
        begun = time.monotonic()
        while after is not None and after < WORK // ROW:
            after = await database.run(fold_journal(after, clock_ms() + DAY_MS))
        told["fold_million"] = (time.monotonic() - begun) * 1e6 / WORK
        told["bytes_day"] = await _bytes_of(database, url, "call_days") / days["many"]
        _check(url, EVERYTHING)
        say(f"{engine}: {told}")
        return {f"{engine}_{name}": value for name, value in told.items()}
    finally:
        await database.close()


def measure() -> Result:
    """The slower engine's check of what changed, in seconds."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-bench-"))
        server = PostgresqlServer(programs())
        stack.callback(server.stop)
        told = asyncio.run(_measured("sqlite", str(Path(directory) / "books.db")))
        told |= asyncio.run(_measured("postgresql", server.database_of("books")))
    slower = max(told["sqlite_check_changes"], told["postgresql_check_changes"])
    return Result("books", slower, LIMIT_SECONDS, LIMIT_SECONDS / slower, "s", _RUNS, {**told})
