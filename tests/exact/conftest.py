"""Four programs' ways to one database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.exact.unlocked import unlock
from tests.storage.test_purchases import Shop
from tollkeeper.storage.urls import open_database

PROGRAMS = 4


@pytest.fixture
async def open_shops(tmp_path: Path) -> AsyncIterator[Callable[..., list[Shop]]]:
    """Open the same database four times, with its locks or without."""
    opened: list[Shop] = []

    def open_shops(*, is_locked: bool) -> list[Shop]:
        if not is_locked:
            unlock(tmp_path / "shared.db")
        opened.extend(Shop(open_database(str(tmp_path / "shared.db"))) for _ in range(PROGRAMS))
        return opened

    yield open_shops
    for shop in opened:
        await shop.database.close()
