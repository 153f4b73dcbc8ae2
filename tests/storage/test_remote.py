"""A database in a process of its own: the same answers over the socket, and nothing left by those who vanish."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from tests.storage.test_ledger import HeldAgain, by_header, outcomes, spend_together
from tests.storage.test_purchases import NOW_MS, Shop, key
from tollkeeper.core.errors import ApiError
from tollkeeper.core.purchases import Claim, Spend
from tollkeeper.storage import (
    ConstraintError,
    Statement,
    StatementError,
    StorageError,
    Unit,
    open_database,
    purchases,
    remote,
    sqlite,
)
from tollkeeper.storage.database import LostError, Row
from tollkeeper.storage.ledger import Ledger
from tollkeeper.storage.ledger_process import listen, serve_ledger
from tollkeeper.storage.purchase_rows import SpendResult
from tollkeeper.storage.remote import RemoteDatabase, _Line
from tollkeeper.storage.remote_messages import (
    GREETING,
    Answer,
    Begin,
    Done,
    End,
    Failed,
    Read,
    Request,
    Rows,
    Run,
    Sql,
    Step,
    frame,
)
from tollkeeper.storage.sequences import next_id
from tollkeeper.storage.sqlite import SqliteDatabase

T = TypeVar("T")


class RefusedByRuleError(Exception):
    """A refusal that a unit decides on."""


@pytest.fixture
async def owned(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """The database, served at `tmp_path/ledger.sock`."""
    database = open_database(str(tmp_path / "shop.sqlite3"))
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_ledger(database, listen(tmp_path / "ledger.sock"), stop))
    yield database
    stop.set()
    await serving
    await database.close()


@asynccontextmanager
async def worker(tmp_path: Path, name: str = "ledger.sock") -> AsyncIterator[RemoteDatabase]:
    database = RemoteDatabase(tmp_path / name)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


class LossyLine:
    """A socket before the ledger's that breaks where an answer tells of a commit, and stays broken until mended."""

    def __init__(self, directory: Path, owned: SqliteDatabase) -> None:
        self._directory, self._owned = directory, owned
        self._commits: int | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose(self) -> None:
        self._commits = self._owned.commits
        self.broken.clear()

    async def mend(self, database: RemoteDatabase) -> None:
        self._commits = None
        await self._listen()
        async with asyncio.timeout(30):
            while True:
                with suppress(StorageError):
                    await database.run(next_id("whole"))
                    return
                await asyncio.sleep(0.01)

    async def _listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._directory / "lossy.sock")

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            (self._directory / "lossy.sock").unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_ledger, to_ledger = await asyncio.open_unix_connection(self._directory / "ledger.sock")

        async def carry_requests() -> None:
            while data := await reader.read(65_536):
                to_ledger.write(data)
            to_ledger.close()

        self._tasks.add(asyncio.create_task(carry_requests()))
        while data := await from_ledger.read(65_536):
            if self._commits is not None and self._owned.commits > self._commits:
                self._close()
                self.broken.set()
                break
            writer.write(data)
        writer.close()


def count(name: str) -> Statement:
    return Statement("SELECT value FROM sequences WHERE name = :name", {"name": name})


async def test_socket_opens_for_this_user_only(owned: SqliteDatabase, tmp_path: Path) -> None:
    assert owned.commits >= 0
    assert stat.S_IMODE((tmp_path / "ledger.sock").stat().st_mode) == 0o600


async def test_units_of_two_workers_see_each_other_and_are_durable(owned: SqliteDatabase, tmp_path: Path) -> None:
    async with worker(tmp_path) as one, worker(tmp_path) as two:
        numbers = await asyncio.gather(*(place.run(next_id("things")) for place in (one, two) for _ in range(100)))
        assert sorted(numbers) == list(range(1, 201))
        assert await one.read(count("things")) == await owned.read(count("things")) == [{"value": 200}]


async def test_a_unit_without_statements_has_its_result(owned: SqliteDatabase, tmp_path: Path) -> None:
    def nothing() -> Unit[int]:
        yield from ()
        return 7

    async with worker(tmp_path) as remote:
        assert await remote.run(nothing()) == 7
    assert owned.units == 0


async def test_what_leaves_a_unit_undoes_it_and_is_raised_to_its_caller(owned: SqliteDatabase, tmp_path: Path) -> None:
    def refuse() -> Unit[None]:
        yield from next_id("refused")
        raise RefusedByRuleError

    def unit(statement: Statement) -> Unit[None]:
        yield from next_id("refused")
        yield statement

    async with worker(tmp_path) as remote:
        with pytest.raises(RefusedByRuleError):
            await remote.run(refuse())
        with pytest.raises(StatementError, match="nowhere"):
            await remote.run(unit(Statement("SELECT * FROM nowhere")))
        with pytest.raises(ConstraintError):
            await remote.run(unit(Statement("INSERT INTO sequences VALUES ('refused', -1)")))
        with pytest.raises(OverflowError):
            await remote.run(unit(Statement("SELECT :a", {"a": 2**64})))
        with pytest.raises(OverflowError):
            await remote.run(_only(Statement("SELECT :a", {"a": 2**64})))
        with pytest.raises(StatementError, match="may not write"):
            await remote.read(Statement("DELETE FROM sequences"))
        assert await remote.run(next_id("refused")) == 1
    assert await owned.read(count("refused")) == [{"value": 1}]


