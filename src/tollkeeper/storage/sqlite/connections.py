"""Connections to an SQLite file: how they are made, what a statement gives on one, what their errors are."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import ConstraintError, StatementError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tollkeeper.storage.engine.database import Row, Statement

BUSY_TIMEOUT_SECONDS: Final = 5.0
_CACHED_STATEMENTS: Final = 512
_DISK_CODES: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_WAL_KEPT_SIZE_BYTES: Final = 64 * 1024 * 1024
STEPS_BETWEEN_LOOKS: Final = 1_000_000  # of SQLite's machine: some hundredths of a second
# A failed statement is its unit's own affair where SQLite blames the statement; every other code blames the storage.
_STATEMENT_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
    }
)


def connect_writer(path: Path) -> sqlite3.Connection:
    """The connection that writes. Raises: StorageError, sqlite3.Error."""
    connection = _connect(path)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        connection.close()
        raise StorageError(f"{path}: this file system cannot hold a write-ahead log (journal mode is {mode})")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_SIZE_BYTES}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, nor move the log into the file. Raises: sqlite3.Error."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def limit_each(connection: sqlite3.Connection, seconds: float, is_over: Callable[[], bool]) -> Callable[[], None]:
    """Has every statement broken off (SQLITE_INTERRUPT) that takes longer, or once it `is_over`.

    What is returned is called before each.
    """
    until = 0.0

    def begin() -> None:
        nonlocal until
        until = time.monotonic() + seconds

    connection.set_progress_handler(lambda: is_over() or time.monotonic() > until, STEPS_BETWEEN_LOOKS)
    return begin


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,  # transactions begin and end where this module says so
        check_same_thread=False,  # opened by one thread, then used by one other only
        cached_statements=_CACHED_STATEMENTS,
    )
    # What a savepoint or a statement may have to undo: else a file is made and deleted in every commit.
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def is_of_the_disk(error: sqlite3.Error) -> bool:
    """Return True if the disk is full or failed, and nothing is known against the file."""
    return primary_code(error) in _DISK_CODES


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None where the Python module, not SQLite, refused."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def rows_of(connection: sqlite3.Connection, statement: Statement) -> list[Row]:
    """Execute and fetch all. Raises: StatementError; sqlite3.Error where the storage failed."""
    try:
        cursor = connection.execute(statement.sql, statement.params)
        found = cursor.fetchall()
    except sqlite3.Error as error:
        code = primary_code(error)
        if code == sqlite3.SQLITE_CONSTRAINT:
            raise ConstraintError(f"{error}: {shown(statement)}") from error
        if code in _STATEMENT_CODES or code is None:
            raise StatementError(f"{error}: {shown(statement)}") from error
        raise
    if not found:
        return []
    names = [column[0] for column in cursor.description]
    if len(names) == 2:  # a key and what belongs to it, as the many rows of a batch are: in half of the time
        key, value = names
        return [{key: one, value: other} for one, other in found]
    return [dict(zip(names, row, strict=True)) for row in found]


def shown(statement: Statement) -> str:
    """The SQL on one line for a message: never the bound values, which may be secrets."""
    return " ".join(statement.sql.split())[:200]
