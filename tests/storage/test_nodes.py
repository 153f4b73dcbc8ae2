"""Programs that share one database: none acts by a gate as it was, and none ends what another one serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from tests.engines import change, rows_of, url_of
from tests.storage.test_ledger import by_header, spend_together
from tests.storage.test_purchases import NOW_MS, Shop
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.auth import admit
from tollkeeper.storage.engine import database as units
from tollkeeper.storage.engine.database import (
    Database,
    NotTakenError,
    Statement,
    Steps,
    StorageError,
    counted_together,
    gate_to_change,
    unit_of_work,
)
from tollkeeper.storage.engine.nodes import LivingNodes
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.open_calls import interrupt_calls
from tollkeeper.storage.ledger.purchase_rows import SpendResult
from tollkeeper.storage.postgresql.words import said
from tollkeeper.storage.urls import open_database

pytestmark = pytest.mark.postgresql_only("SQLite's file is one program's")


@dataclass(slots=True)
class Program:
    """One of those that share the database."""

    database: Database
    shop: Shop
    nodes: LivingNodes
    forgotten: list[str]
    begun_anew: list[str] = field(default_factory=list)


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

        joined = list[str]()

        def begin_anew(joined: list[str] = joined) -> None:
            joined.append("anew")

        nodes = LivingNodes(database, mark, forget=forget, leave_behind=left_behind, begin_anew=begin_anew)
        await nodes.open()
        opened.append(Program(database, Shop(database), nodes, forgotten, joined))
    yield opened
    for program in opened:
        await program.database.close()


@asynccontextmanager
async def looking(*programs: Program) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(program.nodes.run()) for program in programs]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_update_is_answered_once_every_living_program_has_forgotten_its_copy(programs: list[Program]) -> None:
    first, second, third = programs
    gate = await first.shop.gate()
    first.shop.gates.until_seen = first.nodes.until_seen
    async with looking(first, second), asyncio.timeout(30):
        changing = asyncio.create_task(first.shop.gates.update(gate.id, lambda known: replace(known, version=2)))
        while not second.forgotten:  # noqa: ASYNC110 - it is told by looking
            await asyncio.sleep(0.01)
        await changing  # the third does not look: its copies are over by then
        assert first.forgotten == second.forgotten == [gate.slug]
        assert not third.nodes.counts()


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
    states = "SELECT substr(id, 13, 8) AS mark, state FROM calls ORDER BY 1"
    async with looking(first, second), asyncio.timeout(60):
        await ended(tmp_path, "cccccccc")
        assert [tuple(row.values()) for row in rows_of(tmp_path / "shared.db", states)] == [
            ("aaaaaaaa", "DISPATCHED"),
            ("cccccccc", "INTERRUPTED"),
        ]


def unbind(tmp_path: Path) -> None:
    without = "CREATE OR REPLACE FUNCTION require_node(node text) RETURNS void LANGUAGE sql AS 'SELECT'"
    change(tmp_path / "shared.db", without)


async def ended(tmp_path: Path, mark: str) -> None:
    """The program has been silent for long, so that another one ends it."""
    path = tmp_path / "shared.db"
    change(path, f"UPDATE nodes SET beat_ms = 0 WHERE mark = '{mark}.1'")  # noqa: S608 - ours
    while rows_of(path, f"SELECT 1 FROM nodes WHERE mark = '{mark}.1'"):  # noqa: ASYNC110, S608 - set elsewhere
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_bound", [True, False])
async def test_a_program_that_was_cut_off_writes_nothing_until_it_has_joined_anew(
    programs: list[Program], tmp_path: Path, *, is_bound: bool
) -> None:
    """Nothing binds its units to its name where `is_bound` is false: then it is seen to write."""
    if not is_bound:
        unbind(tmp_path)
    first, cut_off, _ = programs
    gate, other = await cut_off.shop.gate(50), await cut_off.shop.gate()
    await cut_off.shop.bought(gate)
    ledger = Ledger(cut_off.database)

    async def spent() -> list[object]:
        told = await spend_together(ledger, [by_header(cut_off.shop, gate, 1)])
        return [one.outcome if isinstance(one, SpendResult) else type(one) for one in told]

    async def written() -> int:
        writing = (
            cut_off.shop.claim(gate, 100 + cut_off.shop.calls),
            cut_off.shop.gates.update(other.id, lambda known: replace(known, version=known.version + 1)),
            cut_off.database.run(admit(f"0x{cut_off.shop.calls:040x}", NOW_MS)),
        )
        answers = await asyncio.gather(*writing, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert {type(answer) for answer in refused} <= {NotTakenError}
        return len(answers) - len(refused)

    assert [await spent(), await spent()] == [[Spend.SPENT], [Spend.SPENT]]  # the second of a purchase that is known
    async with looking(first), asyncio.timeout(60):
        await ended(tmp_path, "bbbbbbbb")
    assert [await spent(), await written()] == ([[NotTakenError], 0] if is_bound else [[Spend.SPENT], 3])
    if is_bound:
        async with looking(cut_off), asyncio.timeout(60):
            while not cut_off.begun_anew:  # noqa: ASYNC110 - it is told by looking
                await asyncio.sleep(0.01)
        assert [await spent(), await written()] == [[Spend.SPENT], 3]
        assert rows_of(tmp_path / "shared.db", "SELECT 1 FROM nodes WHERE mark = 'bbbbbbbb.2'")


@pytest.mark.parametrize("is_bound", [True, False])
async def test_who_ends_a_program_waits_for_what_it_has_under_way(
    programs: list[Program], tmp_path: Path, *, is_bound: bool
) -> None:
    """Nothing binds units to names where `is_bound` is false: then a call is left that nobody ends."""
    if not is_bound:
        unbind(tmp_path)
    first, cut_off, _ = programs
    gate = await first.shop.gate(9)
    bought = await first.shop.bought(gate)
    spend_request = msgspec.structs.replace(cut_off.shop.spend_request(gate), call_id=f"{'0' * 12}bbbbbbbb{'1' * 12}")
    is_over = asyncio.Event()

    async with looking(first), asyncio.timeout(60):
        async with looking(cut_off):
            await ended(tmp_path, "cccccccc")  # from then on the first one ends whoever is silent
        holding = asyncio.create_task(hold(gate_to_change(gate.id), tmp_path, is_over))
        await waiting(tmp_path, 1, of="granted")
        spending = asyncio.create_task(cut_off.shop.purchases.spend_of_payer(bought.payer, spend_request, NOW_MS))
        await waiting(tmp_path, 1)
        ending = asyncio.create_task(ended(tmp_path, "bbbbbbbb"))
        await (waiting(tmp_path, 2) if is_bound else ending)
        is_over.set()
        assert (await spending).outcome is Spend.SPENT
        await asyncio.gather(holding, ending)
    states = rows_of(tmp_path / "shared.db", "SELECT state FROM calls")
    assert [row["state"] for row in states] == ["INTERRUPTED" if is_bound else "DISPATCHED"]


async def test_a_database_that_does_not_answer_keeps_each_who_waits_to_learn_what_changed_once(
    programs: list[Program], tmp_path: Path
) -> None:
    first, is_over = programs[0], asyncio.Event()
    holding = asyncio.create_task(hold(Statement("LOCK TABLE gate_changes"), tmp_path, is_over))
    granted = (
        "SELECT 1 FROM pg_locks WHERE relation = 'gate_changes'::regclass AND mode = 'AccessExclusiveLock' AND granted"
    )
    while not rows_of(tmp_path / "shared.db", granted):  # noqa: ASYNC110 - of another program
        await asyncio.sleep(0.01)
    async with asyncio.timeout(60):  # one after the other they would take minutes
        told = await asyncio.gather(*(first.nodes.catch_up() for _ in range(50)), return_exceptions=True)
    assert {type(one) for one in told} == {StorageError}
    is_over.set()
    await holding
    await first.nodes.catch_up()


async def test_units_that_wait_for_each_other_leave_the_connections_to_the_rest_and_are_told_of_a_fault_at_once(
    tmp_path: Path,
) -> None:
    database = open_database(str(tmp_path / "shared.db"))
    await database.run(units.rows_of(Statement("SELECT 1 AS one")))
    is_over = asyncio.Event()
    holding = asyncio.create_task(hold(counted_together("claims:base"), tmp_path, is_over))
    await waiting(tmp_path, 1, of="granted")
    counting = [asyncio.create_task(database.run(units.rows_of(counted_together("claims:base")))) for _ in range(40)]
    await waiting(tmp_path, 1)
    assert await database.run(units.rows_of(Statement("SELECT 1 AS one"))) == [{"one": 1}]
    assert not any(unit.done() for unit in counting)
    async with asyncio.timeout(60):  # each by itself, one after the other, they would take minutes
        told = await asyncio.gather(*counting, return_exceptions=True)
    assert {type(one) for one in told} == {NotTakenError}
    is_over.set()
    await holding
    assert await database.run(units.rows_of(counted_together("claims:base")))
    await database.close()


async def test_who_waits_for_a_connection_waits_as_long_as_others_get_on(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "shared.db"))
    slow = [database.run(units.rows_of(Statement("SELECT 1 AS one FROM pg_sleep(1)"))) for _ in range(48)]
    assert await asyncio.gather(*slow) == [[{"one": 1}]] * len(slow)
    await database.close()


async def hold(statement: Statement, tmp_path: Path, is_over: asyncio.Event) -> None:
    """Hold a lock as a program of nobody's does."""
    import asyncpg  # noqa: PLC0415 - only this engine's tests need it

    connection = await asyncpg.connect(url_of(tmp_path / "shared.db"))
    try:
        async with connection.transaction():
            sql, values = said(statement)
            await connection.execute(sql, *values)
            await is_over.wait()
    finally:
        await connection.close()


