"""Hubs on one PostgreSQL live and die by its clock, whatever their machines' clocks show."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.engines import PostgresqlServer, programs, said_to
from tollkeeper.api import clock_ms
from tollkeeper.hub.membership import Membership
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database

LIFE_SECONDS = 120.0
HOUR_MS = 3_600_000


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    server = PostgresqlServer(programs())
    said_to(server.url("postgres"), "CREATE DATABASE shared")
    opened = open_database(server.url("shared"))
    yield opened
    await opened.close()
    server.stop()


async def test_a_hub_whose_clock_is_an_hour_off_takes_nothing_of_one_that_lives(database: Database) -> None:
    first = Membership(database, clock_ms, LIFE_SECONDS)
    await first.start()
    held = await first.lease("lane")
    for off_ms in (HOUR_MS, -HOUR_MS):

        def clock_off_ms(off_ms: int = off_ms) -> int:
            return clock_ms() + off_ms

        other = Membership(database, clock_off_ms, LIFE_SECONDS)
        await other.start()
        assert await other.lease("lane") is None
        await other.close()
    assert await first.lease("lane") == held
    await first.close()
    assert held is not None
    late = Membership(database, lambda: clock_ms() - HOUR_MS, LIFE_SECONDS)
    await late.start()
    taken = await late.lease("lane")
    assert taken is not None
    assert taken.token > held.token
    await late.close()
