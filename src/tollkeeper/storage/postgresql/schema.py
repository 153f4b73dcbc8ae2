"""Opening of a PostgreSQL database: its version, its schema, and a state of it to look at.

All of this blocks, from whatever thread, so it has an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.migrations import SCHEMA_TABLE, Applied, load_migrations, missing_migrations
from tollkeeper.storage.postgresql.connections import CONNECT_SECONDS, fault_of, options_of
from tollkeeper.storage.postgresql.engine import PostgresqlDatabase
from tollkeeper.storage.postgresql.words import said
from tollkeeper.storage.urls import shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tollkeeper.storage.engine.database import Row, Statement
    from tollkeeper.storage.engine.migrations import Migration

T = TypeVar("T")

_OLDEST: Final = 150_000
_NAME: Final = "postgresql"
_LOOK_SECONDS: Final = 0.2
ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtextextended('tollkeeper:migrations', 0))"
_HAS_TABLES: Final = "SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema()"
_HISTORY: Final = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"


class LoopThread:
    """An event loop in a thread, and a connection that is spoken to there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tollkeeper-postgresql", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work that is done there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def postgresql_migrations() -> tuple[Migration, ...]:
    """Every migration of this program, as PostgreSQL says it."""
    return load_migrations(_NAME)


def open_postgresql(url: str) -> PostgresqlDatabase:
    """Open the database at `url`, and bring its schema up to date. Raises: StorageError."""
    with connected(url) as (loop, connection):
        loop.wait(bring_up_to_date(connection, shown_url(url)))
    return PostgresqlDatabase(url)


def applied_to(url: str) -> list[Applied]:
    """The history of the schema, oldest first; empty where there is none. Raises: StorageError."""
    with connected(url) as (loop, connection):
        return loop.wait(_applied(connection, shown_url(url)))


class PostgresqlSnapshot:
    """One consistent state. Carries out `Snapshot`."""

    def __init__(self, loop: LoopThread, connection: asyncpg.Connection, is_over: Callable[[], bool] | None) -> None:
        self._loop, self._connection, self._is_over = loop, connection, is_over

    def read(self, statement: Statement) -> list[Row]:
        """The rows of one query. Raises: StorageError."""
        return self._loop.wait(self._read(statement))

    async def _read(self, statement: Statement) -> list[Row]:
        sql, values = said(statement)
        reading = asyncio.ensure_future(self._connection.fetch(sql, *values))
        while not (await asyncio.wait([reading], timeout=_LOOK_SECONDS))[0]:
            if self._is_over is not None and self._is_over():
                reading.cancel()
        try:
            return [dict(record) for record in await reading]
        except asyncio.CancelledError as error:
            raise StorageError("the database is read no further") from error
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            fault = fault_of(error, statement)
            raise StorageError(f"the database cannot be read ({fault})") from error


@contextmanager
def postgresql_snapshot(url: str, is_over: Callable[[], bool] | None = None) -> Iterator[PostgresqlSnapshot]:
    """The last committed state. Raises: StorageError (see `open_snapshot`)."""
    with connected(url) as (loop, connection):
        loop.wait(begin_snapshot(connection, shown_url(url)))
        yield PostgresqlSnapshot(loop, connection, is_over)


async def begin_snapshot(connection: asyncpg.Connection, shown: str) -> None:
    """Have the connection read one state from now on. Raises: StorageError for a schema of another version."""
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    applied = [one.version for one in await _applied(connection, shown)]
    if applied != [migration.version for migration in postgresql_migrations()]:
        raise StorageError(f"{shown}: the schema is another version's: run `tollkeeper db migrate`")


@contextmanager
def connected(url: str) -> Iterator[tuple[LoopThread, asyncpg.Connection]]:
    """A connection without limits of time, in a thread of its own. Raises: StorageError."""
    loop = LoopThread()
    try:
        try:
            connection = loop.wait(asyncpg.connect(**options_of(url, seconds=None)))
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StorageError(f"{shown_url(url)} cannot be reached ({_reason(error)})") from error
        try:
            yield loop, connection
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StorageError(f"{shown_url(url)}: {_reason(error)}") from error
        finally:
            loop.wait(_close(connection))
    finally:
        loop.end()


async def _close(connection: asyncpg.Connection) -> None:
    """Whatever is open there is undone."""
    try:
        await connection.close(timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


async def bring_up_to_date(connection: asyncpg.Connection, shown: str) -> None:
    """Apply what is missing in one transaction, one program at a time. Raises: StorageError, nothing changed."""
    version = await connection.fetchval("SELECT current_setting('server_version_num')::int")
    if version < _OLDEST:
        raise StorageError(f"{shown} is PostgreSQL {version // 10_000}; 15 or later is needed")
    if await connection.fetchval("SHOW server_encoding") != "UTF8":
        raise StorageError(f"{shown} does not hold UTF-8: make it with ENCODING 'UTF8'")
    async with connection.transaction():
        await connection.execute(ONE_AT_A_TIME)
        for migration in missing_migrations(postgresql_migrations(), await _applied(connection, shown)):
            await connection.execute(SCHEMA_TABLE)
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO schema_migrations (version, name, applied_ms, checksum) VALUES ($1, $2, $3, $4)",
                migration.version,
                migration.name,
                time.time_ns() // 1_000_000,
                migration.checksum,
            )


async def _applied(connection: asyncpg.Connection, shown: str) -> list[Applied]:
    if await connection.fetchval("SELECT to_regclass('schema_migrations')") is not None:
        return [Applied(*record.values()) for record in await connection.fetch(_HISTORY)]
    if await connection.fetchval(_HAS_TABLES):
        raise StorageError(f"{shown} is a database of another program")
    return []
