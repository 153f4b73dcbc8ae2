"""Calls of a purchase on a day, as one row: counted from the journal soon, and all that is left of them after a while.

What has to know how many calls a purchase had reads its days, and of the journal what no day counts yet. Counting moves
the mark, and folding deletes what it added, in the same unit; so each is exact wherever it is cut off, and both are
begun again where they stood. Both are done a few rows at a time: callers wait for the writer meanwhile.
What this module does not do: decide who counts (`books.checks`), or change how many credits a purchase has.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from tollkeeper.api import clock_ms
from tollkeeper.core.paygates.statistics import DAY_MS
from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tollkeeper.storage.engine.database import Database, Row, Steps, Unit

T = TypeVar("T")

_ROWS: Final = 64  # of the journal in one unit, but not more than some thousand calls: some milliseconds
_TEXT_SIZE: Final = 45_000  # characters of a thousand calls
_SINGLE_CALLS: Final = 512
_FOLDING_SECONDS: Final = 30.0
_SETTLED_MS: Final = 60_000  # after which no row is committed before one that was seen: each unit ends within seconds

_Q: Final = load_queries("call_days.sql")
_ENCODE: Final = msgspec.json.Encoder().encode
_SPENT: Final = msgspec.json.Decoder(dict[str, int]).decode


@unit_of_work
def count_calls(now_ms: int) -> Steps[bool]:
    """Count some calls of the journal in their days, once a minute all that were there a minute before.

    Returns whether there may be more.
    """
    (marks,) = yield _Q.lock_marks()
    if 0 <= now_ms - marks["seen_ms"] < _SETTLED_MS:
        return False
    rows = _some((yield _Q.calls_of_journal(after=marks["counted"], last=marks["seen"], many=_ROWS)))
    if not rows:
        yield _Q.mark_seen(now_ms=now_ms)
        return False
    yield from _add((number, day, 1, 0, 0) for _, number, day in _calls_of(rows))
    yield _Q.mark_counted(counted=rows[-1]["number"])
    return True


@unit_of_work
def fold_journal(after: int, before_ms: int) -> Steps[int | None]:
    """Delete some rows of the journal behind `after` that are older than `before_ms`; their days keep the calls.

    The newest counted row stays: where none is left SQLite numbers rows from the first number again.
    Returns where to go on; None where none of these rows is old, or there are none.
    """
    (marks,) = yield _Q.lock_marks()
    found = _some((yield _Q.calls_of_journal(after=after, last=marks["counted"] - 1, many=_ROWS)))
    rows = [row for row in found if row["written_ms"] < before_ms]
    if not rows:
        return None
    last: int = found[-1]["number"]
    yield from _fold([*_calls_of(rows)], counted=0)
    yield _Q.delete_from_journal(first=found[0]["number"], last=last, before_ms=before_ms)
    return last


@unit_of_work
def fold_single_calls(before_ms: int) -> Steps[bool]:
    """Delete some calls with rows of their own that are so old and have ended; whether there may be more."""
    yield _Q.lock_marks()
    rows = yield _Q.old_single_calls(before_id=f"{before_ms:012x}", before_ms=before_ms, many=_SINGLE_CALLS)
    if rows:
        yield from _fold([(row["id"], row["number"], row["created_ms"] // DAY_MS) for row in rows], counted=1)
        yield _Q.delete_single_calls(calls=_ENCODE([row["id"] for row in rows]).decode())
    return len(rows) == _SINGLE_CALLS


@unit_of_work
def _fold(calls: Collection[tuple[str, int, int]], counted: int) -> Steps[None]:
    """Have the days keep these calls, by id, purchase and day, and the credits that were given back for them."""
    restored = {row["cause"] for row in (yield _Q.take_restores(calls=_ENCODE([call[0] for call in calls]).decode()))}
    yield from _add((number, day, counted, 1, int(call_id in restored)) for call_id, number, day in calls)


@unit_of_work
def _add(calls: Iterable[tuple[int, int, int, int, int]]) -> Steps[None]:
    """Add rows of a purchase's number, a day, and of it calls, folded ones and credits given back."""
    sums = Counter(calls)
    days: dict[tuple[int, int], list[int]] = {}
    for (number, day, *amounts), times in sums.items():
        of_day = days.setdefault((number, day), [0, 0, 0])
        for place, amount in enumerate(amounts):
            of_day[place] += amount * times
    yield _Q.add_to_days(added=_ENCODE([[*key, *of_day] for key, of_day in sorted(days.items())]).decode())


def _some(rows: list[Row]) -> list[Row]:
    """The first of these rows, at least one if there is any, that are work for some milliseconds."""
    size = 0
    for place, row in enumerate(rows):
        size += len(row["spent"])
        if size > _TEXT_SIZE and place:
            return rows[:place]
    return rows


def _calls_of(rows: Iterable[Row]) -> Iterator[tuple[str, int, int]]:
    """Each call of the journal's rows: its id, its purchase's number, and its day."""
    for row in rows:
        day = row["written_ms"] // DAY_MS
        for call_id, number in _SPENT(row["spent"]).items():
            yield call_id, number, day


async def keep_days(database: Database, journal_days: int) -> None:
    """Count the calls that no day counts yet; fold those of days that are older, 0 for none. Raises: StorageError.

    Old calls are folded with pauses as long as the work, and never so long that the next check of the books waits for
    it: what is left is folded after that one.
    """
    while await _paced(database, count_calls(clock_ms())):
        pass
    if not journal_days:
        return
    end, before_ms = time.monotonic() + _FOLDING_SECONDS, (clock_ms() // DAY_MS - journal_days) * DAY_MS
    after: int | None = 0
    while after is not None and time.monotonic() < end:
        after = await _paced(database, fold_journal(after, before_ms))
    while time.monotonic() < end and await _paced(database, fold_single_calls(before_ms)):
        pass


async def _paced(database: Database, unit: Unit[T]) -> T:
    """Carry out a unit, and leave others the writer for as long."""
    begun = time.monotonic()
    result = await database.run(unit)
    await asyncio.sleep(time.monotonic() - begun)
    return result
