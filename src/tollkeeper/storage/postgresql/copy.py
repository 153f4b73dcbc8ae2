"""Copies between a server's database and SQLite's file, table by table: backups, and the move from one to the other.

A backup of either engine is the same thing: one SQLite file that holds one state. What is written is one transaction,
or a file under another name, so a copy that is cut off leaves nothing and is begun again. Every table is read back and
compared with its source by a digest of its rows before the copy counts. Tables that only PostgreSQL has tell of running
programs, and are not copied.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.migrations import load_migrations, missing_migrations
from tollkeeper.storage.postgresql.schema import ONE_AT_A_TIME, begin_snapshot, bring_up_to_date, connected
from tollkeeper.storage.sqlite.copy import whole_or_not_there
from tollkeeper.storage.sqlite.file import applied_migrations, create_file, lock_file, looking
from tollkeeper.storage.urls import shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import asyncpg

    from tollkeeper.storage.postgresql.schema import LoopThread

_Rows: TypeAlias = "Sequence[tuple[Any, ...]]"

_BATCH: Final = 5_000
_TABLES: Final = """
SELECT name FROM sqlite_master
WHERE type = 'table' AND name <> 'schema_migrations' AND name NOT LIKE 'sqlite%' ORDER BY rowid
"""
_NUMBERED: Final = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND is_identity = 'YES'
"""
# What the copied state has under way: whoever starts next on it finds those programs dead, and ends what they left.
_DEAD_PROGRAMS: Final = """
INSERT INTO nodes (mark, seen, beat_ms)
SELECT mark, 0, 0 FROM (
    SELECT substr(ledger, 1, 8) AS mark FROM open_calls
    UNION SELECT substr(id, 13, 8) FROM single_calls WHERE state = 'DISPATCHED'
    UNION SELECT mark FROM uploads WHERE is_cut = 0
) AS begun
"""


def back_up(url: str, to: Path) -> int:
    """Copy the last committed state of a server's database into a file; return its size. Raises: StorageError."""
    if os.path.lexists(to):
        raise StorageError(f"{to} is there already, and a backup is written over nothing")
    with connected(url) as (loop, connection), whole_or_not_there(to) as part, _file_errors(to):
        loop.wait(begin_snapshot(connection, shown_url(url)))
        with closing(create_file(part)) as made:
            made.execute("BEGIN")
            _copy_tables(_Server(loop, connection), _File(made), _tables(made))
            made.execute("COMMIT")
    return to.stat().st_size


def put_back(url: str, copy: Path) -> int:
    """Fill an empty database of a server with what a backup holds; return how many rows. Raises: StorageError."""
    if missing_migrations(load_migrations(), applied_migrations(copy)):
        raise StorageError(f"{copy} is an earlier version's, or not there: bring it up to date with `db migrate`")
    shown = shown_url(url)
    with connected(url) as (loop, connection):
        loop.wait(bring_up_to_date(connection, shown))
        loop.wait(connection.execute("BEGIN"))
        loop.wait(connection.execute(ONE_AT_A_TIME))
        with looking(copy) as file, _file_errors(copy):
            tables = _tables(file)
            for table, _ in tables:
                if loop.wait(connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})")):  # noqa: S608 - the schema's
                    raise StorageError(f"{shown} holds something already (in {table}): name an empty database")
            count = _copy_tables(_File(file), _Server(loop, connection), tables)
        for table, column in loop.wait(connection.fetch(_NUMBERED)):
            if highest := loop.wait(connection.fetchval(f"SELECT max({column}) FROM {table}")):  # noqa: S608 - as above
                loop.wait(
                    connection.execute("SELECT setval(pg_get_serial_sequence($1, $2), $3)", table, column, highest)
                )
        loop.wait(connection.execute(_DEAD_PROGRAMS))
        loop.wait(connection.execute("ANALYZE"))  # else statements are planned by guesses until the server does it
        loop.wait(connection.execute("COMMIT"))
    return count


def move(source: Path, url: str) -> int:
    """Fill an empty database of a server with that of a file which no program has; return how many rows.

    The file stays as it is. Raises: StorageError, nothing written.
    """
    lock = lock_file(source)
    try:
        return put_back(url, source)
    finally:
        os.close(lock)


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Raise StorageError for what SQLite raises, as for a disk that is full."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be copied ({error})") from error


class _Tables(Protocol):
    """The tables of one database, read and written in batches."""

    def read(self, table: str, columns: list[str]) -> Iterator[_Rows]: ...

    def write(self, table: str, columns: list[str], rows: _Rows) -> None: ...


@dataclass(frozen=True, slots=True)
class _File:
    connection: sqlite3.Connection

    def read(self, table: str, columns: list[str]) -> Iterator[_Rows]:
        cursor = self.connection.execute(_reading(table, columns))
        while rows := cursor.fetchmany(_BATCH):
            yield rows

    def write(self, table: str, columns: list[str], rows: _Rows) -> None:
        values = ", ".join("?" for _ in columns)
        self.connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)  # noqa: S608


@dataclass(frozen=True, slots=True)
class _Server:
    loop: LoopThread
    connection: asyncpg.Connection

    def read(self, table: str, columns: list[str]) -> Iterator[_Rows]:
        cursor = self.loop.wait(_cursor(self.connection, _reading(table, columns)))
        while rows := self.loop.wait(cursor.fetch(_BATCH)):
            yield [tuple(row) for row in rows]

    def write(self, table: str, columns: list[str], rows: _Rows) -> None:
        self.loop.wait(self.connection.copy_records_to_table(table, records=rows, columns=columns))


async def _cursor(connection: asyncpg.Connection, sql: str) -> Any:  # noqa: ANN401 - asyncpg is not typed
    return await connection.cursor(sql)


def _reading(table: str, columns: list[str]) -> str:
    return f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - names of the schema


def _tables(file: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    """The tables with their columns, those that are referred to first."""
    names = [name for (name,) in file.execute(_TABLES)]
    return [(name, [row[1] for row in file.execute(f"PRAGMA table_info({name})")]) for name in names]


def _copy_tables(source: _Tables, target: _Tables, tables: list[tuple[str, list[str]]]) -> int:
    """Copy and compare each; return how many rows there are. Raises: StorageError for one that came out different."""
    count = 0
    for table, columns in tables:
        sent, found = _Digest(), _Digest()
        for rows in source.read(table, columns):
            target.write(table, columns, rows)
            sent.add(rows)
        for rows in target.read(table, columns):
            found.add(rows)
        if found != sent:
            raise StorageError(f"{table} came out different ({found.rows} rows of {sent.rows}), so nothing was changed")
        count += sent.rows
    return count


@dataclass(slots=True)
class _Digest:
    """Sum of the rows' SHA-256: the same for the same rows, in whatever order."""

    rows: int = 0
    total: int = 0

    def add(self, rows: _Rows) -> None:
        self.rows += len(rows)
        for row in rows:
            self.total += int.from_bytes(hashlib.sha256(repr(row).encode()).digest())