async def waiting(tmp_path: Path, count: int, *, of: str = "NOT granted") -> None:
    """Units wait for locks of names or gates, or have them."""
    locks = f"SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND {of}"  # noqa: S608 - ours
    locks += " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    while rows_of(tmp_path / "shared.db", locks)[0]["locks"] < count:  # noqa: ASYNC110 - set elsewhere
        await asyncio.sleep(0.01)


async def test_a_unit_whose_connection_breaks_off_leaves_an_unknown_outcome_and_no_fault(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "broken.db"))

    @unit_of_work
    def broken_off() -> Steps[None]:
        yield Statement("SELECT 1 AS one")
        yield Statement("SELECT pg_terminate_backend(pg_backend_pid()) AS done")

    for _ in range(5):
        with pytest.raises(StorageError):
            await database.run(broken_off())
    await database.close()


async def test_units_that_the_server_broke_off_are_begun_anew_and_carried_out(tmp_path: Path) -> None:
    """Two that lock each other out (40P01), and one that it could not serialise (40001)."""
    one, other = (open_database(str(tmp_path / "again.db")) for _ in range(2))
    tried: list[str] = []

    @unit_of_work
    def crossed(first: int, second: int) -> Steps[int]:
        tried.append("deadlock")
        yield gate_to_change(first)
        yield Statement("SELECT 1 AS one FROM pg_sleep(0.5)")
        yield gate_to_change(second)
        return first

    @unit_of_work
    def serialised() -> Steps[str]:
        tried.append("serialisation")
        if tried.count("serialisation") == 1:
            yield Statement("DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$")
        yield Statement("SELECT 1 AS one")
        return "done"

    pairs = 0
    while tried.count("deadlock") == 2 * pairs:  # until they meet
        pairs += 1
        assert tuple(await asyncio.gather(one.run(crossed(1, 2)), other.run(crossed(2, 1)))) == (1, 2)
    assert await one.run(serialised()) == "done"
    assert tried.count("serialisation") == 2
    for database in (one, other):
        await database.close()
