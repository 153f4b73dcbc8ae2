"""The files of an open database are deleted, moved or written over: from then on it answers nothing."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from tollkeeper.storage.engine.database import Statement, Steps, StorageError, next_id, unit_of_work
from tollkeeper.storage.sqlite import watch as sqlite_watch
from tollkeeper.storage.sqlite.engine import SqliteDatabase
from tollkeeper.storage.sqlite.watch import FileWatch
from tollkeeper.storage.urls import open_database

pytestmark = pytest.mark.sqlite_only("it is about SQLite's file")

NOTICED_SECONDS = 60  # on a busy machine; a second and some on a quiet one
ONE = Statement("SELECT 1 AS one")


def url(home: Path) -> str:
    return f"sqlite:///{home / 'books.db'}"


@unit_of_work
def grow(rows: int) -> Steps[None]:
    for number in range(rows):
        yield from next_id(f"{number:0500}")


@pytest.fixture
async def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteDatabase]:
    monkeypatch.setattr(sqlite_watch, "LOOK_SECONDS", 0.05)
    opened = open_database(url(tmp_path))
    assert isinstance(opened, SqliteDatabase)
    yield opened
    await opened.close()


def delete(path: Path, _backup: Path) -> None:
    path.unlink()


def move_away(path: Path, _backup: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def move_over(path: Path, backup: Path) -> None:
    backup.rename(path)


def copy_over(path: Path, backup: Path) -> None:
    shutil.copyfile(backup, path)


def truncate(path: Path, _backup: Path) -> None:
    path.write_bytes(b"")


def scribble(path: Path, _backup: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def beside(end: str, change: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    return lambda path, backup: change(path.with_name(path.name + end), backup)


@pytest.mark.parametrize(
    "change",
    [
        *(delete, move_away, move_over, copy_over, truncate, scribble),
        *(beside(end, change) for end in ("-wal", "-shm", ".lock") for change in (delete, move_over)),
    ],
)
async def test_a_database_whose_files_are_no_longer_there_answers_nothing(
    database: SqliteDatabase, tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    path, backup = tmp_path / "books.db", tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as copied:
        source.backup(copied)
    await database.run(grow(3000))
    with closing(sqlite3.connect(path)) as other:  # the log is in the file, so that the file holds what was written
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
    await asyncio.sleep(0.5)  # it was looked at
    await database.read(ONE)
    change(path, backup)
    for use in (lambda: database.read(ONE), lambda: database.read(ONE, is_short=True), lambda: database.run(grow(1))):
        await until_lost(use)


async def until_lost(use: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + NOTICED_SECONDS
    while "are not those that were opened" not in await refusal_of(use()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def refusal_of(use: Awaitable[object]) -> str:
    """Why the database does not do it; empty where it does."""
    try:
        await use
    except StorageError as refusal:
        return refusal.message
    return ""


async def test_a_lost_database_is_not_mended_as_a_disk_would_be(database: SqliteDatabase, tmp_path: Path) -> None:
    (tmp_path / "books.db").unlink()
    await until_lost(lambda: database.run(grow(1)))
    await asyncio.sleep(2.5)  # a disk would have been tried again
    assert "are not those that were opened" in await refusal_of(database.run(grow(1)))


async def test_whatever_sqlite_does_to_its_files_by_itself_loses_nothing(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    """Commits, a log that is folded, others that read, fold it or copy the database meanwhile."""
    path, watch = tmp_path / "books.db", FileWatch(tmp_path / "books.db")
    for _ in range(40):
        await database.run(grow(300))
        with closing(sqlite3.connect(path)) as other:
            other.execute("SELECT count(*) FROM sequences").fetchall()
            other.execute("PRAGMA wal_checkpoint(PASSIVE)")
            with closing(sqlite3.connect(":memory:")) as copied:
                other.backup(copied)
        assert watch.look() is None
    await database.read(ONE)
