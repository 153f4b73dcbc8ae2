"""What a crash, a full disk and a lost disk leave: everything that was answered, nothing by halves."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from tollkeeper.storage.engine.database import Statement, Steps, StorageError, next_id, unit_of_work
from tollkeeper.storage.urls import open_database

pytestmark = pytest.mark.sqlite_only("it is about SQLite's file")

WRITER = """
import asyncio, os, resource, sys
from tollkeeper.storage.engine.database import Statement, StorageError, unit_of_work
from tollkeeper.storage.urls import open_database
from tollkeeper.storage.engine.database import next_id

@unit_of_work
def pair(caller):
    number = yield from next_id(f"a{caller}")
    assert number == (yield from next_id(f"b{caller}"))
    return number

async def work(database, caller):
    while True:
        number = await database.run(pair(caller))
        os.write(1, f"{caller} {number}\\n".encode())

async def main(path, room_bytes):
    database = open_database(path)
    if room_bytes:
        size_limit = os.stat(path + "-wal").st_size + room_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_limit, resource.RLIM_INFINITY))
    try:
        await asyncio.gather(*(work(database, caller) for caller in range(16)))
    except StorageError:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))  # however long it takes from here on
        os.write(1, b"refused\\n")
        await asyncio.sleep(0.2)
        for _ in range(3):
            try:
                await database.run(pair(99))
            except StorageError as error:
                os.write(1, f"refused {error.status} {error.message}\\n".encode())
        rows = await database.read(Statement("SELECT count(*) AS n FROM sequences"))
        os.write(1, f"read {rows[0]['n']}\\n".encode())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for _ in range(600):
            try:
                os.write(1, f"again {await database.run(pair(99))}\\n".encode())
                break
            except StorageError:
                await asyncio.sleep(0.1)
        await database.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def acknowledged(lines: list[str]) -> dict[str, int]:
    """The last number that each caller was told."""
    told: dict[str, int] = {}
    for line in lines:
        caller, number = line.split()
        assert int(number) == told.get(caller, 0) + 1
        told[caller] = int(number)
    return told


def sequences(path: Path) -> dict[str, int]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return dict(connection.execute("SELECT name, value FROM sequences").fetchall())
    finally:
        connection.close()


def assert_kept(path: Path, told: dict[str, int]) -> None:
    """Nothing that was answered is lost, nothing is there by halves, nobody is ahead by more than one unit."""
    found = sequences(path)
    assert told
    for caller, number in told.items():
        assert found[f"a{caller}"] == found[f"b{caller}"]
        assert number <= found[f"a{caller}"] <= number + 1


@pytest.mark.parametrize("lines_before_the_kill", [1, 500, 3000])
async def test_a_killed_process_loses_no_answered_unit(tmp_path: Path, lines_before_the_kill: int) -> None:
    path = tmp_path / "db"
    command = [sys.executable, "-c", WRITER, str(path), "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(lines_before_the_kill)]
    process.kill()
    lines += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    told = acknowledged([line.decode() for line in lines if line.endswith(b"\n")])
    await open_database(str(path)).close()  # opens as if nothing had happened
    assert_kept(path, told)


async def test_after_a_failed_write_nothing_is_written_until_the_disk_takes_writes_again(tmp_path: Path) -> None:
    path = tmp_path / "db"
    command = [sys.executable, "-c", WRITER, str(path), str(64 * 1024)]  # beside what the migrations wrote
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    lines = output.decode().splitlines()
    refusals = [line for line in lines if line.startswith("refused ")]
    assert len(refusals) == 3
    assert all(line.startswith("refused 503 the database takes no writes") for line in refusals)
    assert str(path) not in "".join(refusals)
    assert [line for line in lines if line.startswith("read ")] == ["read 32"]  # reading goes on
    assert [line for line in lines if line.startswith("again ")] == ["again 1"]  # and what was refused was not written
    told = acknowledged([line for line in lines if line[0].isdigit()])
    database = open_database(str(path))
    assert_kept(path, told)
    assert await database.run(next_id("after")) == 1
    await database.close()


async def test_an_answer_comes_after_the_commit(tmp_path: Path) -> None:
    """Another connection sees the write in the very moment in which the caller is told."""
    path = tmp_path / "db"
    database = open_database(str(path))
    other = sqlite3.connect(path)

    async def caller(name: str) -> None:
        for number in range(1, 51):
            assert await database.run(next_id(name)) == number
            ((seen,),) = other.execute("SELECT value FROM sequences WHERE name = ?", (name,)).fetchall()
            assert seen >= number

    await asyncio.gather(*(caller(f"s{number}") for number in range(8)))
    other.close()
    await database.close()


async def test_a_refusal_waits_for_the_commit_of_what_it_rests_on(tmp_path: Path) -> None:
    """A unit that was refused because of another unit's write is not told so before that write is safe."""
    path = tmp_path / "db"
    database = open_database(str(path))
    other = sqlite3.connect(path)
    entered, gate = threading.Event(), threading.Event()

    @unit_of_work
    def hold() -> Steps[None]:
        entered.set()
        assert gate.wait(10)
        yield Statement("SELECT 1")

    @unit_of_work
    def only_once() -> Steps[None]:
        if (yield from next_id("once")) > 1:
            raise LookupError

    async def told() -> bool:
        try:
            await database.run(only_once())
        except LookupError:
            assert other.execute("SELECT value FROM sequences WHERE name = 'once'").fetchall() == [(1,)]
            return False
        return True

    holding = asyncio.create_task(database.run(hold()))
    assert await asyncio.to_thread(entered.wait, 10)
    tasks = [asyncio.create_task(told()) for _ in range(20)]
    await asyncio.sleep(0)
    gate.set()
    assert sorted([await task for task in tasks]) == [False] * 19 + [True]
    await holding
    other.close()
    await database.close()


async def test_another_programs_write_lock_is_a_passing_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.sqlite.engine.BUSY_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "db"
    database = open_database(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="held by another program"):
        await database.run(next_id("things"))
    other.execute("ROLLBACK")
    other.close()
    assert await database.run(next_id("things")) == 1
    await database.close()