def _only(statement: Statement) -> Unit[None]:
    yield statement


async def test_credits_of_which_nobody_knew_in_time_are_given_back_once(
    owned: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BACK_SECONDS", 0.1)
    monkeypatch.setattr(purchases, "_AGAIN_SECONDS", 0.1)
    shop = Shop(owned)
    gate = await shop.gate(10)
    bought = await shop.bought(gate)

    async def left() -> list[Row]:
        return await owned.read(Statement("SELECT remaining FROM holdings"))

    async with LossyLine(tmp_path, owned) as line, worker(tmp_path, "lossy.sock") as database:
        sold = Shop(database).purchases
        assert outcomes(await spend_together(sold.ledger, [by_header(shop, gate)])) == [Spend.SPENT]
        line.lose()
        answers = await spend_together(sold.ledger, [by_header(shop, gate), by_header(shop, gate)])
        assert [type(answer) for answer in answers] == [LostError, LostError]
        assert await left() == [{"remaining": 7}]
        with pytest.raises(StorageError):
            await sold.end_calls({}, NOW_MS)
        await line.mend(database)
        line.lose()
        asked = shop.wish(gate, None)
        with pytest.raises(LostError):
            await sold.spend_token(bought.id, asked, NOW_MS)
        sold.ledger.refused(asked.call_id)  # as its caller does
        assert await left() == [{"remaining": 6}]
        await line.mend(database)
        await sold.end_calls({}, NOW_MS)
        assert await left() == [{"remaining": 9}]
        await sold.end_calls({}, NOW_MS)
    assert await left() == [{"remaining": 9}]
    states = Statement("SELECT state, status, count(*) AS calls FROM calls GROUP BY state, status ORDER BY state")
    assert await owned.read(states) == [
        {"state": "DISPATCHED", "status": None, "calls": 1},
        {"state": "RESTORED", "status": 503, "calls": 3},
    ]
    await shop.ledger_agrees()


async def test_values_of_every_type_come_back(owned: SqliteDatabase, tmp_path: Path) -> None:
    params: dict[str, int | str | bytes | None] = {"a": -(2**63), "b": "ü\0", "c": bytes(range(256)), "d": None}
    statement = Statement("SELECT :a AS a, :b AS b, :c AS c, :d AS d", params)
    async with worker(tmp_path) as remote:
        assert await remote.read(statement) == await owned.read(statement) == [params]


async def test_a_shop_is_run_from_two_workers_as_from_one(owned: SqliteDatabase, tmp_path: Path) -> None:
    async with worker(tmp_path) as one, worker(tmp_path) as two:
        shops = Shop(one), Shop(two)
        gate = await shops[0].gate(7)
        await shops[1].bought(gate)
        shops[1].calls = 1_000_000
        ledgers = Ledger(one), Ledger(two)
        before = owned.commits
        answers = await asyncio.gather(
            *(
                spend_together(ledger, [by_header(shop, gate) for _ in range(50)])
                for shop, ledger in zip(shops, ledgers, strict=True)
            )
        )
        assert owned.commits - before <= 2
        told = outcomes([*answers[0], *answers[1]])
        assert told.count(Spend.SPENT) == 7
        assert told.count(Spend.EXHAUSTED) == 93
        last = next(answer for answer in answers[0] if isinstance(answer, SpendResult))
        assert last.purchase is not None
        assert last.purchase.payer == key(1).payer
        assert (await shops[0].purchases.spend(key(1), shops[0].wish(gate), NOW_MS)).outcome is Spend.EXHAUSTED
        await shops[0].ledger_agrees()


async def test_a_worker_that_vanishes_in_the_middle_leaves_nothing(owned: SqliteDatabase, tmp_path: Path) -> None:
    def vanish() -> Unit[None]:
        yield from next_id("half")
        line = vanishing._line  # noqa: SLF001 - what a kill does
        assert line is not None
        line.close()
        yield from next_id("half")

    async with worker(tmp_path) as other:
        async with worker(tmp_path) as vanishing:
            with pytest.raises(StorageError):
                await vanishing.run(vanish())
        assert await asyncio.wait_for(other.run(next_id("whole")), 10) == 1
    assert await owned.read(count("half")) == []


async def test_a_worker_that_falls_silent_in_the_middle_is_not_waited_for(
    owned: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.ledger_process._SILENT_MAX_SECONDS", 1)  # the other one may be slow, too
    async with worker(tmp_path) as silent, worker(tmp_path) as other:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        line = silent._line  # noqa: SLF001 - half of a unit
        assert line is not None
        line.ask(Begin(10**6, Sql("SELECT 1 AS a", {})), lambda _: None)
        await asyncio.sleep(0.02)
        assert await asyncio.wait_for(other.run(next_id("whole")), 10) == 1
        line.ask(Begin(10**6 + 1, Sql("SELEC", {})), answer.set_result)
        assert isinstance(await answer, Failed)
    assert await owned.read(count("whole")) == [{"value": 1}]


async def test_a_unit_that_goes_on_after_it_was_given_up_is_refused(
    owned: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.ledger_process._SILENT_MAX_SECONDS", 0.05)
    answers: asyncio.Queue[object] = asyncio.Queue()
    async with worker(tmp_path) as slow:
        line = slow._line  # noqa: SLF001 - a unit by hand
        assert line is not None
        for ended in (Step(7, Sql("SELECT 1", {})), End(7)):
            line.ask(Begin(7, Sql("INSERT INTO sequences VALUES ('slow', 1)", {})), answers.put_nowait)
            assert isinstance(await answers.get(), Rows)
            await asyncio.sleep(0.2)
            line.ask(ended, answers.put_nowait)
            assert isinstance(await answers.get(), Failed)
    assert await owned.read(count("slow")) == []


async def test_what_no_worker_says_breaks_its_connection_only(owned: SqliteDatabase, tmp_path: Path) -> None:
    for noise in (b"\xff" * 100, b"\0\0\0\4junk", b"\0\0\0\1\xc0"):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "ledger.sock"))
        writer.write(noise)
        assert await asyncio.wait_for(reader.read(), 10) == frame(Done(GREETING))  # and no more
        writer.close()
    async with worker(tmp_path) as remote:
        assert await remote.run(next_id("things")) == 1
    assert owned.units == 1


async def test_a_closed_remote_database_refuses(owned: SqliteDatabase, tmp_path: Path) -> None:
    async with worker(tmp_path) as remote:
        pass
    with pytest.raises(StorageError, match="closed"):
        await remote.run(next_id("late"))
    with pytest.raises(StorageError, match="closed"):
        await remote.read(count("late"))
    assert owned.units == 0


async def test_a_first_purchase_crosses_the_socket_once_for_its_claim_and_once_for_its_grant_and_spend(
    owned: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = await Shop(owned).gate(10)
    asked: list[object] = []

    def ask(line: _Line, request: Request, answer: Callable[[Answer], None]) -> None:
        asked.append(request)
        really(line, request, answer)

    really = _Line.ask
    monkeypatch.setattr(_Line, "ask", ask)
    async with worker(tmp_path) as database:
        shop = Shop(database)
        claim = await shop.claim(gate)
        assert claim.outcome is Claim.WON
        assert claim.purchase is not None
        wish = shop.wish(gate)
        result = await shop.purchases.grant(claim.purchase, "0x", confirmed=True, wish=wish, now_ms=NOW_MS)
        assert result.outcome is Spend.SPENT
        assert [type(request) for request in asked] == [Run, Run]
        assert await shop.purchases.by_id(claim.purchase.id) == result.purchase
        await shop.ledger_agrees()


async def test_a_first_purchase_whose_answers_are_lost_is_found_when_it_is_asked_for_again(
    owned: SqliteDatabase, tmp_path: Path
) -> None:
    gate = await Shop(owned).gate(10)
    async with LossyLine(tmp_path, owned) as line, worker(tmp_path, "lossy.sock") as database:
        shop = Shop(database)

        async def lost(asking: Coroutine[Any, Any, T]) -> T:
            line.lose()
            task = asyncio.create_task(asking)
            await line.broken.wait()
            await line.mend(database)
            return await task

        claim = await lost(shop.claim(gate))
        assert claim.outcome is Claim.WON
        assert claim.purchase is not None
        wish = shop.wish(gate)
        granting = shop.purchases.grant(claim.purchase, "0x", confirmed=True, wish=wish, now_ms=NOW_MS)
        assert (await lost(granting)).outcome is Spend.SPENT
        assert (await shop.claim(gate)).outcome is Claim.TAKEN
    rows = await owned.read(Statement("SELECT attempt, remaining FROM holdings"))
    assert rows == [{"attempt": 1, "remaining": 9}]


async def test_a_single_spend_crosses_the_socket_once_and_is_found_where_its_answer_was_lost(
    owned: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bought_at = Shop(owned)
    gate = await bought_at.gate(10)
    bought = await bought_at.bought(gate)
    asked: list[object] = []

    def ask(line: _Line, request: Request, answer: Callable[[Answer], None]) -> None:
        asked.append(request)
        really(line, request, answer)

    really = _Line.ask
    monkeypatch.setattr(_Line, "ask", ask)
    async with LossyLine(tmp_path, owned) as line, worker(tmp_path, "lossy.sock") as database:
        shop = Shop(database)
        spends: list[Callable[[], Coroutine[Any, Any, SpendResult]]] = [
            lambda: shop.purchases.spend(key(1), shop.wish(gate), NOW_MS),
            lambda: shop.purchases.spend_token(bought.id, shop.wish(gate, None), NOW_MS),
            lambda: shop.purchases.spend_of_payer(bought.payer, shop.wish(gate, None), NOW_MS),
        ]
        for left, spend in zip((9, 8, 7), spends, strict=True):
            asked.clear()
            result = await spend()
            assert (result.outcome, result.purchase and result.purchase.remaining) == (Spend.SPENT, left)
            # What a wallet's is spent of is looked for before, where no spend waits for it.
            assert [type(request) for request in asked] == ([Read, Run] if spend is spends[2] else [Run])
        for left, spend in zip((6, 5), spends[1:], strict=True):  # the header counts no more
            line.lose()
            task = asyncio.create_task(spend())
            await line.broken.wait()
            await line.mend(database)
            result = await task
            assert (result.outcome, result.purchase and result.purchase.remaining) == (Spend.SPENT, left)
    await bought_at.ledger_agrees()


async def test_known_spends_whose_answer_was_lost_are_found_as_they_were_taken(
    owned: SqliteDatabase, tmp_path: Path
) -> None:
    bought_at = Shop(owned)
    gate = await bought_at.gate(10)
    bought = await bought_at.bought(gate)
    told: asyncio.Queue[int | SpendResult | ApiError] = asyncio.Queue()
    async with LossyLine(tmp_path, owned) as line, worker(tmp_path, "lossy.sock") as database:
        shop, ledger = Shop(database), Ledger(database)

        async def spend_three() -> list[int | SpendResult | ApiError]:
            for _ in range(3):
                ledger.spend_held(HeldAgain(bought, gate, shop.wish(gate).call_id, told.put_nowait), NOW_MS)
            return [await asyncio.wait_for(told.get(), 30) for _ in range(3)]

        assert await spend_three() == [9, 8, 7]
        line.lose()
        task = asyncio.create_task(spend_three())
        await line.broken.wait()
        await line.mend(database)
        found = [answer for answer in await task if isinstance(answer, SpendResult) and answer.purchase]
        assert [(one.outcome, one.purchase and one.purchase.remaining) for one in found] == [(Spend.SPENT, 4)] * 3
        assert await spend_three() == [3, 2, 1]
    await bought_at.ledger_agrees()


async def test_what_a_unit_that_comes_whole_raises_is_told(owned: SqliteDatabase, tmp_path: Path) -> None:
    shop = Shop(owned)
    gate = await shop.gate(10)
    await shop.bought(gate)
    async with worker(tmp_path) as database:
        used = shop.wish(gate)
        await Shop(database).purchases.spend(key(1), used, NOW_MS)
        claim = await Shop(database).claim(gate, 2)
        assert claim.purchase is not None
        with pytest.raises(ConstraintError):
            await Shop(database).purchases.grant(claim.purchase, "0x", confirmed=True, wish=used, now_ms=NOW_MS)
    assert await owned.read(Statement("SELECT state FROM purchases ORDER BY number")) == [
        {"state": "LIVE"},
        {"state": "CLAIMED"},
    ]


@pytest.fixture
def long_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases that are opened from now on read longer than a busy machine needs."""
    monkeypatch.setattr(sqlite, "_LIST_SECONDS", 100.0)


@pytest.mark.usefixtures("long_lists")
async def test_a_look_up_waits_for_no_long_query(tmp_path: Path, owned: SqliteDatabase) -> None:
    """A page of an owner's long log would hold up every purchase, whose payment is looked up by its key."""
    del owned
    numbers = "SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 10000000"
    counting = Statement(f"WITH RECURSIVE c(n) AS ({numbers}) SELECT count(*) AS n FROM c")  # noqa: S608 - own text
    async with worker(tmp_path) as database:
        long = asyncio.create_task(database.read_long(counting))
        await asyncio.sleep(0.05)  # it has its thread
        for read in (database.read, database.read_short):
            assert await read(Statement("SELECT 1 AS one")) == [{"one": 1}]
            assert not long.done()
        for read in (database.read, database.read_short, database.read_long):
            with pytest.raises(StatementError):
                await read(Statement("DELETE FROM credits"))
        assert await long == [{"n": 10_000_000}]
