"""One consistent state of a database, read by a connection of its own that cannot write (security 5).

It works beside a running server and holds up nobody: readers and the writer of a write-ahead log do not wait for one
another. Meant for checks that read whole tables, which the server's own reading thread must not do. Blocks; any
thread may read, one at a time.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.migrations import load_migrations
from tollkeeper.storage.sqlite.connections import STEPS_BETWEEN_LOOKS
from tollkeeper.storage.sqlite.file import looking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tollkeeper.storage.engine.database import Row, Statement


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
                raise StorageError(f"{path}: the schema is another version's: run `tollkeeper db migrate`")
            yield SqliteSnapshot(connection)
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read as a database ({error})") from error
