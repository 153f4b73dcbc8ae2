"""Owners list for as long as they like: what is committed meanwhile is folded into the file all the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.edge.test_calls import until
from tollkeeper.storage.engine.database import Statement, Steps, StorageError, unit_of_work
from tollkeeper.storage.sqlite import engine as sqlite
from tollkeeper.storage.urls import open_database

ENDLESS: Final = Statement("WITH RECURSIVE w(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM w) SELECT count(*) FROM w")
PAGE_BYTES: Final = 4096
ROWS: Final = 4_000
# Some tenths of a second, as of what was committed when it began.
LIST: Final = Statement(
    "WITH RECURSIVE w(v) AS (SELECT min(id) FROM junk UNION ALL SELECT v + 1 FROM w WHERE v < 1000000)"
    " SELECT count(*) AS counted FROM w"
)

SLOW: Final = Statement(
    "WITH RECURSIVE w(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM w WHERE v < 300000) SELECT count(*) AS counted FROM w"
)

pytestmark = pytest.mark.sqlite_only("it is about SQLite's file")
ONE: Final = Statement("SELECT 1 AS one")


@unit_of_work
def carried_out(sql: str) -> Steps[None]:
    yield Statement(sql)


async def test_the_log_begins_anew_between_lists_that_follow_on_each_other(tmp_path: Path) -> None:
    database, log = open_database(str(tmp_path / "x.db")), tmp_path / "x.db-wal"
    await database.run(carried_out("CREATE TABLE junk (id INTEGER PRIMARY KEY, n INTEGER, text TEXT)"))
    await database.run(
        carried_out(
            f"INSERT INTO junk WITH RECURSIVE w(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM w WHERE v < {ROWS})"  # noqa: S608 - ours
            " SELECT v, 0, printf('%0900d', v) FROM w"
        )
    )
    lists = 0

    async def owner() -> None:
        nonlocal lists
        while True:
            await database.read(LIST, tenant="owner")
            lists += 1

    owners = [asyncio.create_task(owner()) for _ in range(2)]  # one waits while the other one is told
    rows = 0
    try:
        async with asyncio.timeout(200):
            while lists < 12 or rows < 60_000:
                first = rows * 7 % ROWS
                await database.run(
                    carried_out(f"UPDATE junk SET n = n + 1 WHERE id BETWEEN {first} AND {first + 39}"),  # noqa: S608 - ours
                    is_short=True,
                )
                rows += 40
                await asyncio.sleep(0.001)
        pages = rows // 4
        assert log.stat().st_size < pages * PAGE_BYTES / 2
    finally:
        for task in owners:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await database.close()


async def test_a_list_that_takes_too_long_is_refused_and_those_behind_it_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would hold up every list, and the log, for as long as it takes."""
    monkeypatch.setattr(sqlite, "_LIST_SECONDS", 0.3)
    database = open_database(str(tmp_path / "x.db"))
    try:
        async with asyncio.timeout(60):
            endless = asyncio.create_task(database.read(ENDLESS, tenant="owner"))
            await asyncio.sleep(0)
            assert await database.read(ONE, tenant="another") == [{"one": 1}]
            with pytest.raises(StorageError, match=r"longer than .* ask for less") as refused:
                await endless
            assert refused.value.status == 503
    finally:
        await database.close()


async def test_a_list_waits_for_one_of_another_owner_s_however_many_he_asks_for(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "x.db"))
    told: list[str] = []

    async def ask(statement: Statement, tenant: str) -> None:
        await database.read(statement, tenant=tenant)
        told.append(tenant)

    try:
        async with asyncio.timeout(60):
            asked = [asyncio.create_task(ask(SLOW, "attacker")) for _ in range(60)]
            await asyncio.sleep(0)
            asked += [asyncio.create_task(ask(ONE, f"{number}")) for number in range(20)]
            await asyncio.sleep(0)
            asked[1].cancel()  # who gives up while he waits takes no place along
            await until(lambda: "19" in told)
            assert told.count("attacker") <= 10
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
            assert await database.read(ONE, tenant="attacker") == [{"one": 1}]
    finally:
        await database.close()


async def test_who_gives_up_a_list_waits_for_its_end_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever asks and leaves, again and again, would fill the queue of all."""
    monkeypatch.setattr(sqlite, "_LIST_SECONDS", 1.0)
    database = open_database(str(tmp_path / "x.db"))
    try:
        async with asyncio.timeout(100):
            for _ in range(200):
                given_up = asyncio.create_task(database.read(ENDLESS, tenant="attacker"))
                await asyncio.sleep(0)
                given_up.cancel()
                await asyncio.wait([given_up])
            assert await database.read(ONE, tenant="another") == [{"one": 1}]
            assert await database.read(ONE, tenant="attacker") == [{"one": 1}]
    finally:
        await database.close()
