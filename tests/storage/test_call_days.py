"""Days of calls: what a check of the books reads in their place, and all that is left of old ones."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.books import BOUNDS
from tests.engines import IS_POSTGRESQL, change, rows_of, url_of
from tests.storage.test_call_journal import spend
from tests.storage.test_purchases import NOW_MS, Shop, key
from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.paygates.statistics import DAY_MS
from tollkeeper.storage.books.checks import LastCheck, last_checked_ms, note_turn, take_turn
from tollkeeper.storage.books.invariants import EVERYTHING, Extent, inspect
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.ledger.call_days import count_calls, fold_journal, fold_single_calls
from tollkeeper.storage.urls import open_database, open_snapshot

LATER_MS = NOW_MS + 10 * DAY_MS
MINUTE_MS = 60_000
CREDITS = 1_000
SUMS = "SELECT sum(calls) AS calls, sum(folded) AS folded, sum(given_back) AS given_back FROM call_days"


class Sold:
    """A purchase that its shop's ledger remembers, in a file of its own; one single call was made of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = open_database(str(path))
        self.shop = Shop(self.database)
        self.minutes = count(1)

    async def open(self) -> PayGate:
        gate = await self.shop.gate(CREDITS)
        await self.shop.bought(gate)
        by_header = replace(self.shop.spend_request(gate), call_id=new_request_id())
        await self.shop.spend(key(1), by_header, NOW_MS)
        await spend(self.shop, gate, 1)
        return gate

    async def single_call(self, gate: PayGate) -> str:
        """Make the first call of another purchase, which has a row of its own."""
        await self.shop.bought(gate, 2)
        request = replace(self.shop.spend_request(gate), call_id=new_request_id())
        await self.shop.spend(key(2), request, NOW_MS)
        return request.call_id

    async def count(self) -> None:
        """Count all that is there: it is seen, and a minute later counted."""
        for _ in range(2):
            now_ms = NOW_MS + next(self.minutes) * MINUTE_MS
            while await self.database.run(count_calls(now_ms)):
                pass

    async def fold(self, before_ms: int) -> None:
        after: int | None = 0
        while after is not None:
            after = await self.database.run(fold_journal(after, before_ms))
        while await self.database.run(fold_single_calls(before_ms)):
            pass

    def rules(self, extent: Extent = EVERYTHING) -> set[str]:
        """The rules that the books break."""
        with open_snapshot(str(self.path)) as snapshot:
            found = inspect(snapshot, clock_ms(), BOUNDS, is_shared=False, extent=extent)
        return {difference.rule for difference in found.differences}

    def total(self, table: str) -> int:
        many: int = rows_of(self.path, f"SELECT count(*) AS many FROM {table}")[0]["many"]  # noqa: S608 - own names
        return many

    def sums(self) -> dict[str, int | None]:
        return {name: None if total is None else int(total) for name, total in rows_of(self.path, SUMS)[0].items()}

    def remaining(self) -> int:
        left: int = rows_of(self.path, "SELECT remaining FROM credits WHERE number = 1")[0]["remaining"]
        return left


@pytest.fixture
async def sold(tmp_path: Path) -> AsyncIterator[Sold]:
    made = Sold(tmp_path / "shop.db")
    yield made
    await made.database.close()


async def test_each_call_of_the_journal_is_counted_once_a_minute_after_it_was_seen(sold: Sold) -> None:
    gate = await sold.open()
    await spend(sold.shop, gate, 5)
    now_ms = NOW_MS + MINUTE_MS
    assert not await sold.database.run(count_calls(now_ms))  # seen
    await spend(sold.shop, gate, 7)
    assert not await sold.database.run(count_calls(now_ms + MINUTE_MS - 1))
    assert sold.total("call_days") == 0
    assert await sold.database.run(count_calls(now_ms + MINUTE_MS))
    assert sold.sums() == {"calls": 6, "folded": 0, "given_back": 0}  # one was there before
    await sold.count()
    await sold.count()
    assert sold.sums() == {"calls": 13, "folded": 0, "given_back": 0}
    assert sold.rules() == set()


async def test_a_sale_is_looked_at_if_it_or_its_calls_are_new_and_else_with_everything(sold: Sold) -> None:
    gate = await sold.open()
    await sold.count()
    lately = Extent(clock_ms() + MINUTE_MS)
    change(sold.path, "UPDATE credits SET remaining = remaining - 1")
    assert sold.rules(lately) == set()
    assert sold.rules(Extent(with_journal=False)) == {"i2_remaining_is_the_ledger"}
    await spend(sold.shop, gate, 1)
    assert sold.rules(lately) == {"i2_remaining_is_the_ledger"}
    await sold.count()
    assert sold.rules(lately) == set()
    change(sold.path, f"UPDATE purchases SET updated_ms = {lately.since_ms}")  # noqa: S608 - a number
    assert sold.rules(lately) == {"i2_remaining_is_the_ledger"}


async def test_days_are_compared_with_the_rows_that_they_count_where_the_whole_journal_is_read(sold: Sold) -> None:
    await sold.open()
    await sold.count()
    change(sold.path, "DELETE FROM call_journal WHERE number = 1")
    assert sold.rules(Extent(with_journal=False)) == set()
    assert sold.rules() == {"i2_days_are_the_calls"}


