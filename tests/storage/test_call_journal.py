"""Calls in the journal: found by id, ended, given back, marked after a crash as if each had a row (F10, F11)."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.storage.test_ledger import by_header, outcomes, spend_together
from tests.storage.test_purchases import NOW_MS, Shop, key
from tollkeeper.api import new_request_id
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.engine.database import (
    Database,
    NotTakenError,
    Row,
    Statement,
    StatementError,
    Steps,
    StorageError,
    Unit,
    load_queries,
    unit_of_work,
)
from tollkeeper.storage.ledger import call_journal as journal
from tollkeeper.storage.ledger.call_journal import Open
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.open_calls import ENDED_AT_ONCE, PIECE_ROWS, Ended, OpenCalls
from tollkeeper.storage.urls import open_database

CREDITS = 100_000
NOTHING = Ended({}, {})


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = open_database(str(tmp_path / "shop.sqlite3"))
    yield opened
    await opened.close()


async def known_shop(database: Database) -> tuple[Shop, PayGate]:
    """A shop whose own ledger remembers one purchase, by a first call of its own, which has ended."""
    shop = Shop(database)
    gate = await shop.gate(CREDITS)
    await shop.bought(gate)
    await spend(shop, gate, 1)
    return shop, gate


async def spend(shop: Shop, gate: PayGate, many: int, *, is_of_process: bool = False) -> list[str]:
    """The ids of so many calls that are spent in one commit; `is_of_process`: ids as a gateway's process makes them."""
    spends = [by_header(shop, gate) for _ in range(many)]
    if is_of_process:
        spends = [replace(one, spend_request=replace(one.spend_request, call_id=new_request_id())) for one in spends]
    answers = await spend_together(shop.purchases.ledger, spends)
    assert outcomes(answers) == [Spend.SPENT] * many
    return [one.spend_request.call_id for one in spends]


def end_all(ends: Ledger | OpenCalls, calls: Sequence[str], status: int) -> None:
    """Note that these calls ended so."""
    for call in calls:
        ends.end(call, status)


async def states(database: Database) -> dict[str, tuple[str, int | None]]:
    rows = await database.read(Statement("SELECT id, state, status FROM calls"))
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: (row["state"], row["status"]) for row in rows}


async def rows_of_journal(database: Database) -> int:
    rows = await database.read(Statement("SELECT count(*) AS many FROM call_journal"))
    many: int = rows[0]["many"]
    return many


async def remaining(shop: Shop) -> int:
    found = await shop.purchases.by_payment(key(1))
    assert found is not None
    return found.remaining


async def test_the_calls_of_one_commit_and_the_ends_of_others_are_one_row(database: Database) -> None:
    shop, gate = await known_shop(database)
    (first,) = await states(database)
    calls = await spend(shop, gate, 40)
    assert await rows_of_journal(database) == 1
    end_all(shop.purchases.ledger, [first, *calls[:10]], 200)
    end_all(shop.purchases.ledger, calls[10:20], 404)
    more = await spend(shop, gate, 3)
    assert await rows_of_journal(database) == 2
    expected: dict[str, tuple[str, int | None]] = {first: ("DONE", 200), **dict.fromkeys(calls[:10], ("DONE", 200))}
    expected |= dict.fromkeys(calls[10:20], ("DONE", 404))
    expected |= dict.fromkeys([*calls[20:], *more], ("DISPATCHED", None))
    assert await states(database) == expected
    await shop.ledger_agrees()


async def test_a_credit_is_given_back_once_and_its_call_says_so(database: Database) -> None:
    shop, gate = await known_shop(database)
    calls, purchases = await spend(shop, gate, 3), shop.purchases
    left = await remaining(shop)
    assert await purchases.restore(calls[1], 502, NOW_MS) == left + 1
    assert await purchases.restore(calls[1], 502, NOW_MS) is None
    purchases.ledger.end(calls[1], 502)
    await purchases.ledger.flush_ended(NOW_MS)
    assert await purchases.restore(calls[1], 502, NOW_MS) is None  # it is not open any more
    assert (await states(database))[calls[1]] == ("RESTORED", 502)
    assert await remaining(shop) == left + 1
    await shop.ledger_agrees()


class Failing:
    """A database that takes no spends, and breaks on giving back what some calls took."""

    def __init__(self, real: Database, broken: Sequence[str] = ()) -> None:
        self.real, self.broken, self.pieces = real, broken, list[int]()

    def post(self, _unit: Unit[Any], _answer: object) -> None:
        raise StorageError("away")

    async def run(self, unit: Unit[Any], *, is_short: bool = False) -> Any:
        calls = inspect.getgeneratorlocals(iter(unit)).get("calls")
        if is_short or calls is None:  # it writes how calls ended
            return await self.real.run(unit, is_short=is_short)
        self.pieces.append(len(calls))
        if not {*calls}.isdisjoint(self.broken):
            raise StatementError("it breaks")
        return await self.real.run(unit)


