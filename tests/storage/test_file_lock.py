"""A database that several programs share: who is let in, what happens to whoever was remembered (security F20)."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tollkeeper.storage import Statement, StorageError, Unit, open_database
from tollkeeper.storage.file_lock import Sharing
from tollkeeper.storage.leases import all_ended, join, leave
from tollkeeper.storage.sequences import next_id

SHARING = Sharing("networks a and signers b", all_ended())

# Counts as often as it is told, and says so; then waits, with the file open, until it is killed or told to end.
OTHER = """
import asyncio, sys
from tollkeeper.storage import open_database
from tollkeeper.storage.file_lock import Sharing
from tollkeeper.storage.leases import all_ended
from tollkeeper.storage.sequences import next_id

async def main():
    database = open_database(sys.argv[1], sharing=Sharing("networks a and signers b", all_ended()))
    for _ in range(int(sys.argv[2])):
        print(await database.run(next_id("things")), flush=True)
    print("done", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await database.close()

asyncio.run(main())
"""


def other(path: Path, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER, str(path), str(times)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> list[int]:
    """What it counted, up to its end of counting or its death."""
    assert process.stdout is not None
    return [int(line) for line in iter(process.stdout.readline, "done\n") if line.strip().isdigit()]


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()
    assert process.returncode == 0


async def processes_in(path: Path) -> list[str]:
    database = open_database(str(path), sharing=SHARING)
    rows = await database.read(Statement("SELECT id FROM hub_processes ORDER BY id"))
    await database.close()
    return [str(row["id"]) for row in rows]


async def test_programs_that_share_a_file_see_what_each_other_wrote_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database = open_database(str(path), sharing=SHARING)
    others = [await asyncio.to_thread(other, path, 100) for _ in range(2)]
    try:
        counting = [asyncio.to_thread(told, one) for one in others]
        mine = [await database.run(next_id("things")) for _ in range(100)]
        counted = [mine, *await asyncio.gather(*counting)]
        assert sorted(number for one in counted for number in one) == list(range(1, 301))
        assert all(one == sorted(one) for one in counted)
    finally:
        for one in others:
            end(one)
        await database.close()
    await open_database(str(path)).close()  # free again


async def test_a_shared_log_is_folded_only_while_nobody_can_begin_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copying that begins behind another one may take frames of the next log for copied (decision 0068)."""
    monkeypatch.setattr("tollkeeper.storage.sqlite._LOG_PAGES_MAX", 20)
    path = tmp_path / "db"
    database = open_database(str(path), sharing=SHARING)
    log = path.with_name("db-wal")
    size_bytes = log.stat().st_size  # of the migrations
    another = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    could_write: list[bool] = []

    def look(statement: str) -> None:
        if "wal_checkpoint" not in statement:
            return
        try:
            another.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            could_write.append(False)
        else:
            another.execute("ROLLBACK")
            could_write.append(True)

    for connection in (database._writer, database._folder):  # noqa: SLF001 - nothing else sees it
        connection.set_trace_callback(look)
    for _ in range(100):
        await database.run(next_id("things"))
    await database.run(next_id("things"))  # the thread is done with the folding
    grown_bytes = log.stat().st_size - size_bytes
    another.close()
    await database.close()
    assert could_write
    assert not any(could_write)
    assert grown_bytes < 20 * 4096  # and not by a page, or more, for each commit


async def test_a_program_that_is_killed_while_it_writes_holds_up_nobody_and_loses_nothing_answered(
    tmp_path: Path,
) -> None:
    path = tmp_path / "db"
    database = open_database(str(path), sharing=SHARING)
    seen: list[int] = []
    for _ in range(10):
        with other(path, 100_000) as writing:
            assert writing.stdout is not None
            seen.append(int(writing.stdout.readline()))
            seen += [await database.run(next_id("things")) for _ in range(20)]
            writing.kill()
            seen += await asyncio.to_thread(told_until_dead, writing)
    assert len(set(seen)) == len(seen)
    assert await database.run(next_id("things")) > max(seen)
    ((result,),) = [row.values() for row in await database.read(Statement("PRAGMA integrity_check"))]
    assert result == "ok"
    await database.close()


def told_until_dead(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]


async def test_who_was_remembered_as_alive_has_ended_where_a_program_finds_the_file_free_and_only_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "db"
    first = open_database(str(path), sharing=SHARING)
    await first.run(join("of the first", 2**53, 0, is_alone=False))
    second = await asyncio.to_thread(other, path, 0)
    assert await asyncio.to_thread(told, second) == []
    assert [row["id"] for row in await first.read(Statement("SELECT id FROM hub_processes"))] == ["of the first"]
    await first.close()  # without a word: as if it were killed
    assert await processes_in(path) == ["of the first"]  # the second is there still
    await asyncio.to_thread(end, second)
    assert await processes_in(path) == []


async def test_who_does_not_share_is_refused_either_way(tmp_path: Path) -> None:
    path = tmp_path / "db"
    shared = open_database(str(path), sharing=SHARING)
    with pytest.raises(StorageError, match="in use by programs that share it"):
        open_database(str(path))
    await shared.close()
    alone = open_database(str(path))
    with pytest.raises(StorageError, match=r"in use by process \d+: which does not share it"):
        open_database(str(path), sharing=SHARING)
    await alone.close()
    await open_database(str(path), sharing=SHARING).close()


def on_another_machine(content: str) -> str:
    pid, _, terms = content.split("\n")
    return f"{pid}\nanother machine\n{terms}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.replace("signers b", "signers c"), "shared by programs with .* signers c; this one"),
        (on_another_machine, "on another machine"),
    ],
)
async def test_who_has_other_keys_or_is_on_another_machine_is_refused(
    tmp_path: Path, change: Callable[[str], str], reason: str
) -> None:
    path = tmp_path / "db"
    shared = open_database(str(path), sharing=SHARING)
    lock = path.with_name("db.lock")
    lock.write_text(change(lock.read_text()))
    with pytest.raises(StorageError, match=reason):
        open_database(str(path), sharing=SHARING)
    await shared.run(leave("nobody"))  # who is there goes on
    await shared.close()


async def test_nobody_migrates_a_file_that_others_have_open(tmp_path: Path) -> None:
    path = tmp_path / "db"
    shared = open_database(str(path), sharing=SHARING)

    def forget_the_last() -> Unit[None]:
        yield Statement("DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)")

    await shared.run(forget_the_last())
    with pytest.raises(StorageError, match="nothing else running"):
        open_database(str(path), sharing=SHARING)
    await shared.close()
