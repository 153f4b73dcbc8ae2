"""Opening an SQLite file: lock it, look at it without touching it, migrate it; or refuse and say why.

The order is the point: a file that another process writes, that is no database, that is damaged, that another program
or a newer version made, is refused before anything could change in it. Whoever has the file open by itself, without
SQLite, must not close it while the database is open: that would drop SQLite's own locks, which a check or a copy beside
a running server rests on. Our own lock, a file beside the database, lets one program have it; the kernel frees it with
its holder's death.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import MovedError, StorageError
from tollkeeper.storage.engine.migrations import (
    OTHER_SCHEMA,
    SCHEMA_TABLE,
    Applied,
    Migration,
    load_migrations,
    missing_migrations,
    statements_of,
)
from tollkeeper.storage.sqlite.connections import STEPS_BETWEEN_LOOKS, connect_writer, is_of_the_disk
from tollkeeper.storage.sqlite.engine import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tollkeeper.storage.engine.database import Row, Statement

_HEADER: Final = b"SQLite format 3\x00"
# quick_check reads the whole file; above this size only header and schema are read, so that a start stays quick.
_CHECKED_SIZE_BYTES: Final = 256 * 1024 * 1024
_PROCESS_ID_SIZE_BYTES: Final = 32


def open_sqlite(path: Path, known: Sequence[Migration]) -> SqliteDatabase:
    """Open the database at `path`, creating it with mode 0600, and bring its schema up to `known`.

    Raises: StorageError, the file untouched.
    """
    path = path.absolute().parent.resolve() / path.name
    with ExitStack() as on_failure:
        lock = lock_file(path)
        on_failure.callback(os.close, lock)
        try:
            writer = _open_writer(path, missing_migrations(known, applied_migrations(path)))
            on_failure.callback(writer.close)
            database = SqliteDatabase(path, writer, lock)
        except sqlite3.Error as error:
            raise StorageError(f"{path}: {error}") from error
        on_failure.pop_all()
    return database


def lock_file(path: Path) -> int:
    """Take the database at `path` for this program alone. Raises: StorageError where another program has it."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{path.parent} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, _PROCESS_ID_SIZE_BYTES, 0).decode("ascii", "replace")
        os.close(descriptor)
        raise StorageError(
            f"{path} is in use by process {holder}: one process writes a database; end that one first"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise StorageError(f"{lock_path} cannot be locked: {error.strerror}") from error
    return descriptor


def applied_migrations(path: Path) -> list[Applied]:
    """The history of the schema, oldest first; empty for a database that is not there yet. Changes nothing.

    Raises: StorageError where the file is no sound database of this program.
    """
    if not _has_content(path):
        return []
    try:
        with looking(path) as connection:
            if path.stat().st_size <= _CHECKED_SIZE_BYTES:
                finding = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if finding != "ok":
                    raise StorageError(f"{path} is damaged ({finding}): restore a backup")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                return []
            if "schema_migrations" not in tables:
                raise StorageError(f"{path} is a database of another program")
            history = connection.execute("SELECT version, name, checksum FROM schema_migrations ORDER BY version")
            return [Applied(*row) for row in history]
    except sqlite3.Error as error:
        # Behind a crash a full disk has no room for what SQLite reads a log with, and nothing is wrong with the file:
        # a backup would forget what was sold since.
        remedy = "make room on its disk, or look at it" if is_of_the_disk(error) else "restore a backup"
        raise StorageError(f"{path} cannot be read as a database ({error}): {remedy}") from error


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that leaves nothing behind; a log that a crash or a running process left is read with the file.

    Any thread may use it, one at a time. Where there is no log nobody has the file open, and it is read without locks:
    a server that is started then folds its log into it below our eyes.
    Raises: MovedError in place of whatever was read, or raised, meanwhile.
    """
    log, before = path.with_name(path.name + "-wal"), _stamp(path)
    has_log = log.exists()
    mode = "mode=ro" if has_log else "immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    moved = MovedError(f"{path} was opened or closed by a server while it was read: try again")

    def is_moved() -> bool:
        return not log.exists() if has_log else _stamp(path) != before

    with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
        try:
            yield connection
        except Exception:
            if is_moved():
                raise moved from None
            raise
        if is_moved():
            raise moved


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return a stamp that no file keeps once somebody wrote to it."""
    seen = path.stat()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def _has_content(path: Path) -> bool:
    """Return True if there is a database file. Raises: StorageError for a file that is none."""
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if header and header != _HEADER:
        raise StorageError(f"{path} is not an SQLite database")
    return bool(header)


def _open_writer(path: Path, missing: Sequence[Migration]) -> sqlite3.Connection:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    writer = connect_writer(path)
    try:
        for migration in missing:
            _apply(writer, migration)
    except BaseException:
        writer.close()
        raise
    return writer


def create_file(path: Path) -> sqlite3.Connection:
    """Make an empty database of this version, and return the connection that writes it. Raises: StorageError."""
    return _open_writer(path, load_migrations())


def _apply(writer: sqlite3.Connection, migration: Migration) -> None:
    """One migration and the record of it, in one transaction. Raises: StorageError, nothing of it done."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        writer.execute(SCHEMA_TABLE)
        for statement in statements_of(migration.sql):
            writer.execute(statement)
        writer.execute(
            "INSERT INTO schema_migrations (version, name, applied_ms, checksum) VALUES (?, ?, ?, ?)",
            (migration.version, migration.name, time.time_ns() // 1_000_000, migration.checksum),
        )
        writer.execute("COMMIT")
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            writer.execute("ROLLBACK")
        raise StorageError(
            f"migration {migration.version:04}_{migration.name} failed and was undone: {error}"
        ) from error


# One consistent state of a database, read by a connection of its own that cannot write (security 5). It works beside a
# running server and holds up nobody: readers and the writer of a write-ahead log do not wait for one another. Meant for
# checks that read whole tables, which the server's own reading thread must not do. Blocks; any thread may read, one at
# a time.


class SqliteSnapshot:
    """The state as it was when the snapshot was opened. Carries out `Snapshot`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def read(self, statement: Statement) -> list[Row]:
        """The rows of one query. Raises: StorageError."""
        try:
            cursor = self._connection.execute(statement.sql, statement.params)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise StorageError(f"the database cannot be read ({error})") from error


@contextmanager
def sqlite_snapshot(path: Path, is_over: Callable[[], bool] | None = None) -> Iterator[SqliteSnapshot]:
    """The last committed state of the file. Raises: StorageError, MovedError (see `open_snapshot`)."""
    if not path.is_file():
        raise StorageError(f"{path} is not there")
    try:
        with looking(path) as connection:
            connection.execute("PRAGMA query_only = ON")
            if is_over is not None:
                connection.set_progress_handler(is_over, STEPS_BETWEEN_LOOKS)
            connection.execute("BEGIN")
            applied = [version for (version,) in connection.execute("SELECT version FROM schema_migrations ORDER BY 1")]
            if applied != [migration.version for migration in load_migrations()]:
                raise StorageError(f"{path}: {OTHER_SCHEMA}")
            yield SqliteSnapshot(connection)
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read as a database ({error})") from error