async def test_what_a_database_certainly_did_not_take_is_not_looked_for(database: Database) -> None:
    shop, gate = await known_shop(database)
    failing = Failing(database)
    ledger = Ledger(cast("Database", failing))
    told = await spend_together(ledger, [by_header(shop, gate) for _ in range(5)])
    assert {type(one) for one in told} == {NotTakenError}
    await ledger.flush_ended(NOW_MS)
    assert failing.pieces == []


async def test_one_call_whose_credit_cannot_be_given_back_keeps_no_other_from_its_own(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    shop, gate = await known_shop(database)
    left = await remaining(shop)
    calls = await spend(shop, gate, 5)
    failing = Failing(database, calls[2:3])
    ledger = Ledger(cast("Database", failing))
    for call in calls:
        ledger._open.refused(call, 1)  # noqa: SLF001 - as where nobody knows whether they took it
    await ledger.flush_ended(NOW_MS)
    assert failing.pieces == [5, 1, 1, 1, 1, 1]
    assert await remaining(shop) == left - 1
    found = await states(database)
    assert [found[call][0] for call in calls] == ["RESTORED", "RESTORED", "DONE", "RESTORED", "RESTORED"]
    assert "a credit was not given back" in caplog.text
    await ledger.flush_ended(NOW_MS)
    assert len(failing.pieces) == 6


async def test_what_is_given_back_of_known_rows_reads_no_other_and_each_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, gate = await known_shop(database)
    left = await remaining(shop)
    asked: list[tuple[list[str], int, int]] = []
    find = journal.find

    def seen(calls: Collection[str], first: int, last: int = journal.NEWEST) -> Unit[list[Row]]:
        asked.append((sorted(calls), first, last))
        return find(calls, first, last)

    (alone,), together = await spend(shop, gate, 1), await spend(shop, gate, 2)
    monkeypatch.setattr(journal, "find", seen)
    for call in (alone, *together):
        shop.purchases.ledger.refused(call)
    await shop.purchases.ledger.flush_ended(NOW_MS)
    assert asked == [([alone], 1, 1), (sorted(together), 2, 2)]
    assert await remaining(shop) == left
    await shop.ledger_agrees()


async def test_a_purchase_that_is_void_for_its_payment_gets_its_credit_back_and_nobody_can_spend_it(
    database: Database,
) -> None:
    shop, gate = await known_shop(database)
    (call,) = await spend(shop, gate, 1)
    found = await shop.purchases.by_payment(key(1))
    assert found is not None
    await shop.purchases.void(found, NOW_MS)
    assert await shop.purchases.restore(call, 502, NOW_MS) == found.remaining + 1
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    await shop.ledger_agrees()


async def test_what_a_dead_process_left_open_is_marked_and_nothing_else(database: Database) -> None:
    shop, gate = await known_shop(database)
    done, open_one, given_back = await spend(shop, gate, 3)
    shop.purchases.ledger.end(done, 200)
    await shop.purchases.ledger.flush_ended(NOW_MS)
    await shop.purchases.restore(given_back, 502, NOW_MS)
    assert await shop.purchases.interrupt_calls(NOW_MS) == 2  # and the first one, which has a row
    found = await states(database)
    assert [found[call][0] for call in (done, open_one, given_back)] == ["DONE", "INTERRUPTED", "RESTORED"]
    assert await shop.purchases.interrupt_calls(NOW_MS) == 0
    shop.purchases.ledger.end(open_one, 200)  # of a process that was taken for dead
    await shop.purchases.ledger.flush_ended(NOW_MS)
    assert (await states(database))[open_one] == ("INTERRUPTED", None)
    await shop.ledger_agrees()


async def test_after_a_crash_little_of_the_journal_is_read_however_long_a_call_takes(database: Database) -> None:
    """What is open for long is noted by its name, and the journal is read from some rows before the last one on."""
    shop, gate = await known_shop(database)
    slow, slower = await spend(shop, gate, 2)
    for number in range(200):
        end_all(shop.purchases.ledger, await spend(shop, gate, 1), 200)
        if number == 150:
            shop.purchases.ledger.end(slow, 504)
    noted, newest = await noted_and_newest(database)
    assert newest - 70 < noted <= newest
    await shop.purchases.ledger.flush_ended(NOW_MS)
    assert await shop.purchases.interrupt_calls(NOW_MS) == 2  # with the first one of all
    found = await states(database)
    assert (found.pop(slow), found.pop(slower)) == (("DONE", 504), ("INTERRUPTED", None))
    assert sorted(found.values(), key=str)[:-1] == [("DONE", 200)] * 200


async def noted_and_newest(database: Database) -> tuple[int, int]:
    ((noted, newest),) = [
        (row["since"], row["newest"])
        for row in await database.read(
            Statement("SELECT since, (SELECT max(number) FROM call_journal) AS newest FROM open_calls")
        )
    ]
    return noted, newest


async def test_a_ledger_that_begins_later_knows_what_was_there_before(database: Database) -> None:
    shop, gate = await known_shop(database)
    for _ in range(5):
        await spend(shop, gate, 1)
    later = Ledger(database)
    await later.open()
    await spend_together(later, [by_header(shop, gate)])
    await spend_together(later, [by_header(shop, gate)])
    noted = await database.read(Statement("SELECT since FROM open_calls ORDER BY since DESC"))
    assert [row["since"] for row in noted] == [6, 1]


def test_what_is_noted_names_every_call_without_a_written_end() -> None:
    open_calls = OpenCalls()
    open_calls.newest = 10
    assert open_calls.to_note() == {open_calls.name: Open(11, [])}
    open_calls.written(NOTHING, open_calls.to_note())
    for row in range(11, 200):
        open_calls.spent([f"call-{row}"], row)
    end_all(open_calls, [f"call-{row}" for row in range(11, 197)], 200)
    ended = open_calls.take_ended()
    assert ended.journal == {200: [f"call-{row}" for row in range(11, 197)]}
    (noted,) = open_calls.to_note().values()
    assert {*noted.calls} == {f"call-{row}" for row in range(11, 200)}  # nobody knows whether they are written
    open_calls.put_back(ended)
    assert open_calls.take_ended() == ended
    open_calls.written(ended, opened := open_calls.to_note())
    assert opened[open_calls.name].since == 200
    assert open_calls.to_note() == {}  # as long as few rows were written
    open_calls.spent(["late"], 263)
    assert open_calls.to_note() == {open_calls.name: Open(264, ["call-197", "call-198", "call-199", "late"])}


def test_nothing_is_passed_over_that_may_have_been_spent() -> None:
    open_calls = OpenCalls()
    open_calls.newest = 99
    open_calls.refused("unknown")
    open_calls.spent(["late"], 300)
    open_calls.refused("asked before", 80)
    open_calls.refused("later")
    assert open_calls.some_unserved() == ({"unknown": None, "asked before": None, "later": None}, 80)
    assert open_calls.to_note() == {open_calls.name: Open(80, ["late"])}
    open_calls.given_back(["unknown", "asked before", "later"])
    assert open_calls.to_note() == {open_calls.name: Open(301, ["late"])}
    open_calls.refused("late")
    assert open_calls.some_unserved()[0] == {"late": 300}
    open_calls.refused("again")
    assert open_calls.some_unserved() == ({"again": None, "late": 300}, 301)


def test_what_is_to_be_given_back_has_its_end_with_that_and_no_other() -> None:
    open_calls = OpenCalls()
    open_calls.spent(["known", "other", "broken"], 7)
    for call in ("known", "unknown", "broken"):
        open_calls.refused(call)
    end_all(open_calls, ["known", "unknown", "other", "broken"], 502)
    assert open_calls.take_ended() == Ended({502: ["other"]}, {})
    open_calls.not_given_back("broken", 503)
    assert open_calls.take_ended() == Ended({503: ["broken"]}, {})
    open_calls.refused("lost")
    open_calls.not_given_back("lost", 503)
    assert open_calls.take_ended() == Ended({503: ["lost"]}, {503: ["lost"]})
    open_calls.given_back(["known", "unknown"])
    assert open_calls.some_unserved()[0] == {}
    assert (open_calls.row_of("known"), open_calls.row_of("broken")) == (None, 7)


def test_ends_that_are_too_many_for_once_stay_open_until_they_are_written() -> None:
    open_calls = OpenCalls()
    calls = [f"call-{number}" for number in range(3 * ENDED_AT_ONCE)]
    open_calls.spent(calls, 500)
    end_all(open_calls, calls, 200)
    for left in (3, 2, 1):
        ended = open_calls.take_ended()
        assert len(ended.journal[200]) == ENDED_AT_ONCE
        assert [len(one.calls) for one in open_calls.to_note().values()] == [left * ENDED_AT_ONCE]
        open_calls.written(ended, {})
    assert open_calls.to_note()[open_calls.name].calls == []


def test_many_open_calls_are_named_less_often() -> None:
    open_calls = OpenCalls()
    open_calls.written(NOTHING, {open_calls.name: Open(1, [])})
    open_calls.spent([f"call-{number}" for number in range(3200)], 100)
    assert open_calls.to_note() == {}
    open_calls.spent(["one more"], 201)
    assert len(open_calls.to_note()[open_calls.name].calls) == 3201


@pytest.mark.sqlite_only("it is about SQLite's file")
def test_after_a_crash_the_journal_is_read_from_one_row_on(tmp_path: Path) -> None:
    """As the database says that it goes about it."""
    asyncio.run(open_database(str(tmp_path / "shop.sqlite3")).close())
    query = load_queries("call_journal.sql").piece_of_journal(first=1, many=PIECE_ROWS)
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query.sql}", query.params)]
    assert plan == ["SEARCH call_journal USING INTEGER PRIMARY KEY (rowid>?)"]


