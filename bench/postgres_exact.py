"""Proves that spends come out on PostgreSQL as on SQLite: the same answers, the same rows, and never a credit too many.

Random batches, of purchases in every state, go through the program's own units on an SQLite file, on a PostgreSQL that
is asked statement by statement, and on one that is asked at once where that can be. Then two sessions spend the same
purchases at the same time.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench.held import HEADER, PURCHASES, filled, key_of
from bench.measuring import say
from bench.postgres import Postgres, client, connected
from bench.postgres_batch import AtOnce, at_once
from bench.postgres_words import TABLES, VIEWS, schema, words
from tollkeeper.api import new_request_id
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.call_journal import Open
from tollkeeper.storage.database import ConstraintError, Statement, rows_of
from tollkeeper.storage.opening import open_database
from tollkeeper.storage.purchase_rows import SpendRequest
from tollkeeper.storage.queries import load_queries
from tollkeeper.storage.spending import (
    HeldSpend,
    KnownSpends,
    SpendBatch,
    Spent,
    give_back,
    restore_call,
    spend_of_payer,
    spend_one,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import asyncpg

    from tollkeeper.storage.database import Job, Unit

_UNITS: Final = 1500
_ABOUT: Final = 240  # purchases
_NOW_MS: Final = 2_000_000_000_000
_GATE: Final = "SELECT id, version FROM paygates WHERE id NOT IN (7001, 7002)"
_SESSIONS, _SHARED, _GRANTED, _TURNS, _SIZE = 2, 24, 60, 60, 32
_JOURNAL: Final = load_queries("call_journal_sqlite.sql")
# Of all files' statements those that have to be tried, beside those of the two.
_ALSO: Final = (
    *("spend_due", "void_with_gate", "close_credits", "restore_call", "give_credit_back", "give_credits"),
    *("purchase_of_call", "oldest_of_payer"),
)
# What a unit that was rolled back had counted is counted again, so that rows have the numbers that they have on SQLite.
_COUNT_ANEW: Final = """SELECT setval(pg_get_serial_sequence('{0}', 'number'), coalesce(max(number), 0) + 1, false)
FROM {0}"""
# Purchases in every state, with few credits, of three gates: the first one, a second, and one that was deleted.
_VARIED: Final = """
CREATE TEMP TABLE another AS SELECT * FROM paygates;
UPDATE another SET id = 7001, slug = 'a', version = 3;
INSERT INTO paygates SELECT * FROM another;
UPDATE another SET id = 7002, slug = 'b', version = 1, deleted_ms = 5;
INSERT INTO paygates SELECT * FROM another;
UPDATE purchases SET
    gate_id = CASE number % 5 WHEN 1 THEN 7001 WHEN 2 THEN 7002 ELSE gate_id END,
    state = CASE number % 17
        WHEN 1 THEN 'VOID' WHEN 2 THEN 'VOID' WHEN 3 THEN 'CLAIMED' WHEN 4 THEN 'PARKED' ELSE 'LIVE' END,
    failure = CASE number % 17 WHEN 1 THEN 'gate_deleted' WHEN 2 THEN 'failed' WHEN 4 THEN 'x' WHEN 5 THEN 'x' END;
UPDATE credits SET remaining = 0, is_live = number % 17 NOT IN (1, 2, 3, 4, 5),
    granted = CASE number % 4 WHEN 0 THEN 1 WHEN 1 THEN 5 ELSE 500 END,
    token_used = number % 11 = 1, is_renamed = number % 13 = 1,
    expires_ms = 2000000000000 + CASE number % 8
        WHEN 1 THEN -1 WHEN 2 THEN number WHEN 3 THEN 4 * number WHEN 4 THEN 9999 END;
