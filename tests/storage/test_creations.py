"""Answers of creates are kept for a day, and no longer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.test_deleting_gates import opened
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.storage.engine.database import Statement, Steps, unit_of_work
from tollkeeper.storage.gateway.creations import CreatedBeforeError, CreationKey, Creations
from tollkeeper.storage.urls import open_database

DAY_MS = 24 * 3600 * 1000
KEY = CreationKey("0xwallet", "key", "print")


async def test_an_answer_is_known_for_a_day_and_then_its_key_is_free(tmp_path: Path) -> None:
    creations = Creations(Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom))

    @unit_of_work
    def create(key: CreationKey, answer: bytes, now_ms: int) -> Steps[None]:
        yield from creations.check(key, now_ms)
        yield from creations.keep(key, answer, now_ms)

    database = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    try:
        assert await creations.find(database, KEY, 0) is None
        await database.run(create(KEY, b"first", 0))
        assert await creations.find(database, KEY, DAY_MS - 1) == b"first"
        with pytest.raises(CreatedBeforeError) as before:
            await database.run(create(KEY, b"second", DAY_MS - 1))
        assert before.value.answer == b"first"
        with pytest.raises(ApiError) as refusal:
            await database.run(create(replace(KEY, fingerprint="other"), b"second", 1))
        assert refusal.value.code is Code.CONFLICT
        assert await creations.find(database, replace(KEY, scope="another"), 1) is None
        assert await creations.find(database, KEY, DAY_MS) is None
        await database.run(create(KEY, b"third", DAY_MS))
        assert await creations.find(database, KEY, DAY_MS) == b"third"
    finally:
        await database.close()


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_a_create_forgets_a_handful_of_what_is_a_day_old_and_its_own_key_s(tmp_path: Path) -> None:
    creations = Creations(Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom))
    async with opened(tmp_path / "x.db") as database:
        for number in range(200):
            await database.run(creations.keep(replace(KEY, key=f"key {number}"), b"answer", number))
        await database.run(creations.check(replace(KEY, key="key 150"), DAY_MS + 200))
        rows = await database.read(Statement("SELECT key FROM creations ORDER BY created_ms"))
    assert [row["key"] for row in rows] == [f"key {number}" for number in range(64, 200) if number != 150]
