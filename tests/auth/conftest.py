from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.auth.server import Client, Clock, issuer, serving
from tollkeeper.auth import Auth
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = open_database(str(tmp_path / "auth.db"))
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def auth(database: Database, clock: Clock) -> Auth:
    return issuer(database, clock)


@pytest_asyncio.fixture
async def client(auth: Auth) -> AsyncIterator[Client]:
    async with serving(auth) as running:
        yield running
