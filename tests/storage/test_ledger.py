"""Held credits spent in batches: exact for every call, alone or together, whatever breaks (contract 4.3)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.engines import commits_of
from tests.storage.reference_spending import spend_one
from tests.storage.test_purchases import HEADER, NOW_MS, Shop, key
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.purchases import FIRST_LOOK_MS, Claim, PurchaseState, Spend, header_hash
from tollkeeper.storage.engine.database import ConstraintError, Database, Statement, Steps, StorageError, unit_of_work
from tollkeeper.storage.ledger.ledger import BATCH_MAX, WAITING_MAX, Ledger
from tollkeeper.storage.ledger.purchase_rows import Look, Purchase, SpendRequest, SpendResult
from tollkeeper.storage.ledger.spends import HeldSpend, spend_all
from tollkeeper.storage.urls import open_database

OTHER = header_hash(b"other")
TABLES = (
    "SELECT * FROM holdings ORDER BY id",
    "SELECT * FROM credits ORDER BY number",
    "SELECT * FROM credit_entries ORDER BY cause, reason",
    "SELECT * FROM calls ORDER BY id",
)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = open_database(str(tmp_path / "shop.sqlite3"))
    yield opened
    await opened.close()


async def spend_together(ledger: Ledger, spends: list[HeldSpend]) -> list[SpendResult | ApiError]:
    """The answers to spends that are asked for in one turn of the loop, in their order."""
    answers: dict[int, SpendResult | ApiError] = {}
    done = asyncio.Event()

    def note(place: int, answer: SpendResult | ApiError) -> None:
        assert place not in answers
        answers[place] = answer
        if len(answers) == len(spends):
            done.set()

    for place, spend in enumerate(spends):
        ledger.spend(spend, NOW_MS, partial(note, place))
    assert not answers
    await asyncio.wait_for(done.wait(), 30)
    return [answers[place] for place in range(len(spends))]


def outcomes(answers: list[SpendResult | ApiError]) -> list[Spend]:
    assert all(isinstance(answer, SpendResult) for answer in answers)
    return [answer.outcome for answer in answers if isinstance(answer, SpendResult)]


def by_header(shop: Shop, gate: PayGate, number: int = 1, header: bytes = HEADER) -> HeldSpend:
    return HeldSpend(key(number), None, shop.spend_request(gate, header))


async def sql(database: Database, text: str) -> None:
    @unit_of_work
    def unit() -> Steps[None]:
        yield Statement(text)

    await database.run(unit())


async def test_spends_of_one_turn_are_one_commit_and_exact(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(7)
    await shop.bought(gate)
    before = commits_of(database)
    answers = await spend_together(Ledger(database), [by_header(shop, gate) for _ in range(100)])
    assert commits_of(database) - before == 1
    assert outcomes(answers) == [Spend.SPENT] * 7 + [Spend.EXHAUSTED] * 93
    left = [answer.purchase.remaining for answer in answers if isinstance(answer, SpendResult) and answer.purchase]
    assert left == [6, 5, 4, 3, 2, 1, 0] + [0] * 93
    await shop.ledger_agrees()


async def test_more_spends_than_one_batch_are_all_answered_once(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(BATCH_MAX)
    for number in range(1, 4):
        await shop.bought(gate, number)
    spends = [by_header(shop, gate, 1 + place % 3) for place in range(4 * BATCH_MAX)]
    answers = await spend_together(Ledger(database), spends)
    assert outcomes(answers).count(Spend.SPENT) == 3 * BATCH_MAX
    await shop.ledger_agrees()


async def test_spends_mixed_with_other_work_on_the_writer_are_exact(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(500)
    await shop.bought(gate)
    ledger = Ledger(database)
    work = [asyncio.create_task(shop.bought(gate, number)) for number in range(2, 60)]
    alone = [asyncio.create_task(shop.spend(key(1), shop.spend_request(gate), NOW_MS)) for _ in range(300)]
    spent = 0
    while not all(task.done() for task in work):
        spent += outcomes(await spend_together(ledger, [by_header(shop, gate) for _ in range(5)])).count(Spend.SPENT)
    spent += sum(result.outcome is Spend.SPENT for result in await asyncio.gather(*alone))
    found = await shop.purchases.by_payment(key(1))
    assert found is not None
    assert found.remaining == 500 - spent
    await shop.ledger_agrees()


async def test_spends_of_more_purchases_than_are_remembered_are_exact(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.ledger.ledger.REMEMBERED_MAX", 2)
    shop = Shop(database)
    gate = await shop.gate(7)
    ledger = Ledger(database)
    for number in range(1, 6):
        await shop.bought(gate, number)
    for left in range(6, -1, -1):
        answers = await spend_together(ledger, [by_header(shop, gate, number) for number in range(1, 6)])
        assert [one.purchase.remaining for one in answers if isinstance(one, SpendResult) and one.purchase] == [
            left
        ] * 5
    answers = await spend_together(ledger, [by_header(shop, gate, number) for number in range(1, 6)])
    assert outcomes(answers) == [Spend.EXHAUSTED] * 5
    await shop.ledger_agrees()


async def test_a_remembered_purchase_gives_no_more_than_it_has(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(7)
    await shop.bought(gate)
    ledger = Ledger(database)
    assert outcomes(await spend_together(ledger, [by_header(shop, gate)])) == [Spend.SPENT]
    answers = await spend_together(ledger, [by_header(shop, gate) for _ in range(10)])
    assert outcomes(answers) == [Spend.SPENT] * 6 + [Spend.EXHAUSTED] * 4
    left = [answer.purchase.remaining for answer in answers if isinstance(answer, SpendResult) and answer.purchase]
    assert left == [5, 4, 3, 2, 1, 0, 0, 0, 0, 0]
    await shop.ledger_agrees()


async def test_a_new_buyer_is_served_however_many_others_call(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(1_000_000)
    await shop.bought(gate, 1)
    await shop.bought(gate, 2)
    ledger = Ledger(database)
    (first,) = await spend_together(ledger, [by_header(shop, gate, 1)])
    assert isinstance(first, SpendResult)
    is_served = asyncio.Event()

    def ask() -> None:
        if not is_served.is_set():
            ledger.spend(by_header(shop, gate, 1), NOW_MS, lambda _: ask())

    for _ in range(3 * BATCH_MAX):
        ask()
    ledger.spend(by_header(shop, gate, 2), NOW_MS, lambda _: is_served.set())
    await asyncio.wait_for(is_served.wait(), 30)
    await spend_together(ledger, [by_header(shop, gate, 2)])  # behind all that wait
    await shop.ledger_agrees()


async def test_spends_of_remembered_purchases_share_a_commit_with_others(database: Database) -> None:
    """Of two spends of a remembered purchase with one credit left one is refused."""
    shop = Shop(database)
    gate = await shop.gate(3)
    for number in (1, 2, 3):
        await shop.bought(gate, number)
    ledger = Ledger(database)
    for number in (1, 2, 2):
        await spend_together(ledger, [by_header(shop, gate, number)])
    told: list[tuple[str, SpendResult | ApiError]] = []
    all_told = asyncio.Event()

    def note(name: str, answer: SpendResult | ApiError) -> None:
        told.append((name, answer))
        if len(told) == 5:
            all_told.set()

    commits = commits_of(database)
    for name, number in (("rich", 1), ("poor", 2), ("poor", 2), ("rich", 1), ("new", 3)):
        ledger.spend(by_header(shop, gate, number), NOW_MS, partial(note, name))
    await asyncio.wait_for(all_told.wait(), 30)
    shown = Counter((name, outcomes([answer])[0]) for name, answer in told)
    assert shown == Counter(
        [
            ("rich", Spend.SPENT),
            ("rich", Spend.SPENT),
            ("new", Spend.SPENT),
            ("poor", Spend.SPENT),
            ("poor", Spend.EXHAUSTED),
        ]
    )
    assert commits_of(database) - commits == 2
    await shop.ledger_agrees()


async def test_what_a_remembered_purchase_does_not_have_is_looked_for_twice_once_only(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(1)
    await shop.bought(gate)
    ledger = Ledger(database)
    took = []
    for _ in range(4):
        before = commits_of(database)
        took.append((outcomes(await spend_together(ledger, [by_header(shop, gate)]))[0], commits_of(database) - before))
    assert took == [(Spend.SPENT, 1), (Spend.EXHAUSTED, 2), (Spend.EXHAUSTED, 1), (Spend.EXHAUSTED, 1)]


async def test_credits_of_a_remembered_purchase_expire_too(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(7, creditsExpireAfter=60)
    await shop.bought(gate)
    ledger = Ledger(database)
    answers: asyncio.Queue[SpendResult | ApiError] = asyncio.Queue()
    for now_ms in (NOW_MS, NOW_MS + 59_999, NOW_MS + 60_000):
        ledger.spend(by_header(shop, gate), now_ms, answers.put_nowait)
        (outcome,) = outcomes([await asyncio.wait_for(answers.get(), 30)])
        assert outcome is (Spend.SPENT if now_ms < NOW_MS + 60_000 else Spend.EXHAUSTED)
    await shop.ledger_agrees()


async def test_how_calls_ended_is_written_with_the_next_spends_and_kept_where_it_is_not(
    database: Database,
) -> None:
    shop = Shop(database)
    gate = await shop.gate(7)
    await shop.bought(gate)
    ledger = Ledger(database)
    new, first, second, third = (by_header(shop, gate) for _ in range(4))
    await spend_together(ledger, [new])
    await spend_together(ledger, [first])
    ledger.end(new.spend_request.call_id, 404)
    ledger.end(first.spend_request.call_id, 200)
    twice = HeldSpend(second.key, None, SpendRequest(gate.id, gate.version, HEADER, second.spend_request.call_id))
    used = HeldSpend(second.key, None, SpendRequest(gate.id, gate.version, HEADER, new.spend_request.call_id))
    *either, refused = await spend_together(ledger, [second, twice, used])  # breaks its batch
    assert {type(answer) for answer in either} == {SpendResult, ApiError}  # whichever PostgreSQL is asked first
    assert isinstance(refused, ApiError)
    before = commits_of(database)
    assert outcomes(await spend_together(ledger, [third])) == [Spend.SPENT]
    assert commits_of(database) - before == 1
    ledger.end(third.spend_request.call_id, 502)
    await ledger.flush_ended(NOW_MS)
    rows = await database.read(Statement("SELECT id, state, status FROM calls ORDER BY id"))
    states = [("DONE", 404), ("DONE", 200), ("DISPATCHED", None), ("DONE", 502)]
    assert [(row["state"], row["status"]) for row in rows] == states
    await shop.ledger_agrees()


async def test_more_ends_than_may_wait_are_dropped_and_counted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.ledger.open_calls.ENDED_MAX", 2)
    ledger = Ledger(database)
    for number in range(3):
        ledger.end(f"call-{number}", 200)
    assert [ledger.take_dropped() for _ in range(2)] == [1, 0]
    await ledger.flush_ended(NOW_MS)
    ledger.end("call-3", 200)
    assert ledger.take_dropped() == 0


async def test_a_spend_that_breaks_its_batch_fails_alone(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(9)
    await shop.bought(gate)
    ledger = Ledger(database)
    first = by_header(shop, gate)
    again = by_header(shop, gate)
    twice = HeldSpend(again.key, None, SpendRequest(gate.id, gate.version, HEADER, first.spend_request.call_id))
    answers = await spend_together(ledger, [first, twice, again])
    (refused,) = (answer for answer in answers[:2] if isinstance(answer, ApiError))  # PostgreSQL asks either first
    assert refused.code is Code.INTERNAL_ERROR
    assert outcomes([answer for answer in answers if answer is not refused]) == [Spend.SPENT, Spend.SPENT]
    found = await shop.purchases.by_payment(key(1))
    assert found is not None
    assert found.remaining == 7
    await shop.ledger_agrees()


async def test_a_callback_that_raises_does_not_keep_the_others_from_their_answers(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate()
    await shop.bought(gate)
    ledger = Ledger(database)

    def fault(_: SpendResult | ApiError) -> None:
        raise ZeroDivisionError

    ledger.spend(by_header(shop, gate), NOW_MS, fault)
    assert outcomes(await spend_together(ledger, [by_header(shop, gate)])) == [Spend.SPENT]
    assert outcomes(await spend_together(ledger, [by_header(shop, gate)])) == [Spend.SPENT]


async def test_a_callback_may_spend_again(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(50)
    await shop.bought(gate)
    ledger = Ledger(database)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    spent = 0

    def go_on(answer: SpendResult | ApiError) -> None:
        nonlocal spent
        assert isinstance(answer, SpendResult)
        if answer.outcome is Spend.EXHAUSTED:
            done.set_result(None)
            return
        spent += 1
        ledger.spend(by_header(shop, gate), NOW_MS, go_on)

    ledger.spend(by_header(shop, gate), NOW_MS, go_on)
    await asyncio.wait_for(done, 30)
    assert spent == 50


async def test_a_closed_database_answers_unavailable_to_each(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate()
    await shop.bought(gate)
    await database.close()
    answers = await spend_together(Ledger(database), [by_header(shop, gate) for _ in range(3)])
    assert all(isinstance(answer, StorageError) for answer in answers)


async def test_more_spends_than_may_wait_are_refused_and_the_others_are_done(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate()
    await shop.bought(gate)
    spend_request = shop.spend_request(gate, OTHER)
    answers = await spend_together(
        Ledger(database), [HeldSpend(key(1), None, spend_request) for _ in range(WAITING_MAX + 5)]
    )
    assert sum(isinstance(answer, StorageError) for answer in answers) == 5
    assert outcomes(answers[:WAITING_MAX]) == [Spend.WITHHELD] * WAITING_MAX


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_a_file_that_another_program_writes_holds_up_the_spend_and_not_the_loop(
    database: Database, tmp_path: Path
) -> None:
    shop = Shop(database)
    gate = await shop.gate()
    await shop.bought(gate)
    other = sqlite3.connect(tmp_path / "shop.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    spending = asyncio.create_task(spend_together(Ledger(database), [by_header(shop, gate)]))
    longest, last = 0.0, time.perf_counter()
    for _ in range(50):
        await asyncio.sleep(0.002)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert not spending.done()
    assert longest < 2  # a file that is written by somebody else is waited for up to five seconds
    other.execute("ROLLBACK")
    other.close()
    assert outcomes(await spending) == [Spend.SPENT]


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_a_purchase_that_comes_up_short_in_a_batch_is_spent_one_by_one(database: Database) -> None:
    """On an engine that lets another transaction be faster; here a trigger ignores what takes two at once."""
    shop = Shop(database)
    gate = await shop.gate(4)
    await shop.bought(gate, 1)
    await shop.bought(gate, 2)
    await sql(
        database,
        "CREATE TRIGGER t BEFORE UPDATE OF remaining ON credits WHEN OLD.remaining - NEW.remaining > 1"
        " BEGIN SELECT RAISE(IGNORE); END",
    )
    spends = [by_header(shop, gate, number) for number in (1, 2, 1, 1, 1, 1)]
    answers = await spend_together(Ledger(database), spends)
    assert outcomes(answers) == [Spend.SPENT] * 5 + [Spend.EXHAUSTED]
    await shop.ledger_agrees()


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_a_credit_that_is_there_and_cannot_be_taken_is_not_called_used_up(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(4)
    await shop.bought(gate, 1)
    await shop.bought(gate, 2)
    await sql(
        database,
        "CREATE TRIGGER t BEFORE UPDATE OF remaining ON credits WHEN OLD.number = 1 BEGIN SELECT RAISE(IGNORE); END",
    )
    spends = [by_header(shop, gate, number) for number in (1, 2, 1)]
    answers = await spend_together(Ledger(database), spends)
    assert outcomes(answers) == [Spend.PARKED, Spend.SPENT, Spend.PARKED]
    await shop.ledger_agrees()


async def test_a_batch_is_undone_whole_where_a_call_is_known(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(4)
    await shop.bought(gate)
    spend = by_header(shop, gate)
    await database.run(spend_all([spend], NOW_MS))
    with pytest.raises(ConstraintError):
        await database.run(spend_all([by_header(shop, gate), spend], NOW_MS))
    await shop.ledger_agrees()


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_the_log_is_folded_while_spends_go_on(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.storage.sqlite.engine._LOG_PAGES_MAX", 200)
    shop = Shop(database)
    gate = await shop.gate(5000)
    await shop.bought(gate)
    ledger = Ledger(database)
    for _ in range(50):
        for _ in range(20):
            await spend_together(ledger, [by_header(shop, gate)])
        await database.run(spend_all([], NOW_MS))  # the thread is done with the folding
    pages = (tmp_path / "shop.sqlite3-wal").stat().st_size // 4096
    assert pages < 1000  # of some 8,000 that were written
    await shop.ledger_agrees()


PURCHASES = 4
steps = st.one_of(
    st.tuples(
        st.just("batch"),
        st.lists(
            st.tuples(
                st.integers(1, PURCHASES + 1),  # of which purchase; the last is not there
                st.integers(0, 1),  # at which gate
                st.integers(0, 1),  # by the gate's version, or an older one
                st.sampled_from(("header", "header", "header", "other", "token", "bearer")),
            ),
            min_size=1,
            max_size=12,
        ),
    ),
    st.tuples(
        st.sampled_from(("claim", "claim_and_grant", "grant", "grant_and_spend", "fail", "park", "void")),
        st.tuples(st.integers(1, PURCHASES), st.integers(0, 1)),
    ),
    st.tuples(st.sampled_from(("update", "delete")), st.integers(0, 1)),
)


SERVED_ONCE_AFTER_DELETE: list[tuple[str, object]] = [
    ("claim", (3, 0)),
    ("delete", 0),
    ("grant", (3, 0)),
    ("batch", [(3, 0, 0, "header"), (3, 0, 0, "token"), (1, 0, 0, "header")]),
    ("batch", [(3, 0, 0, "header")]),
]


class Twin:
    """One database that spends in batches and one that spends one after the other, with the same history."""

    def __init__(self, batched: Shop, single: Shop, ledger: Ledger | None = None) -> None:
        self.shops = (batched, single)
        self.gates: list[PayGate] = []
        self.ledger = ledger  # where there is one, it spends: one at a time, and remembers what it spent of

    async def play(self, step: tuple[str, object]) -> None:
        match step:
            case ("batch", list(asked)):
                await self._batch([self._spend(*spend) for spend in asked])
            case (("update" | "delete") as action, int(which)):
                await self._manage(action, which)
            case (str(action), (int(number), int(which))):
                for shop in self.shops:
                    await self._act(shop, action, self.gates[which], number)

    def _spend(self, number: int, which: int, behind: int, proof: str) -> HeldSpend:
        gate = self.gates[which]
        shop = self.shops[0]
        shop.calls += 1
        header = {"header": HEADER, "other": OTHER, "token": None, "bearer": None}[proof]
        spend_request = SpendRequest(gate.id, gate.version - behind, header, f"batched-{shop.calls}", proof == "token")
        return (
            HeldSpend(None, f"pur_{gate.id}_{number}", spend_request)
            if header is None
            else HeldSpend(key(number), None, spend_request)
        )

    async def _batch(self, spends: list[HeldSpend]) -> None:
        batched, single = self.shops
        if self.ledger is None:
            together = await batched.database.run(spend_all(spends, NOW_MS + 1))
        else:
            together = [await self._spend_at(self.ledger, spend) for spend in spends]
        apart = [await single.database.run(spend_one(spend, NOW_MS + 1)) for spend in spends]
        assert together == apart

    async def _spend_at(self, ledger: Ledger, spend: HeldSpend) -> SpendResult:
        answered: asyncio.Future[SpendResult | ApiError] = asyncio.get_running_loop().create_future()
        ledger.spend(spend, NOW_MS + 1, answered.set_result)
        answer = await answered
        assert isinstance(answer, SpendResult)
        return answer

    async def _manage(self, action: str, which: int) -> None:
        gate = self.gates[which]
        for shop in self.shops:
            if await shop.gates.by_id(gate.id) is None:
                return
            if action == "delete":
                await shop.gates.delete(gate.id, NOW_MS)
            else:
                self.gates[which] = await shop.gates.update(gate.id, lambda now: replace(now, version=now.version + 1))

    async def _act(self, shop: Shop, action: str, gate: PayGate, number: int) -> None:
        if action.startswith("claim"):
            claim = await shop.claim(gate, number)
            if action == "claim_and_grant" and claim.outcome is Claim.WON and claim.purchase is not None:
                await shop.purchases.grant(claim.purchase, "0x", confirmed=True, spend_request=None, now_ms=NOW_MS)
            return
        found = await shop.purchases.by_payment(key(number))
        if found is not None:
            await self._act_on(shop, action, gate, found)

    async def _act_on(self, shop: Shop, action: str, gate: PayGate, found: Purchase) -> None:
        if action.startswith("grant"):
            spend_request = shop.spend_request(gate) if action == "grant_and_spend" else None
            if spend_request is not None:
                spend_request = SpendRequest(gate.id, gate.version, HEADER, f"granted-{found.id}-{found.attempt}")
            await shop.purchases.grant(found, "0x", confirmed=True, spend_request=spend_request, now_ms=NOW_MS)
        elif action == "fail":
            await shop.purchases.fail(found, "never_sent", None, NOW_MS)
        elif action == "park":
            await shop.purchases.park(found, "unknown", NOW_MS)
        else:
            await shop.purchases.void(found, NOW_MS)

    async def agree(self) -> None:
        batched, single = self.shops
        for table in TABLES:
            mine = await batched.database.read(Statement(table))
            theirs = await single.database.read(Statement(table))
            # Sealed columns are sealed anew in each database.
            assert [_open(row) for row in mine] == [_open(row) for row in theirs]
        await batched.ledger_agrees()


def _open(row: object) -> dict[str, object]:
    assert isinstance(row, dict)
    return {name: value for name, value in row.items() if name not in {"pay_to", "request"}}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(history=SERVED_ONCE_AFTER_DELETE, granted=3)
@given(history=st.lists(steps, min_size=1, max_size=20), granted=st.integers(1, 5))
def test_a_batch_is_the_same_as_its_spends_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, object]], granted: int
) -> None:
    play_twins(tmp_path_factory.mktemp("twin"), history, granted, remembers=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(history=[*SERVED_ONCE_AFTER_DELETE, ("batch", [(1, 0, 0, "header")] * 2)], granted=3)
@example(
    history=[("batch", [(1, 0, 0, proof)]) for proof in ("header", "header", "other", "token", "header")], granted=5
)
@example(history=[("batch", [(1, 0, 0, "header")]), ("update", 0), ("batch", [(1, 0, 1, "header")])], granted=3)
@example(history=[("batch", [(1, 0, 0, "header")]), ("void", (1, 0)), ("batch", [(1, 0, 0, "header")])], granted=3)
@given(history=st.lists(steps, min_size=1, max_size=20), granted=st.integers(1, 5))
def test_what_the_ledger_remembers_of_a_purchase_changes_no_answer(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, object]], granted: int
) -> None:
    play_twins(tmp_path_factory.mktemp("twin"), history, granted, remembers=True)


def play_twins(directory: Path, history: list[tuple[str, object]], granted: int, *, remembers: bool) -> None:
    async def play() -> None:
        databases = [open_database(str(directory / name)) for name in ("batched", "single")]
        twin = Twin(Shop(databases[0]), Shop(databases[1]), Ledger(databases[0]) if remembers else None)
        for shop in twin.shops:
            twin.gates = [await shop.gate(granted, slug="one"), await shop.gate(granted, slug="two")]
        for number in (1, 2):
            await twin.play(("claim_and_grant", (number, number - 1)))
        for step in history:
            await twin.play(step)
        await twin.agree()
        for database in databases:
            await database.close()

    asyncio.run(play())


async def test_a_sale_on_trust_names_the_transaction_by_which_it_was_confirmed(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(granted=9)
    claim = await shop.claim(gate, assume_valid=True)
    assert claim.purchase is not None
    await shop.purchases.grant(claim.purchase, "0xreplaced", confirmed=False, spend_request=None, now_ms=NOW_MS)

    async def named() -> str | None:
        (answer,) = await spend_together(shop.purchases.ledger, [HeldSpend(key(1), None, shop.spend_request(gate))])
        assert isinstance(answer, SpendResult)
        assert answer.outcome is Spend.SPENT
        assert answer.purchase is not None
        return answer.purchase.transaction_hash

    assert [await named() for _ in range(3)] == ["0xreplaced"] * 3
    await shop.purchases.confirm(claim.purchase, NOW_MS, "0xmined")
    assert [await named() for _ in range(3)] == ["0xmined"] * 3
    await shop.ledger_agrees()


@pytest.mark.parametrize("comes_back", [False, True], ids=["stands", "comes-back"])
async def test_a_sale_that_was_remembered_names_the_transaction_that_stands(
    database: Database, *, comes_back: bool
) -> None:
    """By what the ledger remembers, and by what calls remember; in whichever process that is."""
    shop = Shop(database)
    gate = await shop.gate(granted=20)
    purchase = (await shop.claim(gate)).purchase
    assert purchase is not None
    await shop.purchases.grant(purchase, "0xreplaced", confirmed=True, spend_request=None, now_ms=NOW_MS)
    ledgers = Ledger(database), Ledger(database)

    async def named(ledger: Ledger) -> str | None:
        (answer,) = await spend_together(ledger, [HeldSpend(key(1), None, shop.spend_request(gate))])
        assert isinstance(answer, SpendResult)
        assert answer.outcome is Spend.SPENT
        assert answer.purchase is not None
        return answer.purchase.transaction_hash

    assert [await named(ledger) for ledger in ledgers * 2] == ["0xreplaced"] * 4
    if comes_back:
        await shop.purchases.void(purchase, NOW_MS)
        await shop.purchases.revive(purchase, "0xmined", NOW_MS)
    else:
        look = Look(purchase.id, 1, PurchaseState.LIVE, "0xmined", NOW_MS, NOW_MS + FIRST_LOOK_MS, is_renamed=True)
        await shop.purchases.follow([look])
    assert [await named(ledger) for ledger in ledgers * 3] == ["0xmined"] * 6
    await shop.ledger_agrees()


async def test_a_look_that_shows_what_was_known_leaves_a_sale_remembered(database: Database) -> None:
    shop = Shop(database)
    gate = await shop.gate(granted=9)
    purchase = (await shop.claim(gate)).purchase
    assert purchase is not None
    await shop.purchases.grant(purchase, "0xABC", confirmed=True, spend_request=None, now_ms=NOW_MS)
    for transaction in ("0xABC", "0xabc"):  # a facilitator may write it otherwise than a node
        look = Look(purchase.id, 1, PurchaseState.LIVE, transaction, NOW_MS, NOW_MS + FIRST_LOOK_MS, is_renamed=True)
        await shop.purchases.follow([look])
    rows = await database.read(Statement("SELECT is_renamed FROM credits"))
    assert [row["is_renamed"] for row in rows] == [0]
