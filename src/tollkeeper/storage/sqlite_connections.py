"""How connections to an SQLite file are made, the one that writes and those that read; what their errors are."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.database import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUSY_TIMEOUT_SECONDS: Final = 5.0
_CACHED_STATEMENTS: Final = 512
_DISK_CODES: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_WAL_KEPT_SIZE_BYTES: Final = 64 * 1024 * 1024
STEPS_BETWEEN_LOOKS: Final = 1_000_000  # of SQLite's machine: some hundredths of a second


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
    """Whether the disk is full or failed, and nothing is known against the file."""
    return primary_code(error) in _DISK_CODES


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None where the Python module, not SQLite, refused."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
