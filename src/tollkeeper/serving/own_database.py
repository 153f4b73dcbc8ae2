"""The database that settings name, and the directory that it lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.storage import StorageError, open_database
from tollkeeper.storage.opening import sqlite_path

if TYPE_CHECKING:
    from tollkeeper.settings import Settings
    from tollkeeper.storage.file_lock import Sharing
    from tollkeeper.storage.sqlite import SqliteDatabase


def open_own_database(settings: Settings, sharing: Sharing | None = None) -> SqliteDatabase:
    """The database of these settings, its directory made where it is not there. Blocks. Raises: StorageError."""
    make_directory(settings)
    return open_database(settings.database_url, sharing=sharing)


def make_directory(settings: Settings) -> None:
    """Makes the database's directory where it is not there. Raises: StorageError."""
    directory = sqlite_path(settings.database_url).parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{directory} cannot be made ({error.strerror})"
        raise StorageError(msg) from error
