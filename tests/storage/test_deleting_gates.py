"""A gate that sold much is deleted: whoever spends a credit waits for none of it long, and nothing counts meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.engines import IS_POSTGRESQL, change, commits_of, rows_of
from tests.hub.faulty_database import FaultyDatabase, Kind, Moment, order
from tests.storage.plans import plan_of
from tests.storage.test_purchases import NOW_MS, Shop, key
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.purchases import Spend
from tollkeeper.gateway.purchase.monitor import key_of
from tollkeeper.storage.engine.database import Database, Row, Statement, StorageError, Unit, load_queries
from tollkeeper.storage.gateway import file_rows
from tollkeeper.storage.gateway.file_rows import cut_left_files, cut_uploads, keep_until
from tollkeeper.storage.gateway.paygates import VOIDED_AT_ONCE
from tollkeeper.storage.ledger.purchase_rows import Purchase
from tollkeeper.storage.sqlite import engine as sqlite
from tollkeeper.storage.urls import open_database

T = TypeVar("T")
OTHER, ANOTHER = "0x" + "33" * 20, "0x" + "44" * 20


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Database]:
    database = open_database(str(path))
    try:
        yield database
    finally:
        await database.close()


def sell_many(path: Path, sold: Purchase, count: int) -> None:
    """So many purchases more like this one, written past the stores."""
    columns = list(rows_of(path, "SELECT * FROM purchases")[0])
    hexadecimal = "'0x' || lpad(to_hex(w.v + 1000), 64, '0')" if IS_POSTGRESQL else "printf('0x%064x', w.v + 1000)"
    own = {"number": "w.v + 10", "id": "'pur_many_' || w.v", "nonce": hexadecimal}
    many = "FROM purchases WHERE id LIKE 'pur_many_%'"
    change(
        path,
        f"WITH RECURSIVE w(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM w WHERE v < {count})"  # noqa: S608 - ours
        f" INSERT INTO purchases ({', '.join(columns)})"
        f" SELECT {', '.join(own.get(column, f'p.{column}') for column in columns)}"
        f" FROM w, purchases p WHERE p.id = '{sold.id}'",
        f"INSERT INTO credits (number, granted, remaining, token_used, is_live)"
        f" SELECT number, credits, credits, 0, 1 {many}",
        f"INSERT INTO credits_given (cause, reason, purchase_id, delta, created_ms)"
        f" SELECT id, 'grant', id, credits, 0 {many}",
    )
    if IS_POSTGRESQL:
        change(path, "SELECT setval(pg_get_serial_sequence('purchases', 'number'), max(number)) FROM purchases")


def sell_file(path: Path, gate: PayGate) -> None:
    """The gate was deleted, and sold a file; another one of it was replaced before."""
    rows = (
        f"('{name}', {gate.id}, 'a', 'text/plain', 1, '', 1, {when})" for name, when in (("former", 1), ("file", 2))
    )
    columns = "id, gate_id, name, content_type, size_bytes, sha256, created_ms, replaced_ms"
    change(
        path,
        f"INSERT INTO files ({columns}) VALUES {', '.join(rows)}",  # noqa: S608 - our own names
        "UPDATE paygates SET file_id = 'file', deleted_ms = 1",
    )


async def swept(database: Database) -> set[str]:
    """What may be deleted after a look for what nobody sells or may download."""
    await cut_left_files(database, NOW_MS)
    return set(await cut_uploads(database))


async def begin_to_delete(shop: Shop, gate: PayGate, orders: Path) -> None:
    """Deletes a gate as far as the first commit, behind which it breaks off."""
    order(orders, "_void", Moment.BEFORE, Kind.ERROR)
    with pytest.raises(StorageError):
        await shop.gates.delete(gate.id, NOW_MS)


async def void_in(database: Database) -> int:
    """How many purchases are void, and their credits not live."""
    counting = (
        "SELECT count(*) AS found FROM purchases p JOIN credits c ON c.number = p.number"
        " WHERE p.state = 'VOID' AND c.is_live = 0"
    )
    found: int = (await database.read(Statement(counting)))[0]["found"]
    return found


async def test_what_a_gate_sold_is_voided_some_of_it_in_each_commit(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    async with opened(path) as database:
        shop = Shop(database)
        gate = await shop.gate(2)
        sold = await shop.bought(gate)
        assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.SPENT
        sell_many(path, sold, 3 * VOIDED_AT_ONCE)
        begun = commits_of(database)
        assert await shop.gates.delete(gate.id, NOW_MS) == 1 + 2 * 3 * VOIDED_AT_ONCE
        assert (commits_of(database) - begun, await void_in(database)) == (4, 1 + 3 * VOIDED_AT_ONCE)
        await shop.ledger_agrees()


class LookingBetween(FaultyDatabase):
    """After each commit somebody looks for what is to be done."""

    def __init__(self, real: Database, orders: Path) -> None:
        super().__init__(real, orders)
        self.look: Callable[[], Awaitable[None]] | None = None

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        done = await self.real.run(unit, is_short=is_short)
        look, self.look = self.look, None
        if look is not None:
            await look()
            self.look = look
        return done


async def test_a_deletion_that_goes_on_counts_all_that_was_left_however_long_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    async with opened(path) as database:
        looking = LookingBetween(database, tmp_path / "orders")
        shop = Shop(looking)
        gate = await shop.gate(2)
        sell_many(path, await shop.bought(gate), 3 * VOIDED_AT_ONCE)
        looking.look = partial(shop.gates.void_rest, NOW_MS + 60_001)
        assert await shop.gates.delete(gate.id, NOW_MS) == 2 + 2 * 3 * VOIDED_AT_ONCE
        assert await void_in(database) == 1 + 3 * VOIDED_AT_ONCE


@pytest.mark.parametrize("proof", ["header", "token", "wallet"])
async def test_what_is_to_be_void_with_its_gate_and_is_not_yet_is_spent_as_if_it_were(
    tmp_path: Path, proof: str
) -> None:
    """The deletion broke off behind its first commit. One call is due where none was served, and no other one."""
    path, orders = tmp_path / "gateway.db", tmp_path / "orders"
    async with opened(path) as database:
        shop = Shop(FaultyDatabase(database, orders))
        gate = await shop.gate(2)
        sell_many(path, await shop.bought(gate), VOIDED_AT_ONCE - 1)
        used, whole = await shop.bought(gate, 2, OTHER), await shop.bought(gate, 3, ANOTHER)

        spend = partial(shop.spend_by, proof, gate)
        assert await spend(used) is Spend.SPENT
        await begin_to_delete(shop, gate, orders)
        assert await void_in(database) == VOIDED_AT_ONCE
        nothing = Spend.UNKNOWN if proof == "wallet" else Spend.EXHAUSTED
        assert await spend(used) is nothing
        assert [await spend(whole), await spend(whole)] == [Spend.SPENT, nothing]
        await shop.gates.void_rest(NOW_MS)  # it may be going on
        assert await void_in(database) == VOIDED_AT_ONCE + 1  # what was due was taken of
        await shop.gates.void_rest(NOW_MS)
        assert await void_in(database) == VOIDED_AT_ONCE + 2
        assert await spend(used) is nothing
        await shop.ledger_agrees()


@pytest.mark.parametrize("served", [0, 1])
async def test_a_claimer_who_comes_late_takes_the_one_call_that_is_due_of_what_is_yet_to_be_void(
    tmp_path: Path, served: int
) -> None:
    """His claim was granted behind his back, and another request with his payment may have had that call."""
    path, orders = tmp_path / "gateway.db", tmp_path / "orders"
    async with opened(path) as database:
        shop = Shop(FaultyDatabase(database, orders))
        gate = await shop.gate(3)
        sell_many(path, await shop.bought(gate), VOIDED_AT_ONCE - 1)
        late = await shop.bought(gate, 2, OTHER)
        for _ in range(served):
            assert (await shop.spend(key_of(late), shop.spend_request(gate), NOW_MS)).outcome is Spend.SPENT
        await begin_to_delete(shop, gate, orders)
        granted = await shop.purchases.grant(
            late, "0xhash", confirmed=True, spend_request=shop.spend_request(gate), now_ms=NOW_MS
        )
        assert granted.outcome is (Spend.STALE if served else Spend.SPENT)
        assert (await shop.spend(key_of(late), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
        await shop.ledger_agrees()


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_neither_a_deletion_nor_looking_for_what_it_left_reads_all_purchases(tmp_path: Path) -> None:
    statements = load_queries("gateway.sql")
    async with opened(tmp_path / "gateway.db") as database:
        for statement in (
            statements.void_purchases_of_gate(gate_id=1, now_ms=NOW_MS, many=VOIDED_AT_ONCE),
            statements.close_credits_of_gate(gate_id=1, first=1, last=500),
            statements.gates_to_void(),
        ):
            plan = await plan_of(database, statement)
            assert not [step for step in plan if "SCAN purchases" in step or step == "SCAN p"], plan


@pytest.mark.parametrize("is_due", [False, True])
async def test_the_file_of_a_deleted_gate_that_sold_much_is_swept_unless_a_call_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_due: bool
) -> None:
    """However long all that was sold takes to look through: no list may."""
    path, sold_later = tmp_path / "gateway.db", 80_000
    async with opened(path) as database:
        shop = Shop(database)
        gate = await shop.gate(1)
        sell_many(path, await shop.bought(gate), sold_later)
    change(
        path,
        "UPDATE purchases SET state = 'VOID', failure = 'gate_deleted'",
        "UPDATE credits SET remaining = 0, is_live = 0",
    )
    if is_due:
        change(path, "UPDATE credits SET remaining = 1 WHERE number = (SELECT max(number) FROM credits)")
    sell_file(path, gate)
    monkeypatch.setattr(sqlite, "_LIST_SECONDS", 0.03)
    monkeypatch.setattr(file_rows, "_SALES_AT_ONCE", sold_later // 100, raising=False)
    async with opened(path) as database:
        assert await swept(database) == {"former", *([] if is_due else ["file"])}
        assert await swept(database) == {"former", *([] if is_due else ["file"])}


async def test_a_file_whose_last_call_comes_while_it_is_looked_for_is_kept_for_who_made_it(tmp_path: Path) -> None:
    """Thus a call of a deleted gate's file is answered: it is kept for the call, and then the credit is taken."""
    path = tmp_path / "gateway.db"
    async with opened(path) as database:
        looked = LookedThrough(database, tmp_path / "orders")
        shop = Shop(looked)
        gate = await shop.gate(1)
        await shop.bought(gate)
        await shop.gates.delete(gate.id, NOW_MS)
        change(path, "UPDATE credits SET remaining = 0, is_live = 0")
        sell_file(path, gate)
        looked.between = partial(keep_until, database, "file", NOW_MS, NOW_MS + 1)
        assert await swept(looked) == {"former"}
        assert await keep_until(database, "file", NOW_MS, NOW_MS + 1)
        assert not await keep_until(database, "former", NOW_MS, NOW_MS + 1)


