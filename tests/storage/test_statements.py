"""Every statement of the program on the engine under test, before anything asks it."""

from __future__ import annotations

import asyncio
import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

from tests.engines import rows_of, url_of
from tests.storage.test_purchases import NOW_MS, Shop
from tollkeeper.storage.engine import database, nodes
from tollkeeper.storage.engine.database import Query, Statement, Steps, load_queries, unit_of_work
from tollkeeper.storage.engine.migrations import load_migrations
from tollkeeper.storage.ledger import spends
from tollkeeper.storage.postgresql.words import in_its_words
from tollkeeper.storage.urls import open_database

QUERIES = [
    query
    for entry in sorted(files("tollkeeper.storage").joinpath("queries").iterdir(), key=lambda entry: entry.name)
    if entry.name.endswith(".sql")
    for query in load_queries(entry.name)
]
# Said in place of a function of the server's.
OF_SQLITE = {"standing_of_gates", "spend_known_credits"}
# What only programs that share a database say is beside what it is for.
SHARED = [
    text
    for module in (nodes, spends)
    for text in vars(module).values()
    if isinstance(text, str) and text.split(maxsplit=1)[:1] in (["SELECT"], ["INSERT"], ["UPDATE"], ["DELETE"])
]
LOCKS = [
    database.gates_as_they_are([1]),
    database.gate_to_change(1),
    database.login_as_it_is("x"),
    database.counted_together("x"),
    database.purchases_to_change("x"),
    database.purchases_to_spend([1], ["x"], []),
]
# What is 0 or 1, or the length of a prefix: PostgreSQL takes these for small numbers, and all others for 64 bits.
SMALL = {"size", "is_paid", "token_used", "is_followed_anew", "is_told", "is_bounded", "are_all_dead", "of_sales"}
SMALL |= {"as_signer", "as_recipient", "enabled", "held"}


def bound(query: Query) -> dict[str, str | None]:
    return dict.fromkeys(query.parameters)


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_sqlite_takes_every_statement(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    await open_database(str(path)).close()
    with sqlite3.connect(path) as connection:
        for query in QUERIES:
            connection.execute(f"EXPLAIN {query.sql}", bound(query))


@pytest.mark.postgresql_only("it asks PostgreSQL")
async def test_postgresql_takes_every_statement_with_numbers_of_64_bits(tmp_path: Path) -> None:
    import asyncpg  # noqa: PLC0415 - only this engine's tests need it

    connection = await asyncpg.connect(url_of(tmp_path / "x.db"))
    try:
        common = [query.sql for query in QUERIES if query.name not in OF_SQLITE]
        for sql in common + SHARED + [lock.sql for lock in LOCKS]:
            text, names = in_its_words(sql)
            prepared = await connection.prepare(text)
            for name, kind in zip(names, prepared.get_parameters(), strict=True):
                assert kind.name in {"int8", "text", "bytea", "json", "int8[]", "text[]"} or name in SMALL, sql
            kinds = {column.type.name for column in prepared.get_attributes()}
            own = {"bool", "text[]", "int8[]"} if sql in SHARED else set[str]()  # SQLite has neither
            assert kinds <= {"int8", "int4", "int2", "text", "bytea"} | own, sql
    finally:
        await connection.close()


@pytest.mark.postgresql_only("its plans are PostgreSQL's")
@pytest.mark.parametrize("size", [1, 64])
async def test_a_spend_reads_no_table_whole_whatever_was_counted_beforehand(tmp_path: Path, size: int) -> None:
    shop = Shop(open_database(url_of(tmp_path / "x.db")))  # nothing is analysed there but by hand
    gate = await shop.gate()

    @unit_of_work
    def credits_of_sales() -> Steps[None]:
        yield Statement("SET LOCAL session_replication_role = replica")  # else each would need its purchase
        yield Statement("INSERT INTO credits SELECT n, 1000, 1000, 0, 1 FROM generate_series(1, 500) n")

    @unit_of_work
    def spend(turn: int) -> Steps[list[str]]:
        calls = {f"{turn}-{number}": number for number in range(1, size + 1)}
        known = spends.KnownSpends({(gate.id, gate.version)}, calls, size)
        assert (yield from spends.spend_known(known, NOW_MS)).lefts == [999 - turn] * size
        read = yield Statement("SELECT relname FROM pg_stat_xact_user_tables WHERE seq_scan > 0")
        return [row["relname"] for row in read]

    try:
        await shop.database.run(credits_of_sales())
        for turn in range(8):  # past the five that PostgreSQL plans one by one
            assert await shop.database.run(spend(turn)) == []
    finally:
        await shop.database.close()


@pytest.mark.postgresql_only("it compares with SQLite's")
def test_both_schemas_have_the_same_tables_and_columns(tmp_path: Path) -> None:
    with sqlite3.connect(":memory:") as connection:
        for migration in load_migrations():
            connection.executescript(migration.sql)
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        ]
        there = {table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} for table in tables}
    columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    here: dict[str, set[str]] = {}
    for row in rows_of(tmp_path / "x.db", columns):
        here.setdefault(row["table_name"], set()).add(row["column_name"])
    own = {"nodes", "gate_changes", "sealing_keys", "schema_migrations"}
    assert {table: names for table, names in here.items() if table not in own} == there


@pytest.mark.postgresql_only("SQLite has no connections to let go")
async def test_a_look_that_ends_behind_the_close_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close would wait for it as long as for a server that does not answer."""
    monkeypatch.setattr("tollkeeper.storage.postgresql.engine.CONNECT_SECONDS", 60.0)
    opened = open_database(url_of(tmp_path / "x.db"))
    await opened.read(Statement("SELECT 1 AS one"))
    reading = asyncio.create_task(opened.read(Statement("SELECT pg_sleep(1)")))
    await asyncio.sleep(0)  # it has begun
    await asyncio.wait_for(opened.close(), 20)
    assert len(await reading) == 1
