"""Copies of an SQLite database: one made beside a running server, one put in the place of a database that nobody has.

A copy is one consistent state in one file of mode 0600, which is whole or not there: it is written under another name,
synced and read through before it gets its own. Nothing is written over, and what was there before stays aside.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import MovedError, StorageError
from tollkeeper.storage.engine.migrations import load_migrations, missing_migrations
from tollkeeper.storage.engine.private_files import make_private_directory, open_private_file, sync
from tollkeeper.storage.sqlite.file import applied_migrations, lock_file, looking

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES: Final = 5  # a server that starts or stops meanwhile spoils one
_ENDS: Final = ("", "-wal", "-shm")


def back_up(source: Path, to: Path) -> int:
    """Copy the last committed state of a database file; return the copy's size. Raises: StorageError."""
    if not source.is_file():
        raise StorageError(f"{source} is not there")
    if os.path.lexists(to):
        raise StorageError(f"{to} is there already, and a backup is written over nothing")
    for tries_left in reversed(range(_TRIES)):
        try:
            _copy(source, to)
        except MovedError:
            if not tries_left:
                raise
        else:
            break
    return to.stat().st_size


def put_back(target: Path, copy: Path) -> Path | None:
    """Make the copy the database at `target`; return the directory with what was there, None for nothing.

    Raises: StorageError, nothing changed, also where a server has the database or the copy is a newer version's.
    """
    if not copy.is_file():
        raise StorageError(f"{copy} is not there")
    missing_migrations(load_migrations(), applied_migrations(copy))
    try:
        make_private_directory(target.parent)
    except OSError as error:
        raise StorageError(f"{target.parent} cannot be made ({error.strerror})") from error
    lock = lock_file(target)
    try:
        fresh = target.with_name(f"{target.name}.restored")
        fresh.unlink(missing_ok=True)  # of a restore that was killed
        _copy(copy, fresh)
        aside = _put_aside(target)
        fresh.rename(target)
        sync(target.parent)
    except OSError as error:
        raise StorageError(f"{error.filename} cannot be written ({error.strerror})") from error
    finally:
        os.close(lock)
    return aside


def _put_aside(target: Path) -> Path | None:
    """Move the database's files into a directory of their own: the log of another database would spoil the copy."""
    there = list(_files(target))
    if not there:
        return None
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = target.with_name(f"{target.name}.before-{moment}-{secrets.token_hex(2)}")
    aside.mkdir(mode=0o700)
    for path in there:
        path.rename(aside / path.name)
    sync(aside)
    return aside


def _files(target: Path) -> Iterator[Path]:
    for end in _ENDS:
        path = target.with_name(target.name + end)
        if os.path.lexists(path):
            yield path


def _copy(source: Path, to: Path) -> None:
    """Copy one state of a database. Raises: StorageError."""
    try:
        with whole_or_not_there(to) as part:
            with looking(source) as connection, closing(sqlite3.connect(part)) as made:
                connection.backup(made)
            if not applied_migrations(part):
                raise StorageError(f"{source} is no database of this program")
    except sqlite3.Error as error:
        raise StorageError(f"{source} cannot be copied ({error})") from error


@contextmanager
def whole_or_not_there(to: Path) -> Iterator[Path]:
    """Another name, of mode 0600, to write a database under; at the end it is synced and gets its own.

    Raises: StorageError for a disk that does not take it; whatever ends the block, and nothing is there then.
    """
    part = to.with_name(f"{to.name}.{secrets.token_hex(4)}.part")
    try:
        open_private_file(part).close()
        yield part
        sync(part)
        part.rename(to)
        sync(to.parent)
    except OSError as error:
        raise StorageError(f"{error.filename} cannot be written ({error.strerror})") from error
    finally:
        for end in (*_ENDS, "-journal"):
            with suppress(OSError):
                part.with_name(part.name + end).unlink(missing_ok=True)
