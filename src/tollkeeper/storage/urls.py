"""Opening of the database that a URL names; its version, what its schema lacks, and a state of it to look at."""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.migrations import Migration, load_migrations, missing_migrations
from tollkeeper.storage.engine.private_files import make_private_directory
from tollkeeper.storage.sqlite import copy
from tollkeeper.storage.sqlite.file import applied_migrations, open_sqlite, sqlite_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tollkeeper.storage.engine.database import Database, Snapshot

_SQLITE: Final = "sqlite:///"
_SERVER: Final = ("postgresql://", "postgres://")


def open_database(url: str) -> Database:
    """Open the database at `url`: `postgresql://...`, `sqlite:///relative`, `sqlite:////absolute`, or a bare path.

    Blocks (a start, not a request). It makes the directory where there is none, and brings the schema up to date.
    Raises: StorageError, with nothing changed, for a database that is locked, damaged, newer, foreign or unwritable.
    """
    server = server_of(url)
    if server is not None:
        opened: Database = _postgresql().open_postgresql(server)
        return opened
    path = sqlite_path(url)
    try:
        make_private_directory(path.parent)
    except OSError as error:
        raise StorageError(f"{path.parent} cannot be made ({error.strerror})") from error
    return open_sqlite(path, load_migrations())


def pending(url: str) -> tuple[Migration, ...]:
    """The migrations that opening would apply. Changes nothing. Raises: StorageError."""
    server = server_of(url)
    if server is not None:
        return missing_migrations(_postgresql().postgresql_migrations(), _postgresql().applied_to(server))
    return missing_migrations(load_migrations(), applied_migrations(sqlite_path(url)))


@contextmanager
def open_snapshot(url: str, is_over: Callable[[], bool] | None = None) -> Iterator[Snapshot]:
    """The database's last committed state. Raises: StorageError, also for a schema that is not this version's.

    MovedError where that was read before a server began to write: whoever reads has to begin anew.

    `is_over`: asked now and then while something is read, which is broken off where it says so (StorageError).
    """
    server = server_of(url)
    opening = (
        sqlite_snapshot(sqlite_path(url), is_over)
        if server is None
        else _postgresql().postgresql_snapshot(server, is_over)
    )
    with opening as snapshot:
        yield snapshot


def back_up(url: str, to: Path) -> int:
    """Copy the last committed state into an SQLite file; return its size in bytes. Raises: StorageError."""
    server = server_of(url)
    return copy.back_up(sqlite_path(url), to) if server is None else int(_postgresql("copy").back_up(server, to))


def put_back(url: str, backup: Path) -> Path | None:
    """Make a backup the database; return the directory with what was there, None for nothing. Raises: StorageError.

    What a server's database holds is not put aside: it must be empty.
    """
    server = server_of(url)
    if server is None:
        return copy.put_back(sqlite_path(url), backup)
    _postgresql("copy").put_back(server, backup)
    return None


def move(url: str, to: str) -> int:
    """Copy a file's database, which no program has, to a server's empty one; return the rows. Raises: StorageError."""
    server = server_of(to)
    if server is None:
        raise StorageError(f"{shown_url(to)!r} is no URL of PostgreSQL: write postgresql://user@host/database")
    return int(_postgresql("copy").move(sqlite_path(url), server))


def server_of(url: str) -> str | None:
    """The URL where it is a PostgreSQL server's; None for a file of SQLite's."""
    return url if url.startswith(_SERVER) else None


def shown_url(url: str) -> str:
    """The URL without whose password it names."""
    parts = urlsplit(url)
    return url if server_of(url) is None else parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def sqlite_path(url: str) -> Path:
    """The file that a URL names, by a link or itself. Raises: StorageError for another engine or no path.

    SQLite keeps the log beside the file, whatever it is opened by: there it is looked for, and there the lock is.
    """
    path = url.removeprefix(_SQLITE)
    if server_of(url) is not None:
        raise StorageError(f"{shown_url(url)} is PostgreSQL's, and this is for SQLite's file")
    if "://" in path or not path or "\0" in path:
        raise StorageError(f"not a database URL: write sqlite:///{{path}}, not {url.rpartition('@')[2]!r}")
    return Path(os.path.realpath(path) if os.path.islink(path) else path)  # noqa: PTH114 - for it raises nothing


def _postgresql(module: str = "schema") -> Any:  # noqa: ANN401 - it is there only where it is wanted
    """Return a module of the engine. Raises: StorageError where the extra is not installed."""
    try:
        return import_module(f"tollkeeper.storage.postgresql.{module}")
    except ModuleNotFoundError as error:
        raise StorageError("PostgreSQL needs an extra: pip install 'tollkeeper[postgresql]'") from error