UPDATE credits SET remaining = CASE number % 7 WHEN 0 THEN 0 WHEN 1 THEN granted / 2 ELSE granted END;
"""


async def prove(path: Path, place: str) -> dict[str, float | str]:
    """How much was compared. Raises: RuntimeError where anything differs."""
    database = open_database(str(path))
    await filled(database)
    await database.close()
    with closing(sqlite3.connect(path)) as file:
        file.executescript(_VARIED)
    by_statement = Postgres(await copied(path, place, "by_statement"))
    together = AtOnce(await copied(path, place, "at_once"))
    database = open_database(str(path))
    (gate,) = await database.read_short(Statement(_GATE))
    wishes, outcomes = _Wishes((gate["id"], gate["version"])), Counter[str]()
    for number in range(_UNITS):
        wish = wishes.last(number - _UNITS) or wishes.next()
        ours = await _answer(database.run(wish.unit()))
        outcomes.update(_outcomes(ours))
        for side in (by_statement, together):
            theirs = await _answer(side.run(wish))
            if isinstance(theirs, type):
                await side.connection.execute(_COUNT_ANEW.format("call_journal"))
            if ours != theirs:
                raise RuntimeError(f"{side.name}: {wish} gives {theirs}, and {ours} on SQLite")
    await database.close()
    also_tried = {query.sql for query in load_queries("gateway.sql") if query.name in _ALSO}
    if missing := (words().keys() | also_tried) - by_statement.played | {at_once()} - together.played:
        raise RuntimeError(f"was never tried: {missing}")
    rows = 0
    for name in (*TABLES, *VIEWS):
        with closing(sqlite3.connect(path)) as file:
            ours = _plain(file.execute(f"SELECT * FROM {name}").fetchall())  # noqa: S608 - names of ours
        for side in (by_statement, together):
            if ours != _plain(map(tuple, await side.connection.fetch(f"SELECT * FROM {name}"))):  # noqa: S608
                raise RuntimeError(f"{side.name}: {name} has other rows than on SQLite")
        rows += len(ours)
    say(f"the same {_UNITS} answers ({dict(outcomes)}) and {rows} rows by SQLite, PostgreSQL, and PostgreSQL at once")
    also: dict[str, float | str] = {"units_compared": float(_UNITS), "rows_compared": float(rows)}
    for side in (by_statement, together):
        await side.connection.close()
        also[f"deadlocks_{side.name}"] = float(await _contended(type(side), path, place))
    return also


async def copied(path: Path, place: str, name: str) -> asyncpg.Connection:
    """A connection to a new database with all that the file has of the tables of spends."""
    first = await connected(place)
    await first.execute(f"CREATE DATABASE {name}")
    await first.close()
    connection = await connected(place, name)
    with closing(sqlite3.connect(path)) as file:
        for statement in schema(file):
            await connection.execute(statement)
        for table in TABLES:
            found = file.execute(f"SELECT * FROM {table}")  # noqa: S608 - names of ours
            columns = [column[0] for column in found.description]
            await connection.copy_records_to_table(table, records=found.fetchall(), columns=columns)
    for table in ("purchases", "call_journal"):
        await connection.execute(_COUNT_ANEW.format(table))
    await connection.execute("ANALYZE")
    return connection


@dataclass(frozen=True, slots=True)
class _Made:
    """A job of a unit that is none in the program."""

    unit: Callable[[], Unit[Any]]


class _Wishes:
    """Random units, each to be asked of every side."""

    def __init__(self, gate: tuple[int, int]) -> None:
        self._random = random.Random(2)  # noqa: S311 - which wishes
        self._standings = [gate, (7001, 3), (gate[0], gate[1] + 1), (7002, 1)]
        self._calls = ["of nobody"]
        self._now_ms = _NOW_MS

    def last(self, place: int) -> Job | None:
        """The last ones, counted from behind, are statements that no spend has."""
        calls = msgspec.json.encode(self._calls[-300:]).decode()
        others = {
            -7: _JOURNAL.newest_of_journal(),
            -6: _JOURNAL.open_calls(),
            -5: _JOURNAL.piece_of_journal(first=1, many=10_000),
            -4: _JOURNAL.not_given_back(calls=calls),
            -3: _JOURNAL.spent_in_journal(calls=calls, first=1, last=2**62),
            -2: _JOURNAL.forget_open_calls(),
            -1: _JOURNAL.open_calls(),
        }
        return _Made(lambda: rows_of(others[place])) if place in others else None

    def next(self) -> Job:
        """Another one."""
        self._now_ms += 1
        kind, spend, some, now_ms = self._random.random(), self._spend(), self._some(), self._now_ms
        if kind < 0.4:
            return SpendBatch([], now_ms, known=self._known({}))
        if kind < 0.8:
            known = self._known({f"ledger {self._random.randrange(3)}": Open(0, some)}) if kind < 0.6 else None
            spends = [self._spend() for _ in range(self._random.randint(0, 12))]
            return SpendBatch(spends, now_ms, {200: some}, known, self._random.random() < 0.1)
        if kind < 0.85:
            return _Made(lambda: spend_one(spend, now_ms))
        if kind < 0.9:
            payer = key_of(self._random.randrange(_ABOUT)).payer
            return _Made(lambda: spend_of_payer(payer, spend.wish, now_ms))
        if kind < 0.95:
            return _Made(lambda: give_back(dict.fromkeys(some), 0, now_ms))
        return _Made(lambda: restore_call(self._calls[-1], 502, now_ms))

    def _spend(self) -> HeldSpend:
        place, header = self._random.randrange(_ABOUT + 2), self._random.choice((HEADER, HEADER, HEADER, b"another"))
        wish = SpendRequest(*self._random.choice(self._standings + self._standings[:1] * 6), header, self._call())
        if self._random.random() < 0.6:
            return HeldSpend(key_of(place if place < _ABOUT else PURCHASES + 1), None, wish)
        is_token = self._random.random() < 0.5
        wish = msgspec.structs.replace(wish, header=None, is_token=is_token)
        return HeldSpend(None, f"pur_{place if place < _ABOUT else PURCHASES + 1:022}", wish)

    def _known(self, opened: dict[str, Open]) -> KnownSpends:
        numbers = self._random.choices(range(1, _ABOUT + 2), k=self._random.choice((1, 2, 8, 40)))
        calls = {self._call(): number for number in numbers}
        standings = self._standings[:2] if self._random.random() < 0.9 else self._standings
        gates = set(self._random.choices(standings, k=2))
        ended = self._some()
        return KnownSpends(gates, calls, len(numbers), {200: ended[::2], 502: ended[1::2]}, opened)

    def _call(self) -> str:
        if self._random.random() >= 0.003:
            self._calls.append(new_request_id())
        return self._calls[-1] if self._random.random() >= 0.003 else self._random.choice(self._calls)

    def _some(self) -> list[str]:
        return list(dict.fromkeys(self._random.choices(self._calls[-200:], k=self._random.randint(0, 6))))


async def _answer(asked: Awaitable[Any]) -> Any:  # noqa: ANN401 - as the unit returns
    try:
        return _plain(await asked)
    except ConstraintError:
        return ConstraintError


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a unit returns
    """Rows, and what is listed in JSON, in an order that engines agree on."""
    if hasattr(value, "keys"):  # a row, or an object
        return sorted((key, _plain(value[key])) for key in value.keys())  # noqa: SIM118 - a row is no dict
    if isinstance(value, str) and value[:1] in {"{", "["}:
        return _plain(msgspec.json.decode(value))
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, str | bytes | int | msgspec.Struct | None):
        return value
    return sorted(map(_plain, value), key=repr)


def _outcomes(answer: Any) -> list[str]:  # noqa: ANN401 - as `_answer` returns
    if isinstance(answer, Spent):
        known = ["known" if isinstance(left, int) else "not so" for left in answer.lefts]
        return known + [one.outcome.name for one in answer.others]
    return ["broke"] if answer is ConstraintError else []


async def _contended(kind: type[Postgres], path: Path, place: str) -> int:
    """Sessions that spend the same purchases at once: how many deadlocks there were. Raises: RuntimeError."""
    name = f"contended_{kind.name}"
    sessions = [kind(await copied(path, place, name))]
    sessions += [kind(await connected(place, name)) for _ in range(_SESSIONS - 1)]
    look = sessions[0].connection
    (gate,) = map(tuple, await look.fetch(_GATE))
    await look.execute("UPDATE purchases SET state = 'LIVE', failure = NULL, gate_id = $1", gate[0])
    anew = "granted = $1, remaining = $1, is_live = 1, token_used = 0, is_renamed = 0, expires_ms = NULL"
    await look.execute(f"UPDATE credits SET {anew}", _GRANTED)  # noqa: S608 - as it stands there
    await look.execute("DELETE FROM single_calls; DELETE FROM call_journal; DELETE FROM credits_given")
    told = await asyncio.gather(*(_spent_by(one, gate, place) for place, one in enumerate(sessions)))
    counted = Counter(number for lefts in told for number, _ in lefts)
    lefts = [one for its in told for one in its if one[1] is not None]
    taken = dict(await look.fetch("SELECT number, granted - remaining FROM credits WHERE remaining <> granted"))
    written = "SELECT p.number, count(*) FROM calls c JOIN purchases p ON p.id = c.purchase_id GROUP BY p.number"
    unmarked = "SELECT count(*) FROM holdings WHERE (remaining = 0) <> (is_used_up = 1)"
    if not counted == taken == dict(await look.fetch(written)) or len(lefts) != len(set(lefts)):
        raise RuntimeError(f"{name}: told {counted}, taken {taken}")
    if not await look.fetchval("SELECT count(*) FROM credits WHERE remaining = 0") or await look.fetchval(unmarked):
        raise RuntimeError(f"{name}: none was used up, or one is not marked so")
    say(f"{_SESSIONS} sessions ({kind.name}): {counted.total()} credits told, taken and written")
    for one in sessions:
        await one.connection.close()
    return sum(one.deadlocks for one in sessions)


async def _spent_by(session: Postgres, gate: tuple[int, int], seed: int) -> list[tuple[int, int | None]]:
    """For each credit that was taken the purchase's number, and how many were left where that is known for sure."""
    chosen, told = random.Random(seed), list[tuple[int, int | None]]()  # noqa: S311 - which purchases
    for _ in range(_TURNS):
        numbers = chosen.choices(range(1, _SHARED + 1), k=_SIZE)
        known = KnownSpends({gate}, {new_request_id(): number for number in numbers}, _SIZE)
        others = [] if isinstance(session, AtOnce) else chosen.choices(range(1, _SHARED + 1), k=_SIZE // 4)
        spends = [HeldSpend(key_of(one - 1), None, SpendRequest(*gate, HEADER, new_request_id())) for one in others]
        while True:
            try:
                spent: Spent = await session.run(SpendBatch(spends, _NOW_MS, known=known))
                break
            except client().DeadlockDetectedError:
                session.deadlocks += 1
        told += [(number, left) for number, left in zip(numbers, spent.lefts, strict=True) if isinstance(left, int)]
        told += [(one, None) for one, its in zip(others, spent.others, strict=True) if its.outcome is Spend.SPENT]
    return told
