"""The history of the schema: what is pending, and which histories are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.migrations import (
    Applied,
    Migration,
    load_migrations,
    missing_migrations,
    read_migrations,
)
from tollkeeper.storage.sqlite.file import applied_migrations, open_sqlite
from tollkeeper.storage.urls import open_database, pending

ONE = Migration(1, "one", "CREATE TABLE one (a BIGINT);\n")
TWO = Migration(2, "two", "CREATE TABLE two (a TEXT DEFAULT 'x;\ny');\nINSERT INTO one (a)\nVALUES (1);\n")
BROKEN = Migration(3, "broken", "CREATE TABLE three (a BIGINT);\nINSERT INTO nowhere VALUES (1);\n")


def applied(*migrations: Migration) -> list[Applied]:
    return [Applied(migration.version, migration.name, migration.checksum) for migration in migrations]


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_what_is_pending_is_the_rest_of_what_is_known() -> None:
    assert missing_migrations((ONE, TWO), []) == (ONE, TWO)
    assert missing_migrations((ONE, TWO), applied(ONE)) == (TWO,)
    assert missing_migrations((ONE, TWO), applied(ONE, TWO)) == ()
    assert missing_migrations((), []) == ()


@pytest.mark.parametrize(
    ("known", "history", "reason"),
    [
        ((ONE,), applied(ONE, TWO), "schema version 2, this program knows 1"),
        ((), applied(ONE), "schema version 1, this program knows 0"),
        ((ONE, TWO), applied(TWO), "made by a development version .*0002_two"),
        ((ONE, TWO), [Applied(1, "other", ONE.checksum)], "development version .*0001_other"),
        ((ONE, TWO), [*applied(ONE), Applied(2, "other", TWO.checksum)], "has applied 0002_other"),
        ((ONE, TWO), [Applied(1, "one", "0" * 64)], "0001_one is not the one"),
    ],
)
def test_a_history_that_is_not_the_beginning_of_ours_is_refused(
    known: tuple[Migration, ...], history: list[Applied], reason: str
) -> None:
    with pytest.raises(StorageError, match=reason):
        missing_migrations(known, history)


def test_the_programs_own_migrations_are_numbered_without_gaps() -> None:
    versions = [migration.version for migration in load_migrations()]
    assert versions == list(range(1, len(versions) + 1))


@pytest.mark.parametrize("name", ["1_x.sql", "0001-x.sql", "0001_X.sql", "x.sql"])
def test_a_file_without_a_number_and_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name for a migration"):
        read_migrations([(name, "SELECT 1;")])


def test_a_number_is_used_once() -> None:
    with pytest.raises(ValueError, match="the number 1"):
        read_migrations([("0001_a.sql", ""), ("0001_b.sql", "")])


async def test_migrations_are_applied_once_and_remembered(tmp_path: Path) -> None:
    path = tmp_path / "db"
    for known in [(ONE,), (ONE, TWO), (ONE, TWO)]:
        await open_sqlite(path, known).close()
        assert applied_migrations(path) == applied(*known)
    assert rows(path, "SELECT a FROM one") == [(1,)]
    ((applied_ms,),) = rows(path, "SELECT applied_ms FROM schema_migrations WHERE version = 1")
    assert isinstance(applied_ms, int)
    assert applied_ms > 1_600_000_000_000


async def test_a_migration_that_fails_is_undone_whole_and_those_before_it_stand(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with pytest.raises(StorageError, match="0003_broken failed and was undone: no such table: nowhere"):
        open_sqlite(path, (ONE, TWO, BROKEN))
    assert applied_migrations(path) == applied(ONE, TWO)
    assert rows(path, "SELECT name FROM sqlite_master WHERE name = 'three'") == []
    await open_sqlite(path, (ONE, TWO)).close()  # the lock was given back


async def test_an_edited_migration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await open_sqlite(path, (ONE,)).close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="0001_one is not the one"):
        open_sqlite(path, (Migration(1, "one", ONE.sql + " "),))
    assert path.read_bytes() == before


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_what_is_pending_is_told_without_creating_anything(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/db"
    known = load_migrations()
    assert pending(url) == known
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - an empty directory of the test's own
    database = open_database(url)
    assert pending(url) == ()  # also while it is open
    await database.close()
    assert pending(url) == ()
