"""Programs that share one database: none acts by a gate as it was, and none ends what another one serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from tests.engines import IS_POSTGRESQL, change, rows_of
from tests.storage.test_purchases import NOW_MS, Shop
from tollkeeper.core.purchases import Spend
from tollkeeper.storage import Database, Steps, open_database, unit_of_work
from tollkeeper.storage.engine.nodes import LivingNodes
from tollkeeper.storage.ledger.interrupted_calls import interrupt_calls

pytestmark = pytest.mark.skipif(not IS_POSTGRESQL, reason="SQLite's file is one program's")


@dataclass(slots=True)
class Program:
    """One of those that share the database."""

    database: Database
    shop: Shop
    nodes: LivingNodes
    forgotten: list[str]


@unit_of_work
def left_behind(mark: str) -> Steps[int]:
    return (yield from interrupt_calls(NOW_MS, mark))


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[list[Program]]:
    opened: list[Program] = []
    for mark in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        database, forgotten = open_database(str(tmp_path / "shared.db")), list[str]()

        def forget(slugs: Collection[str], forgotten: list[str] = forgotten) -> None:
            forgotten.extend(slugs)

        nodes = LivingNodes(database, mark, forget=forget, leave_behind=left_behind)
        await nodes.open()
        opened.append(Program(database, Shop(database), nodes, forgotten))
    yield opened
    for program in opened:
        await program.database.close()


async def test_an_update_is_answered_once_every_living_program_has_forgotten_its_copy(programs: list[Program]) -> None:
    first, second, third = programs
    gate = await first.shop.gate()
    first.shop.gates.told = first.nodes.told
    looking = [asyncio.create_task(program.nodes.run()) for program in (first, second)]
    changing = asyncio.create_task(first.shop.gates.update(gate.id, lambda known: replace(known, version=2)))
    async with asyncio.timeout(30):
        while not second.forgotten:  # noqa: ASYNC110 - it is told by looking
            await asyncio.sleep(0.01)
        await changing  # the third does not look: its copies are over by then
    assert first.forgotten == second.forgotten == [gate.slug]
    assert not third.nodes.counts()
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)


async def test_a_program_that_ended_without_a_word_leaves_its_calls_and_no_others(
    programs: list[Program], tmp_path: Path
) -> None:
    first, second, dead = programs
    gate = await first.shop.gate(9)
    bought = await first.shop.bought(gate)
    for mark in ("aaaaaaaa", "cccccccc"):
        spend_request = msgspec.structs.replace(first.shop.spend_request(gate), call_id=f"{'0' * 12}{mark}{'1' * 12}")
        spent = await dead.shop.purchases.spend_of_payer(bought.payer, spend_request, NOW_MS)
        assert spent.outcome is Spend.SPENT
    change(tmp_path / "shared.db", "UPDATE nodes SET beat_ms = 0 WHERE mark = 'cccccccc'")
    looking = [asyncio.create_task(program.nodes.run()) for program in (first, second)]
    states = "SELECT substr(id, 13, 8) AS mark, state FROM calls ORDER BY 1"
    async with asyncio.timeout(30):
        while rows_of(tmp_path / "shared.db", "SELECT 1 FROM nodes WHERE mark = 'cccccccc'"):  # noqa: ASYNC110 - set elsewhere
            await asyncio.sleep(0.05)
    assert [tuple(row.values()) for row in rows_of(tmp_path / "shared.db", states)] == [
        ("aaaaaaaa", "DISPATCHED"),
        ("cccccccc", "INTERRUPTED"),
    ]
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
