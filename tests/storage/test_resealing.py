"""Everything sealed is moved under another key, value by value, whatever else happens to it (contract 3.1)."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

from tollkeeper.core.keys.sealing import KeyRing, Sealing, place
from tollkeeper.storage.engine.database import Database, Statement, Steps, Unit, unit_of_work
from tollkeeper.storage.engine.migrations import load_migrations
from tollkeeper.storage.gateway.reseals import (
    SEALED_TABLES,
    Resealing,
    SealedTable,
    forget_retired,
    keep_retired,
    retired_token_keys,
    sealed_under,
)
from tollkeeper.storage.urls import open_database, open_snapshot

T = TypeVar("T")

FORMER, CURRENT, LOST = bytes(32), b"1" * 32, b"2" * 32
RETIRED = next(table for table in SEALED_TABLES if table.name == "retired_keys")
# Columns of bytes that hold digests: they are compared, and never opened.
DIGESTS = {
    "refresh_tokens.digest", "paygates.management_hash", "purchases.header_hash",
    "raw_transactions.raw",
}  # fmt: skip


def test_every_column_of_bytes_is_moved_or_is_no_secret() -> None:
    sealed = {f"{table.name}.{column}" for table in SEALED_TABLES for column in table.columns}
    found = set()
    for migration in load_migrations():
        for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\);", migration.sql, re.DOTALL):
            found |= {f"{table}.{column}" for column in re.findall(r"(\w+) BYTEA", body)}
        found |= {f"{table}.{column}" for table, column in re.findall(
            r"ALTER TABLE (\w+) ADD COLUMN (\w+) BYTEA", migration.sql
        )}  # fmt: skip
    assert sealed <= found
    assert found - sealed == DIGESTS


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = open_database(url(tmp_path))
    yield opened
    await opened.close()


def url(home: Path) -> str:
    return f"sqlite:///{home / 'x.db'}"


def ring(current: str = "former", **more: bytes) -> Sealing:
    return Sealing(KeyRing(current, {"former": FORMER, "current": CURRENT, **more}), os.urandom)


async def move_all(resealing: Resealing, table: SealedTable = RETIRED) -> int:
    moved, after = 0, table.first
    while True:
        page = await resealing.page(table, after)
        moved += page.moved
        if page.last is None:
            return moved
        after = page.last


async def test_pages_move_all_and_a_second_time_nothing(database: Database, tmp_path: Path) -> None:
    token_keys = {f"key-{number}": bytes([number]) * 32 for number in range(123)}
    await database.run(keep_retired(ring(), token_keys, 1))
    moved = Resealing(database, ring("current"))
    assert await move_all(moved) == 123
    assert await move_all(moved) == 0
    with open_snapshot(url(tmp_path)) as snapshot:
        assert sealed_under(snapshot, ["former", "current"]) == ({"former": 0, "current": 123}, 0)
    alone = Sealing(KeyRing("current", {"current": CURRENT}), os.urandom)
    assert (await retired_token_keys(database, alone))[0] == token_keys


class ChangedMeanwhile:
    """A database in which somebody changes a row between a page's reading and its move."""

    def __init__(self, database: Database, change: Statement) -> None:
        self.read = database.read
        self._database = database
        self._change = change

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        @unit_of_work
        def change() -> Steps[None]:
            yield self._change

        await self._database.run(change())
        return await self._database.run(unit, is_short=is_short)


async def test_a_value_that_was_changed_between_reading_and_moving_is_left_alone(database: Database) -> None:
    await database.run(keep_retired(ring(), {"key": b"old"}, 1))
    sealed = ring("current").seal(b"new", place("retired_keys", "key", "token_key"))
    change = Statement("UPDATE retired_keys SET token_key = :sealed", {"sealed": sealed})
    resealing = Resealing(cast("Database", ChangedMeanwhile(database, change)), ring("current"))
    assert (await resealing.page(RETIRED, RETIRED.first)).moved == 0
    assert await retired_token_keys(database, ring()) == ({"key": b"new"}, ())


async def test_a_value_that_does_not_open_stays_and_is_counted(database: Database, tmp_path: Path) -> None:
    await database.run(keep_retired(ring("lost", lost=LOST), {"gone": b"x"}, 1))
    await database.run(keep_retired(ring(), {"there": b"y"}, 1))
    assert await move_all(Resealing(database, ring("current"))) == 1
    with open_snapshot(url(tmp_path)) as snapshot:
        assert sealed_under(snapshot, ["former", "current"]) == ({"former": 0, "current": 1}, 1)
    assert await retired_token_keys(database, ring()) == ({"there": b"y"}, ("gone",))


async def test_what_made_tokens_is_kept_once_until_it_is_revoked(database: Database) -> None:
    for _ in range(2):
        await database.run(keep_retired(ring(), {"key": b"x"}, 1))
    assert await retired_token_keys(database, ring()) == ({"key": b"x"}, ())
    await database.run(forget_retired("key"))
    assert await retired_token_keys(database, ring()) == ({}, ())
