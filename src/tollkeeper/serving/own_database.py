"""The database that settings name, and the directory that it lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.private_files import make_private_directory
from tollkeeper.storage.urls import open_database, server_of, sqlite_path

if TYPE_CHECKING:
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.engine.database import Database


def open_own_database(settings: Settings) -> Database:
    """Open the database of these settings; make its directory where there is none. Blocks. Raises: StorageError."""
    if server_of(settings.database_url) is not None:
        return open_database(settings.database_url)
    directory = sqlite_path(settings.database_url).parent
    try:
        make_private_directory(directory)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made ({error.strerror})") from error
    return open_database(settings.database_url)
