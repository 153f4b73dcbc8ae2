"""Owners list for as long as they like: what is committed meanwhile is folded into the file all the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tollkeeper.storage import StorageError, Unit, open_database, sqlite
from tollkeeper.storage.database import Statement

ENDLESS: Final = Statement("WITH RECURSIVE w(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM w) SELECT count(*) FROM w")
PAGE_BYTES: Final = 4096
ROWS: Final = 4_000
# Some tenths of a second, as of what was committed when it began.
LIST: Final = Statement(
    "WITH RECURSIVE w(v) AS (SELECT min(id) FROM junk UNION ALL SELECT v + 1 FROM w WHERE v < 1000000)"
    " SELECT count(*) AS counted FROM w"
)


def carried_out(sql: str) -> Unit[None]:
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
            await database.read_long(LIST)
            lists += 1

    owners = [asyncio.create_task(owner()) for _ in range(2)]  # one waits while the other one is told
    rows = 0
    try:
        async with asyncio.timeout(200):
            while lists < 12 or rows < 60_000:
                first = rows * 7 % ROWS
                await database.run_short(
                    carried_out(f"UPDATE junk SET n = n + 1 WHERE id BETWEEN {first} AND {first + 39}")  # noqa: S608 - ours
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
            endless = asyncio.create_task(database.read_long(ENDLESS))
            await asyncio.sleep(0)
            assert await database.read_long(Statement("SELECT 1 AS one")) == [{"one": 1}]
            with pytest.raises(StorageError, match=r"longer than .* ask for less") as refused:
                await endless
            assert refused.value.status == 503
    finally:
        await database.close()
