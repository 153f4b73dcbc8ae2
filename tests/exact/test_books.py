"""Units of every kind on the same thirty purchases, by four programs: the books agree, and hardly one is broken off."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import change, url_of
from tests.exact.conftest import PROGRAMS
from tests.exact.unit_player import KINDS
from tests.exact.unlocked import unlock
from tests.storage.test_purchases import NOW_MS, Shop
from tollkeeper.storage.books.invariants import Bounds, inspect
from tollkeeper.storage.urls import open_database, open_snapshot

pytestmark = pytest.mark.postgresql_only("SQLite's file has one writer")

_WITHOUT_LIMIT = Bounds(10**6, 10**12, 10**6, 10**12)
_UNITS_OF_A_DEADLOCK = 2_000

# Each connection locks in an order of its own.
_OWN_ORDER = """CREATE OR REPLACE FUNCTION lock_purchases(wanted bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM p.number FROM purchases p WHERE p.number = ANY (wanted)
    ORDER BY hashint8(p.number # pg_backend_pid()) FOR NO KEY UPDATE;
    RETURN 1;
END $$"""


@dataclass(frozen=True, slots=True)
class Played:
    """What four programs did, and what does not hold afterwards, by rule."""

    units: int
    kinds: int
    anew: list[str]
    failed: list[str]
    differences: Counter[str]


async def played(path: Path, units: int, *how: str) -> Played:
    url = url_of(path)
    shop = Shop(open_database(url))
    for number in range(1, 4):
        sale = (await shop.claim(await shop.gate(40), number, assume_valid=number < 3)).purchase
        assert sale is not None
        is_sure = not sale.assume_valid
        await shop.purchases.grant(sale, "0x1", confirmed=is_sure, spend_request=None, now_ms=NOW_MS)
    await shop.database.close()
    words = ["-m", "tests.exact.unit_player", url]
    numbers = [[str(place), str(units // PROGRAMS), *how] for place in range(1, PROGRAMS + 1)]
    players = [
        await asyncio.create_subprocess_exec(sys.executable, *words, *its, stdout=asyncio.subprocess.PIPE)
        for its in numbers
    ]
    told = [json.loads((await player.communicate())[0]) for player in players]
    with open_snapshot(url) as snapshot:
        found = await asyncio.to_thread(inspect, snapshot, NOW_MS, _WITHOUT_LIMIT, is_shared=False)
    return Played(
        sum(one["units"] for one in told),
        min(one["kinds"] for one in told),
        [unit for one in told for unit in one["anew"]],
        [failure for one in told for failure in one["failed"]],
        Counter(difference.rule for difference in found.differences),
    )


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("units", [4_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_units_of_every_kind_at_once_leave_books_that_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], units: int
) -> None:
    outcome = await played(tmp_path / "shared.db", units)
    with capsys.disabled():
        print(f"\n{outcome.units} units of {len(KINDS)} kinds, {len(outcome.anew)} begun anew")  # noqa: T201
    assert outcome.kinds == len(KINDS)
    assert outcome.failed == []
    assert not outcome.differences
    assert outcome.units >= units
    assert len(outcome.anew) <= 1 + outcome.units // _UNITS_OF_A_DEADLOCK, Counter(outcome.anew)


@pytest.mark.long
async def test_without_their_order_units_are_broken_off(tmp_path: Path) -> None:
    change(tmp_path / "shared.db", _OWN_ORDER)
    outcome = await played(tmp_path / "shared.db", 4_000)
    assert len(outcome.anew) > 1 + outcome.units // _UNITS_OF_A_DEADLOCK


@pytest.mark.long
async def test_a_call_that_is_lost_among_them_is_found_in_the_books(tmp_path: Path) -> None:
    lost = "CREATE RULE lost AS ON INSERT TO single_calls WHERE NEW.id LIKE '%77' DO INSTEAD NOTHING"
    change(tmp_path / "shared.db", lost)
    assert (await played(tmp_path / "shared.db", 4_000)).differences


@pytest.mark.long
async def test_where_a_statement_does_not_look_again_and_nothing_is_locked_the_books_differ(tmp_path: Path) -> None:
    unlock(tmp_path / "shared.db")
    assert (await played(tmp_path / "shared.db", 4_000, "careless")).differences["counters_are_the_sales"]
