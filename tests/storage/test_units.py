"""Units of work on the embedded engine: together on the disk, apart in everything else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from tollkeeper.storage.engine.database import (
    ConstraintError,
    JobOutcome,
    Statement,
    StatementError,
    Steps,
    StorageError,
    Unit,
    next_id,
    unit_of_work,
)
from tollkeeper.storage.engine.migrations import Migration
from tollkeeper.storage.sqlite.batches import WAITING_MAX
from tollkeeper.storage.sqlite.engine import SqliteDatabase
from tollkeeper.storage.sqlite.file import open_sqlite
from tollkeeper.storage.urls import open_database

SCHEMA = (
    Migration(
        1,
        "tables",
        "CREATE TABLE sequences (name TEXT PRIMARY KEY, value BIGINT NOT NULL);\n"
        "CREATE TABLE notes (id BIGINT PRIMARY KEY, text TEXT NOT NULL, data BYTEA);\n"
        "CREATE TABLE marks (note_id BIGINT NOT NULL REFERENCES notes (id));\n",
    ),
)
ALL_NOTES = Statement("SELECT id, text FROM notes ORDER BY id")


class RefusedByRuleError(Exception):
    """A refusal that a unit decides on."""


@unit_of_work
def note(number: int, text: str) -> Steps[int]:
    yield Statement("INSERT INTO notes (id, text) VALUES (:id, :text)", {"id": number, "text": text})
    return number


@unit_of_work
def note_then_refuse(number: int) -> Steps[None]:
    yield from note(number, "undone")
    yield from note(number + 1, "undone")
    raise RefusedByRuleError


@unit_of_work
def hold(entered: threading.Event, gate: threading.Event) -> Steps[None]:
    """Keeps the writing thread busy, so that what is handed over meanwhile is one batch."""
    entered.set()
    assert gate.wait(10)
    yield Statement("SELECT 1")


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    opened = open_sqlite(tmp_path / "db", SCHEMA)
    yield opened
    await opened.close()


async def ids(database: SqliteDatabase) -> list[int]:
    return [row["id"] for row in await database.read(ALL_NOTES)]


async def in_one_batch(database: SqliteDatabase, *units: Unit[object]) -> list[object]:
    """Run the units so that they share one transaction; their results, or the exceptions raised."""
    entered, gate = threading.Event(), threading.Event()
    holding = asyncio.create_task(database.run(hold(entered, gate)))
    assert await asyncio.to_thread(entered.wait, 10)
    tasks = [asyncio.create_task(database.run(unit)) for unit in units]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await holding
    return list(results)


async def test_a_unit_returns_its_result_and_its_writes_can_be_read_at_once(database: SqliteDatabase) -> None:
    for number in range(50):
        assert await database.run(note(number, "x")) == number
        assert len(await ids(database)) == number + 1


async def test_rows_come_back_with_every_type_that_went_in(database: SqliteDatabase) -> None:
    large, text, data = 2**63 - 1, "übergroß\0'", bytes(range(256))

    @unit_of_work
    def write() -> Steps[None]:
        yield Statement("INSERT INTO notes VALUES (:a, :b, :c)", {"a": large, "b": text, "c": data})
        yield Statement("INSERT INTO notes VALUES (:a, :b, :c)", {"a": -large, "b": "", "c": None})

    await database.run(write())
    assert await database.read(Statement("SELECT * FROM notes ORDER BY id DESC")) == [
        {"id": large, "text": text, "data": data},
        {"id": -large, "text": "", "data": None},
    ]


async def test_a_unit_sees_its_own_writes_and_those_of_the_units_before_it(database: SqliteDatabase) -> None:
    @unit_of_work
    def count() -> Steps[int]:
        yield from note(100, "mine")
        rows = yield Statement("SELECT count(*) AS n FROM notes")
        n: int = rows[0]["n"]
        return n

    assert await in_one_batch(database, note(1, "first"), count()) == [1, 2]


async def test_units_that_wait_together_are_committed_together(database: SqliteDatabase) -> None:
    before = database.commits
    results = await in_one_batch(database, *(note(number, "x") for number in range(300)))
    assert results == list(range(300))
    assert database.commits - before == 2  # the one that held the thread, and all others
    assert len(await ids(database)) == 300


async def test_concurrent_callers_share_commits(database: SqliteDatabase) -> None:
    async def caller(name: str) -> None:
        for expected in range(1, 21):
            assert await database.run(next_id(name)) == expected

    before = database.commits, database.units
    await asyncio.gather(*(caller(f"sequence {number}") for number in range(64)))
    commits, units = database.commits - before[0], database.units - before[1]
    assert units == 64 * 20
    assert commits * 4 < units


async def test_a_lone_unit_waits_for_nobody(database: SqliteDatabase) -> None:
    before = database.commits
    for number in range(10):
        await database.run(note(number, "x"))
    assert database.commits - before == 10


async def test_an_exception_undoes_its_own_unit_only(database: SqliteDatabase) -> None:
    results = await in_one_batch(
        database, note(1, "a"), note_then_refuse(10), note(2, "b"), note(1, "again"), note(3, "c")
    )
    assert [results[0], results[2], results[4]] == [1, 2, 3]
    assert isinstance(results[1], RefusedByRuleError)
    assert isinstance(results[3], ConstraintError)
    assert await ids(database) == [1, 2, 3]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (Statement("INSERT INTO notes (id, text) VALUES (1, 'x')"), ConstraintError),
        (Statement("INSERT INTO notes (id, text) VALUES (5, NULL)"), ConstraintError),
        (Statement("INSERT INTO marks (note_id) VALUES (999)"), ConstraintError),
        (Statement("SELEC 1"), StatementError),
        (Statement("SELECT * FROM nowhere"), StatementError),
        (Statement("SELECT :a", {}), StatementError),
        (Statement("SELECT 1; SELECT 2"), StatementError),
        (Statement("SELECT :a", {"a": 2**63}), OverflowError),
    ],
)
async def test_a_statement_that_cannot_be_fails_its_unit_and_nothing_else(
    database: SqliteDatabase, statement: Statement, error: type[Exception]
) -> None:
    @unit_of_work
    def unit() -> Steps[None]:
        yield from note(50, "undone")
        yield statement

    await database.run(note(1, "stays"))
    with pytest.raises(error):
        await database.run(unit())
    assert await database.run(note(2, "goes on")) == 2
    assert await ids(database) == [1, 2]


async def test_an_error_shows_the_sql_and_never_the_values(database: SqliteDatabase) -> None:
    await database.run(note(1, "x"))
    with pytest.raises(ConstraintError, match="INSERT INTO notes") as refusal:
        await database.run(note(1, "a secret"))
    assert "a secret" not in str(refusal.value)


async def test_a_unit_cannot_go_on_after_a_failed_statement(database: SqliteDatabase) -> None:
    """On another engine the transaction would be lost, so it is on this one."""

    @unit_of_work
    def stubborn() -> Steps[str]:
        try:
            yield Statement("SELECT * FROM nowhere")
        except StatementError:
            yield from note(1, "went on")
        return "done"

    with pytest.raises(StatementError):
        await database.run(stubborn())
    assert await ids(database) == []


async def test_a_cancelled_caller_leaves_a_whole_unit(database: SqliteDatabase) -> None:
    entered, gate = threading.Event(), threading.Event()
    holding = asyncio.create_task(database.run(hold(entered, gate)))
    assert await asyncio.to_thread(entered.wait, 10)
    cancelled = [asyncio.create_task(database.run(note(number, "x"))) for number in range(20)]
    kept = asyncio.create_task(database.run(note(20, "x")))
    await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    assert all(task.cancelled() for task in cancelled)
    gate.set()
    assert await kept == 20
    await holding
    assert await ids(database) == list(range(21))


async def test_short_units_of_one_turn_are_one_commit_and_each_is_apart(database: SqliteDatabase) -> None:
    units = (note(1, "one"), note_then_refuse(10), note(1, "the same number"), note(3, "three"))
    before = database.commits
    results = await asyncio.gather(*(database.run(unit, is_short=True) for unit in units), return_exceptions=True)
    assert results[0] == 1
    assert isinstance(results[1], RefusedByRuleError)
    assert isinstance(results[2], ConstraintError)
    assert results[3] == 3
    assert database.commits == before + 1
    assert await ids(database) == [1, 3]


async def test_short_units_join_the_threads_work_where_it_has_some(database: SqliteDatabase) -> None:
    entered, gate = threading.Event(), threading.Event()
    busy = asyncio.create_task(database.run(hold(entered, gate)))
    await asyncio.to_thread(entered.wait, 10)
    short = [asyncio.create_task(database.run(note(number, "short"), is_short=True)) for number in range(100)]
    await asyncio.sleep(0.05)  # the loop is not held up
    assert not any(task.done() for task in short)
    gate.set()
    await busy
    assert await asyncio.gather(*short) == list(range(100))


async def test_short_units_leave_a_slow_disk_to_the_thread(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.sqlite.engine._COMMIT_HERE_SECONDS", 0.0)
    units = (note(1, "one"), note_then_refuse(10), note(2, "two"))
    results = await asyncio.gather(*(database.run(unit, is_short=True) for unit in units), return_exceptions=True)
    assert results[0] == 1
    assert isinstance(results[1], RefusedByRuleError)
    assert results[2] == 2
    assert await ids(database) == [1, 2]


async def test_more_short_units_than_one_turn_takes_are_all_done(database: SqliteDatabase) -> None:
    numbers = list(range(200))
    assert await asyncio.gather(*(database.run(note(number, "short"), is_short=True) for number in numbers)) == numbers
    assert await ids(database) == numbers


async def test_a_cancelled_caller_leaves_a_whole_short_unit(database: SqliteDatabase) -> None:
    left = asyncio.create_task(database.run(note(1, "left"), is_short=True))
    stays = asyncio.create_task(database.run(note(2, "stays"), is_short=True))
    await asyncio.sleep(0)  # both are handed over, neither is committed
    left.cancel()
    assert await stays == 2
    with pytest.raises(asyncio.CancelledError):
        await left
    assert await ids(database) == [1, 2]


async def test_a_closed_database_refuses_short_units(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "db", SCHEMA)
    await database.close()
    with pytest.raises(StorageError):
        await database.run(note(1, "late"), is_short=True)


async def test_reading_goes_on_while_a_unit_runs_and_sees_committed_state_only(database: SqliteDatabase) -> None:
    await database.run(note(1, "x"))
    entered, gate = threading.Event(), threading.Event()

    @unit_of_work
    def slow() -> Steps[None]:
        yield from note(2, "x")
        yield from hold(entered, gate)

    writing = asyncio.create_task(database.run(slow()))
    assert await asyncio.to_thread(entered.wait, 10)
    assert await ids(database) == [1]
    gate.set()
    await writing
    assert await ids(database) == [1, 2]


async def test_a_short_read_sees_every_answered_unit_and_cannot_write(database: SqliteDatabase) -> None:
    entered, gate = threading.Event(), threading.Event()
    await database.run(note(1, "one"), is_short=True)
    holding = asyncio.create_task(database.run(hold(entered, gate)))
    assert await asyncio.to_thread(entered.wait, 10)
    assert [row["id"] for row in await database.read(ALL_NOTES, is_short=True)] == [1]  # waits for no unit under way
    with pytest.raises(StatementError):
        await database.read(Statement("DELETE FROM notes"), is_short=True)
    gate.set()
    await holding


async def test_a_closed_database_refuses_short_reads(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "db", SCHEMA)
    await database.close()
    with pytest.raises(StorageError):
        await database.read(ALL_NOTES, is_short=True)


@pytest.mark.parametrize(
    "statement", ["INSERT INTO notes (id, text) VALUES (1, 'x') RETURNING id", "DELETE FROM notes", "DROP TABLE notes"]
)
async def test_reading_cannot_write(database: SqliteDatabase, statement: str) -> None:
    with pytest.raises(StatementError, match="read may not write"):
        await database.read(Statement(statement))
    assert await ids(database) == []


async def test_a_failed_read_is_its_callers_own(database: SqliteDatabase) -> None:
    good, bad = await asyncio.gather(
        database.read(Statement("SELECT 1 AS a")), database.read(Statement("SELECT :a")), return_exceptions=True
    )
    assert good == [{"a": 1}]
    assert isinstance(bad, StatementError)


async def test_closing_finishes_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
    opened = open_sqlite(tmp_path / "other", SCHEMA)
    accepted = [asyncio.create_task(opened.run(note(number, "x"))) for number in range(200)]
    await asyncio.sleep(0)
    await asyncio.gather(opened.close(), opened.close())
    assert [await task for task in accepted] == list(range(200))
    with pytest.raises(StorageError, match="closed"):
        await opened.run(note(1000, "late"))
    with pytest.raises(StorageError, match="closed"):
        await opened.read(ALL_NOTES)
    again = open_sqlite(tmp_path / "other", SCHEMA)
    assert await ids(again) == list(range(200))
    await again.close()


async def test_closing_breaks_off_the_lists(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "other", SCHEMA)
    endless = Statement("WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n) SELECT max(v) FROM n")
    lists = [asyncio.create_task(database.read(endless, tenant="owner")) for _ in range(2)]
    await asyncio.sleep(0.1)
    writing = asyncio.create_task(database.run(note(1, "x")))
    await asyncio.sleep(0)
    await asyncio.wait_for(database.close(), 10)
    assert await writing == 1
    for reading in lists:
        with pytest.raises(StorageError, match="closed"):
            await reading


async def test_closing_breaks_off_a_list_that_is_about_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_sqlite(tmp_path / "other", SCHEMA)
    entered, gate, really_read = threading.Event(), threading.Event(), database._read  # noqa: SLF001 - to hold it up

    def late(*asked: Any) -> JobOutcome:
        entered.set()
        assert gate.wait(10)
        return really_read(*asked)

    monkeypatch.setattr(database, "_read", late)
    long = "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < 100000000) SELECT max(v) FROM n"
    listing = asyncio.create_task(database.read(Statement(long), tenant="owner"))
    await asyncio.to_thread(entered.wait, 10)
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(closing, 5)
    with pytest.raises(StorageError, match="closed"):
        await listing


async def test_too_many_waiting_units_are_refused_and_the_accepted_ones_are_done(database: SqliteDatabase) -> None:
    entered, gate = threading.Event(), threading.Event()
    holding = asyncio.create_task(database.run(hold(entered, gate)))
    assert await asyncio.to_thread(entered.wait, 10)
    tasks = [asyncio.create_task(database.run(note(number, "x"))) for number in range(WAITING_MAX + 5)]
    await asyncio.sleep(0)
    gate.set()
    await holding
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, StorageError) for result in results) == 5
    assert await ids(database) == list(range(WAITING_MAX))


async def test_another_event_loop_may_use_the_same_database(database: SqliteDatabase) -> None:
    await database.run(note(1, "here"))

    def elsewhere() -> int:
        return asyncio.run(database.run(note(2, "there")))

    assert await asyncio.to_thread(elsewhere) == 2
    assert await ids(database) == [1, 2]


async def test_a_loop_that_closed_before_its_answer_does_no_harm(database: SqliteDatabase) -> None:
    entered, gate = threading.Event(), threading.Event()

    async def give_up() -> None:
        waiting = asyncio.create_task(database.run(hold(entered, gate)))
        assert await asyncio.to_thread(entered.wait, 10)
        waiting.cancel()

    await asyncio.to_thread(lambda: asyncio.run(give_up()))
    gate.set()
    assert await database.run(note(1, "goes on")) == 1


def test_a_busy_loop_does_not_starve_the_database(tmp_path: Path) -> None:
    """Without yielding, the slowest of these takes seconds."""

    async def slowest_seconds() -> float:
        opened = open_sqlite(tmp_path / "busy", SCHEMA)
        is_over = False

        async def keep_busy() -> None:
            while not is_over:
                sum(range(20_000))
                await asyncio.sleep(0)

        busy = asyncio.create_task(keep_busy())
        slowest = 0.0
        for number in range(40):
            begun = time.process_time()  # in which the loop is busy; what else the machine does is not in it
            await opened.run(note(number, "x"))
            await ids(opened)
            slowest = max(slowest, time.process_time() - begun)
        is_over = True
        await busy
        await opened.close()
        return slowest

    assert uvloop.run(slowest_seconds()) < 0.5


async def test_ids_are_dense_under_concurrency_and_refusals(tmp_path: Path) -> None:
    opened = open_database(str(tmp_path / "ids"))

    @unit_of_work
    def refuse_odd(number: int) -> Steps[int]:
        value = yield from next_id("things")
        if number % 2:
            raise RefusedByRuleError
        return value

    results = await asyncio.gather(*(opened.run(refuse_odd(n)) for n in range(200)), return_exceptions=True)
    assert sorted(result for result in results if isinstance(result, int)) == list(range(1, 101))
    assert await opened.run(next_id("other things")) == 1
    await opened.close()
