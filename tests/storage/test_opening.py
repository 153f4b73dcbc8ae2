"""Which files are opened and which are refused; a refused file keeps every byte."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tollkeeper.storage.engine.database import Statement, Steps, StorageError, next_id, unit_of_work
from tollkeeper.storage.urls import open_database, open_snapshot, pending, sqlite_path

pytestmark = pytest.mark.sqlite_only("it is about SQLite's file")


@unit_of_work
def count(name: str, times: int) -> Steps[None]:
    for _ in range(times):
        yield from next_id(name)


async def made(path: Path) -> Path:
    """A sound database with something in it."""
    database = open_database(str(path))
    await database.run(count("things", 3))
    await database.close()
    return path


@contextmanager
def untouched(path: Path) -> Iterator[None]:
    """The file, its log and its mode are the same afterwards."""
    log = path.with_name(path.name + "-wal")

    def state() -> tuple[bytes, int, bytes | None]:
        return path.read_bytes(), path.stat().st_mode, log.read_bytes() if log.exists() else None

    before = state()
    yield
    assert state() == before


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user to whom file modes apply: to the superuser they do not."""
    nobody, superuser = 65534, 0
    if os.geteuid() != superuser:
        yield
        return
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(superuser)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///tollkeeper.db", "tollkeeper.db"),
        ("sqlite:///data/x.db", "data/x.db"),
        ("sqlite:////var/lib/x.db", "/var/lib/x.db"),
        ("/var/lib/x.db", "/var/lib/x.db"),
        ("x.db", "x.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)


@pytest.mark.parametrize("url", ["", "sqlite:///", "sqlite://", "postgresql://u:secret@host/db", "a\0b"])
def test_a_url_of_no_file_is_refused_and_no_password_repeated(url: str) -> None:
    with pytest.raises(StorageError) as refusal:
        sqlite_path(url)
    assert "secret" not in refusal.value.message


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = await made(tmp_path / "db")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = await made(tmp_path / "d b?#%41")  # also where a URI would read the name differently
    database = open_database(f"sqlite:///{path}")
    assert await database.run(next_id("things")) == 4
    await database.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name, f"{path.name}.lock"]  # noqa: ASYNC240 - the test's own


async def test_one_process_writes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database = open_database(str(path))
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    try:
        await database.run(next_id("things"))
        with untouched(path):
            other = [
                sys.executable,
                "-c",
                f"from tollkeeper.storage.urls import open_database; open_database({str(path)!r})",
            ]
            refused = await asyncio.create_subprocess_exec(*other, stderr=asyncio.subprocess.PIPE)
            _, complaint = await refused.communicate()
            assert refused.returncode != 0
            assert f"is in use by process {os.getpid()}" in complaint.decode()
            for same in (path, tmp_path / "link" / "db"):  # nor does one process open it twice
                with pytest.raises(StorageError, match="is in use by process"):
                    open_database(str(same))
        assert await database.run(next_id("things")) == 2
    finally:
        await database.close()
    await open_database(str(path)).close()


async def test_a_link_names_the_file_that_it_leads_to(tmp_path: Path) -> None:
    """SQLite keeps a log beside the file itself: there it is looked for, and there is the one lock of all names."""
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "db", tmp_path / "link"
    link.symlink_to(path)
    database = open_database(str(link))  # which is not there yet
    try:
        await database.run(next_id("things"))
        with open_snapshot(str(link)) as snapshot:
            assert [row["value"] for row in snapshot.read(Statement("SELECT value FROM sequences"))] == [1]
        for same in (path, link):
            with pytest.raises(StorageError, match="is in use by process"):
                open_database(str(same))
    finally:
        await database.close()
    assert not pending(str(link))


async def test_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    path = await made(tmp_path / "db")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9999, 'of_tomorrow', 1, 'x')")
    connection.close()
    with untouched(path), pytest.raises(StorageError, match="schema version 9999"):
        open_database(str(path))


async def test_a_newer_version_is_recognised_in_a_log_that_a_crash_left(tmp_path: Path) -> None:
    path = await made(tmp_path / "db")
    script = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1])\n"
        "connection.execute(\"INSERT INTO schema_migrations VALUES (9999, 'of_tomorrow', 1, 'x')\")\n"
        "connection.commit()\n"
        "os._exit(0)\n"
    )
    crashed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(path))
    assert await crashed.wait() == 0
    assert path.with_name("db-wal").stat().st_size > 0
    with untouched(path), pytest.raises(StorageError, match="schema version 9999"):
        open_database(str(path))


@pytest.mark.parametrize("content", [b"x", b"SQLite format 2\x00", b"\x00" * 4096, b"-- SQL\n" * 1000])
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "db"
    path.write_bytes(content)
    with untouched(path), pytest.raises(StorageError, match="is not an SQLite database"):
        open_database(str(path))


async def test_a_damaged_file_is_refused_untouched(tmp_path: Path) -> None:
    path = await made(tmp_path / "db")
    whole = path.read_bytes()
    page_size = 4096
    for damaged in (
        whole[: page_size * 2 + 17],  # cut short
        whole[:page_size] + b"\xff" * (len(whole) - page_size),  # every page but the first
        whole[:100] + os.urandom(200) + whole[300:],  # the schema's own page
    ):
        path.write_bytes(damaged)
        with untouched(path), pytest.raises(StorageError, match="restore a backup"):
            open_database(str(path))


async def test_behind_a_crash_a_full_disk_is_told_and_no_backup_asked_for(tmp_path: Path) -> None:
    path = await made(tmp_path / "db")
    script = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1])\n"
        "connection.execute('CREATE TABLE sold (id)')\n"
        "connection.commit()\n"
        "os._exit(0)\n"
    )
    crashed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(path))
    assert await crashed.wait() == 0
    path.with_name("db-shm").unlink()  # as a machine that was started anew finds it
    allowed, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))  # for the lock's file, and not for the index of the log
    try:
        with untouched(path), pytest.raises(StorageError, match="make room") as told:
            open_database(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))
    assert "backup" not in str(told.value)
    await open_database(str(path)).close()


def test_a_database_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    with untouched(path), pytest.raises(StorageError, match="of another program"):
        open_database(str(path))


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "db").touch()
    await made(tmp_path / "db")


def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "below" / "db", tmp_path / "file" / "db"):
        with pytest.raises(StorageError, match="cannot be made"):
            open_database(str(place))
    with pytest.raises(StorageError, match="cannot be read"):
        open_database(str(tmp_path))


async def test_a_directory_or_file_without_leave_to_write_is_refused_untouched() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # the other user must be able to reach it
        path = await made(Path(name) / "db")
        lock = path.with_name("db.lock")
        path.chmod(0o444)
        lock.unlink()
        path.parent.chmod(0o555)
        with untouched(path), pytest.raises(StorageError, match="cannot be written: Permission denied"), unprivileged():
            open_database(str(path))
        path.parent.chmod(0o777)  # now only the file is closed
        with (
            untouched(path),
            pytest.raises(StorageError, match="db cannot be written: Permission denied"),
            unprivileged(),
        ):
            open_database(str(path))
        lock.unlink()


async def test_the_writing_connection_is_durable_and_keeps_foreign_keys(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "db"))

    @unit_of_work
    def settings() -> Steps[list[object]]:
        found: list[object] = []
        for name in ("journal_mode", "synchronous", "foreign_keys"):
            rows = yield Statement(f"PRAGMA {name}")
            found += rows[0].values()
        return found

    full = 2
    assert await database.run(settings()) == ["wal", full, 1]
    await database.close()
