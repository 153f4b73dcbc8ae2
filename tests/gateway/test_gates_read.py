"""Callers who come at once to a gate that no copy is kept of wait for one look at the database (contract 3.3)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.storage.test_purchases import NOW_MS, RING, Shop
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import Sealing
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.gateway.open_gate import Gates
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.urls import open_database

CALLERS = 1_000


class LookedUp(PayGates):
    """Those of a database, which count how often one is looked up, and tell it once `may_tell`."""

    looks = 0
    may_tell: asyncio.Event

    @classmethod
    def of(cls, shop: Shop) -> LookedUp:
        """Of a shop, to be told at once."""
        looked_up = cls(shop.database, Sealing(RING, os.urandom), os.urandom)
        looked_up.may_tell = asyncio.Event()
        looked_up.may_tell.set()
        return looked_up

    async def by_slug(self, slug: str, now_ms: int) -> PayGate | None:
        """Count, look, and tell."""
        found = await super().by_slug(slug, now_ms)
        self.looks += 1
        await self.may_tell.wait()
        return found


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """One whose gates are read by `Gates`."""
    shop = Shop(open_database(str(tmp_path / "x.db")))
    yield shop
    await shop.database.close()


async def test_a_thousand_callers_of_a_gate_look_once(shop: Shop) -> None:
    gate = await shop.gate()
    store = LookedUp.of(shop)
    gates = Gates(store, dict, "http://gateway")
    found = await asyncio.gather(*(gates.by_slug(gate.slug) for _ in range(CALLERS)))
    assert {(opened.gate.id, opened.gate.version) for opened in found} == {(gate.id, 1)}
    assert store.looks == 1


async def test_a_copy_that_was_to_be_confirmed_is_not_looked_up_again(shop: Shop) -> None:
    gate = await shop.gate()
    store = LookedUp.of(shop)
    gates = Gates(store, dict, "http://gateway")
    confirmed: list[bool] = []

    async def catch_up() -> None:
        await asyncio.sleep(0)
        confirmed.append(True)

    gates.count_while(lambda: bool(confirmed), catch_up)
    await gates.by_slug(gate.slug)
    confirmed.clear()
    await asyncio.gather(*(gates.by_slug(gate.slug) for _ in range(CALLERS)))
    assert store.looks == 1


async def looked(store: LookedUp, times: int) -> None:
    while store.looks < times:  # noqa: ASYNC110 - by another task
        await asyncio.sleep(0.01)


async def test_a_gate_that_is_deleted_while_it_is_read_is_read_again_for_all_who_wait(shop: Shop) -> None:
    gate = await shop.gate()
    store = LookedUp.of(shop)
    gates = Gates(store, dict, "http://gateway")
    store.may_tell.clear()
    waiting = [asyncio.create_task(gates.by_slug(gate.slug)) for _ in range(CALLERS)]
    await looked(store, 1)
    await store.delete(gate.id, NOW_MS)
    gates.forget(gate.slug)
    store.may_tell.set()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert {one.code if isinstance(one, ApiError) else one for one in told} == {Code.NOT_FOUND}


async def test_who_comes_once_a_gate_is_made_is_told_of_it_though_another_looks_for_it_in_vain(shop: Shop) -> None:
    store = LookedUp.of(shop)
    gates = Gates(store, dict, "http://gateway")
    store.may_tell.clear()
    early = asyncio.create_task(gates.by_slug("new-gate"))
    await looked(store, 1)
    await shop.gate(slug="new-gate")
    late = [asyncio.create_task(gates.by_slug("new-gate")) for _ in range(CALLERS)]
    await asyncio.sleep(0)
    store.may_tell.set()
    with pytest.raises(ApiError, match="no such PayGate"):
        await early
    assert {opened.gate.slug for opened in await asyncio.gather(*late)} == {"new-gate"}
