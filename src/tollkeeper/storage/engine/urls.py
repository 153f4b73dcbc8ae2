"""Opening of the database that a URL names; its version, and what its schema lacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.migrations import Migration, load_migrations, missing_migrations
from tollkeeper.storage.sqlite.file import applied_migrations, open_sqlite

if TYPE_CHECKING:
    from tollkeeper.storage.sqlite.engine import SqliteDatabase

_SQLITE: Final = "sqlite:///"


def open_database(url: str, *, migrate: bool = True) -> SqliteDatabase:
    """Open the database at `url`: `sqlite:///relative`, `sqlite:////absolute`, or a bare path.

    Blocks (a start, not a request). With `migrate` it brings the schema up to date, else it refuses one that is not.
    Raises: StorageError, with nothing changed, for a database that is locked, damaged, newer, foreign or unwritable.
    """
    return open_sqlite(sqlite_path(url), load_migrations(), migrate=migrate)


def pending(url: str) -> tuple[Migration, ...]:
    """The migrations that opening would apply. Changes nothing. Raises: StorageError."""
    return missing_migrations(load_migrations(), applied_migrations(sqlite_path(url)))


def sqlite_path(url: str) -> Path:
    """The file that a URL names, by a link or itself. Raises: StorageError for another engine or no path.

    SQLite keeps the log beside the file, whatever it is opened by: there it is looked for, and there the lock is.
    """
    path = url.removeprefix(_SQLITE)
    if "://" in path or not path or "\0" in path:
        raise StorageError(f"not a database URL: write sqlite:///{{path}}, not {url.rpartition('@')[2]!r}")
    return Path(os.path.realpath(path) if os.path.islink(path) else path)  # noqa: PTH114 - for it raises nothing