async def test_a_long_journal_behind_a_dead_process_is_read_to_its_end(database: Database) -> None:
    shop, gate = await known_shop(database)
    open_one, *_ = await spend(shop, gate, 1)
    for _ in range(3 * PIECE_ROWS):
        end_all(shop.purchases.ledger, await spend(shop, gate, 1), 200)
    last, *_ = await spend(shop, gate, 1)
    await shop.purchases.ledger.flush_ended(NOW_MS)
    await database.run(_since_the_first_row())
    assert await shop.purchases.interrupt_calls(NOW_MS) == 3  # with the first one of all
    found = await states(database)
    assert (found[open_one], found[last]) == (("INTERRUPTED", None), ("INTERRUPTED", None))
    assert await database.read(Statement("SELECT count(*) AS known FROM open_calls")) == [{"known": 0}]


@unit_of_work
def _since_the_first_row() -> Steps[None]:
    yield Statement("UPDATE open_calls SET since = 1, calls = '[]'")


STEPS = st.one_of(
    st.tuples(st.just("spend"), st.integers(1, 5)),
    st.tuples(st.just("end"), st.lists(st.integers(0, 30), max_size=6)),
    st.tuples(st.just("restore"), st.integers(0, 30)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=4, max_size=25))
def test_whatever_happens_each_call_stands_where_it_must(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int | list[int]]]
) -> None:
    """Against a table of states that is kept beside: open, ended and not yet written, written, given back, marked."""
    asyncio.run(_play(tmp_path_factory.mktemp("journal"), steps))