class LookedThrough(FaultyDatabase):
    """`between` comes behind the first piece of sales that a sweep reads."""

    def __init__(self, real: Database, orders: Path) -> None:
        super().__init__(real, orders)
        self.between: Callable[[], Awaitable[object]] | None = None

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        rows = await self.real.read(statement, is_short=is_short, tenant=tenant)
        between, is_piece = self.between, tenant is not None and "state" in statement.params
        if between is not None and is_piece:
            self.between = None
            await between()
        return rows


@pytest.mark.parametrize("moves", ["fails", "is open again"])
async def test_a_file_is_kept_whose_sale_fails_or_is_open_again_while_it_is_looked_for(
    tmp_path: Path, moves: str
) -> None:
    """What failed may be paid yet while it is followed."""
    path = tmp_path / "gateway.db"
    async with opened(path) as database:
        looked = LookedThrough(database, tmp_path / "orders")
        shop = Shop(looked)
        gate = await shop.gate(1)
        claim = (await shop.claim(gate)).purchase
        assert claim is not None
        fail = partial(shop.purchases.fail, claim, "reverted", "0xhash", NOW_MS, follow_ms=NOW_MS + 1)
        if moves == "fails":
            looked.between = fail
        else:
            assert await fail()
            looked.between = partial(shop.purchases.reopen, claim, NOW_MS)
        sell_file(path, gate)
        assert await swept(looked) == {"former"}