async def test_what_is_folded_leaves_its_days_and_every_balance_as_it_was(sold: Sold) -> None:
    gate = await sold.open()
    calls = await spend(sold.shop, gate, 9)
    assert await sold.shop.purchases.restore(calls[0], 502, NOW_MS)
    sold.shop.purchases.ledger.end(calls[0], 502)
    await sold.shop.purchases.ledger.flush_ended(NOW_MS)
    single = await sold.single_call(gate)
    assert await sold.shop.purchases.restore(single, 502, NOW_MS)
    open_calls = [row["id"] for row in rows_of(sold.path, "SELECT id FROM calls WHERE state = 'DISPATCHED'")]
    await sold.shop.purchases.end_calls(dict.fromkeys(open_calls, 200), NOW_MS)
    await sold.count()
    left = sold.remaining()
    await sold.fold(NOW_MS)  # they are of this day
    assert sold.total("call_journal") > 0
    assert sold.rules() == set()
    await sold.fold(clock_ms() + DAY_MS)
    assert sold.total("call_journal") == 1  # the newest: what is written next has a larger number
    assert sold.total("single_calls") == 0
    assert sold.total("credits_given") == 2  # the grants
    assert sold.sums() == {"calls": 12, "folded": 12, "given_back": 2}
    assert sold.remaining() == left == CREDITS - 10
    assert sold.rules() == set()
    assert await sold.shop.purchases.restore(calls[1], 502, NOW_MS) is None  # as of every call that has ended
    await spend(sold.shop, gate, 3)
    await sold.count()
    assert sold.rules() == set()


async def test_a_call_that_has_no_end_is_not_folded(sold: Sold) -> None:
    gate = await sold.open()
    open_call = await sold.single_call(gate)
    await sold.fold(clock_ms() + DAY_MS)
    assert open_call in {row["id"] for row in rows_of(sold.path, "SELECT id FROM single_calls")}


async def test_several_that_count_and_fold_beside_spends_count_each_call_once(sold: Sold) -> None:
    gate = await sold.open()
    others = [open_database(str(sold.path)) for _ in range(3 if IS_POSTGRESQL else 0)] or [sold.database]
    is_over = False

    async def work(database: Database) -> None:
        now_ms = NOW_MS
        while not is_over:
            now_ms += MINUTE_MS
            await database.run(count_calls(now_ms))
            await database.run(fold_journal(0, LATER_MS))

    working = [asyncio.create_task(work(database)) for database in others for _ in range(2)]
    for _ in range(40):
        await spend(sold.shop, gate, 10)
    is_over = True
    await asyncio.gather(*working)
    assert sold.rules() == set()
    await sold.count()
    await sold.fold(LATER_MS)
    sums = sold.sums()
    # A batch that met a lock was asked again one by one, so its calls are single ones; the journal's newest row stays.
    left_in_journal = rows_of(sold.path, "SELECT count(*) AS many FROM counted_calls")[0]["many"]
    assert (sums["calls"] or 0) + sold.total("single_calls") == 402
    assert (sums["calls"] or 0) - (sums["folded"] or 0) == 10 * left_in_journal
    assert sold.rules() == set()
    for database in others:
        await database.close()


WORKER = """
import asyncio, os, sys
from itertools import count
from tests.storage.test_call_days import DAY_MS, LATER_MS, MINUTE_MS, NOW_MS, Shop, clock_ms, fold_journal
from tests.storage.test_call_days import count_calls, fold_single_calls, new_request_id, replace, key, open_database
from tests.storage.test_call_journal import spend

async def main(path, run):
    database = open_database(path)
    shop = Shop(database)
    shop.calls = 1_000_000 * (run + 1)
    gate, _ = await shop.gates.by_id(1)
    for turn in count(1):
        calls = await spend(shop, gate, 5, is_of_process=True)
        single = replace(shop.spend_request(gate), call_id=new_request_id())
        await shop.spend(key(1), single, NOW_MS)
        os.write(1, b"spent\\n")
        await shop.purchases.restore(calls[0], 502, NOW_MS)
        await shop.purchases.restore(single.call_id, 502, NOW_MS)
        await database.run(count_calls(NOW_MS + (1000 * run + turn) * MINUTE_MS))
        await database.run(fold_journal(0, LATER_MS))
        await database.run(fold_single_calls(clock_ms() + DAY_MS))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.timeout(600)  # a dozen starts, on a machine that may have other work
async def test_kills_amid_counting_and_folding_count_and_fold_nothing_by_halves(sold: Sold) -> None:
    await sold.open()
    await sold.database.close()
    for run in range(12):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, url_of(sold.path), str(run), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(random.Random(run).randrange(3, 12)):
            assert await process.stdout.readline() == b"spent\n"
        process.kill()
        await process.communicate()
        assert sold.rules() == set()
    sums = sold.sums()
    assert sums["folded"]
    assert sums["given_back"]


async def test_one_program_checks_at_a_time_and_another_once_it_is_silent(sold: Sold) -> None:
    async def turn(holder: str, now_ms: int, *, is_alone: bool = False) -> LastCheck | None:
        return await sold.database.run(take_turn("serve", holder, now_ms + 10, now_ms, is_alone=is_alone))

    assert await turn("one", 100) == LastCheck(0, 0)
    assert await turn("other", 109) is None
    await sold.database.run(note_turn("serve", "other", LastCheck(1, 1), 1_000))  # it came too late
    await sold.database.run(note_turn("serve", "one", LastCheck(100, 90), 120))
    assert await sold.database.run(last_checked_ms("serve")) == 100
    assert await turn("one", 115) == LastCheck(100, 90)
    assert await turn("other", 126) == LastCheck(100, 90)
    assert await turn("one", 130) is None
    assert await turn("one", 130, is_alone=True) == LastCheck(100, 90)
    assert await sold.database.run(last_checked_ms("hub")) == 0