async def _play(folder: Path, steps: Sequence[tuple[str, int | list[int]]]) -> None:
    database = open_database(str(folder / "shop.sqlite3"))
    patch = pytest.MonkeyPatch()
    patch.setattr("tollkeeper.storage.ledger.open_calls._NOTED_EVERY", 1)
    try:
        shop, gate = await known_shop(database)
        expected: dict[str, str] = dict.fromkeys(await states(database), "DISPATCHED")
        calls: list[str] = []
        ended: list[str] = []  # and not yet written
        for step, what in steps:
            ledger = shop.purchases.ledger
            if step == "spend":
                assert isinstance(what, int)
                calls += (new := await spend(shop, gate, what))
                expected |= dict.fromkeys(new, "DISPATCHED")
            elif step == "end":
                assert isinstance(what, list)
                mine = [calls[at] for at in what if at < len(calls)]
                end_all(ledger, mine, 200)
                ended += mine
                continue
            elif step == "restore":
                assert isinstance(what, int)
                if what < len(calls) and ledger.row_of(calls[what]) is not None:
                    await shop.purchases.restore(calls[what], 502, NOW_MS)
                    expected[calls[what]] = "RESTORED"
                continue
            elif step == "flush":
                await ledger.flush_ended(NOW_MS)
            else:
                await shop.purchases.interrupt_calls(NOW_MS)
                expected = {call: "INTERRUPTED" if state == "DISPATCHED" else state for call, state in expected.items()}
                shop.purchases.ledger = Ledger(database)
                await shop.purchases.ledger.open()
                ended.clear()
                (first,) = await spend_together(shop.purchases.ledger, [one := by_header(shop, gate)])
                assert outcomes([first]) == [Spend.SPENT]
                expected[one.spend_request.call_id] = "DISPATCHED"
            for call in ended:
                if expected[call] == "DISPATCHED":
                    expected[call] = "DONE"
            ended.clear()
            assert {call: state for call, (state, _) in (await states(database)).items()} == expected
            await shop.ledger_agrees()
    finally:
        patch.undo()
        await database.close()
