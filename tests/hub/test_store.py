"""The hub's units of work, two callers at a time: one of them wins (contract 5.2; security A-25)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.storage.plans import plan_of
from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.settlement.states import Proof, SettlementKind, State
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import Database, Statement, Steps, Unit, load_queries, unit_of_work
from tollkeeper.storage.hub.claims import (
    ClaimBounds,
    ClaimedSettlement,
    NewSettlement,
    Overtaken,
    SettlementClaim,
    SettlementRequest,
    claim_and_sign,
    hand_out,
    sign_again,
)
from tollkeeper.storage.hub.idempotency import IdempotencyKey, find_key, record_answer
from tollkeeper.storage.hub.leases import LeaseLost, join, leave, renew, take_lease
from tollkeeper.storage.hub.settlements import (
    Move,
    Settlement,
    SettlementPage,
    count_set_aside,
    find_settlement,
    list_blocks,
    list_in_block,
    list_unfinished,
    move,
    move_all,
    name_transaction,
    reopen,
    set_aside,
    take_over,
)
from tollkeeper.storage.hub.transactions import (
    GasBudget,
    RawTransaction,
    add_signed,
    next_nonce_of,
    open_lane,
    settlements_of,
    store_filler,
    stored_from,
    transactions_of,
)
from tollkeeper.storage.urls import open_database

SIGNER = "0x" + "aa" * 20
KEY = PaymentKey("base-sepolia", "0x" + "bb" * 20, "0x" + "cc" * 20, "0x" + "dd" * 32)
NEW = NewSettlement(
    id="s-1",
    key=KEY,
    kind=SettlementKind.PURCHASE,
    pay_to="0x" + "ee" * 20,
    value=10_000,
    payment="{}",
    requirements="{}",
    requirements_hash="r",
    confirm=True,
    purchase_data=None,
    signer=SIGNER,
    holder="p-1",
    now_ms=1_000,
)
BUDGET = GasBudget("base-sepolia", 1_000, 1_000, 60_000)
OTHERS = [replace(NEW, id=f"s-{index}", key=structs.replace(KEY, nonce=f"0x{index:064x}")) for index in range(60)]


UNBOUNDED = GasBudget("base-sepolia", 10**9, 10**9, 1_000)
BOUNDS = ClaimBounds("base-sepolia", 10**9, 10**9)


def sign(nonce: int, _won: object) -> tuple[bytes, str]:
    return b"raw-%d" % nonce, f"0x{nonce:064x}"


def refuse(_nonce: int, _won: object) -> tuple[bytes, str]:
    msg = "the policy forbids it"
    raise ValueError(msg)


@asynccontextmanager
async def with_lane(tmp_path: Path) -> AsyncIterator[Database]:
    """A database with a signer's lane."""
    opened = open_database(str(tmp_path / "hub.db"))
    await opened.run(open_lane("base-sepolia", SIGNER, 7))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with with_lane(tmp_path) as database:
        yield database


async def claim(
    database: Database, *requests: SettlementRequest, budget: GasBudget | None = None
) -> list[SettlementClaim]:
    return await database.run(claim_and_sign(requests, sign, budget or UNBOUNDED, BOUNDS))


async def claimed(database: Database, new: NewSettlement = NEW, *, key: IdempotencyKey | None = None) -> Settlement:
    (won,) = await claim(database, SettlementRequest(new, key=key))
    assert won.outcome is ClaimedSettlement.WON
    assert won.settlement is not None
    return won.settlement


async def test_an_amount_of_256_bits_is_claimed_and_moved_wherever_the_database_is(database: Database) -> None:
    largest = replace(NEW, value=2**256 - 1)
    both = await claim(database, SettlementRequest(largest), SettlementRequest(OTHERS[3]))
    assert [one.outcome for one in both] == [ClaimedSettlement.WON] * 2
    row = both[0].settlement
    assert row is not None
    assert row.value == largest.value
    (moved,) = await database.run(move_all([(row, Move(State.MINED, 2_000, block_number=1, block_hash="0x1"))]))
    assert moved is not None
    assert moved.settlement.value == largest.value
    (lost,) = await claim(database, SettlementRequest(replace(NEW, id="s-2", key=OTHERS[3].key)))
    assert lost.outcome is ClaimedSettlement.LOST


async def claimed_again(database: Database, row: Settlement, key: IdempotencyKey | None = None) -> SettlementClaim:
    (again,) = await claim(database, SettlementRequest(replace(NEW, id="s-2"), row, key))
    return again


async def failed(database: Database, proof: Proof = Proof.REVERTED) -> Settlement:
    moved = await database.run(move(await claimed(database), Move(State.FAILED, 2_000, proof=proof, error="because")))
    assert moved is not None
    return moved.settlement


async def page_of(
    database: Database,
    holder: str = "p-1",
    *,
    before_ms: int = 10_000,
    now_ms: int = 10_000,
    limit: int = 10,
    after: tuple[int, str] | None = None,
) -> SettlementPage:
    return await list_unfinished(database, holder, before_ms=before_ms, now_ms=now_ms, limit=limit, after=after)


async def record(database: Database, key: str) -> None:
    await database.run(record_answer(IdempotencyKey("payer", key, "other"), {"success": False}, 1))


@unit_of_work
def one_statement(sql: str) -> Steps[None]:
    yield Statement(sql)


async def count(database: Database, table: str) -> int:
    rows = await database.read(Statement(f"SELECT COUNT(*) AS n FROM {table}"))  # noqa: S608 - the test's own names
    number: int = rows[0]["n"]
    return number


async def test_one_of_many_claims_wins_and_the_others_see_it(database: Database) -> None:
    requests = [SettlementRequest(replace(NEW, id=f"s-{index}")) for index in range(50)]
    claims = [claims[0] for claims in await asyncio.gather(*(claim(database, request) for request in requests))]
    (winner,) = (one for one in claims if one.outcome is ClaimedSettlement.WON)
    assert winner.settlement is not None
    assert {one.settlement.id for one in claims if one.settlement is not None} == {winner.settlement.id}
    assert await count(database, "raw_transactions") == 1
    assert winner.settlement.value == NEW.value


async def test_nonces_are_dense_and_a_refused_signature_leaves_no_gap(database: Database) -> None:
    def unit(index: int) -> Unit[list[SettlementClaim]]:
        return claim_and_sign([SettlementRequest(OTHERS[index])], refuse if index % 3 == 0 else sign, UNBOUNDED, BOUNDS)

    outcomes = await asyncio.gather(*(database.run(unit(index)) for index in range(60)), return_exceptions=True)
    assert sum(isinstance(outcome, ValueError) for outcome in outcomes) == 20
    stored = await stored_from(database, "base-sepolia", SIGNER, (0, 0, ""), 100)
    assert [one.transaction.signer_nonce for one in stored] == list(range(7, 47))
    assert {one.holder for one in stored} == {"p-1"}
    assert await count(database, "settlements") == 40


async def test_several_settlements_share_one_transaction_and_each_is_moved_by_itself(database: Database) -> None:
    await record(database, "taken")
    first = await claimed(database, OTHERS[0])
    requests = [
        SettlementRequest(OTHERS[0]),
        SettlementRequest(OTHERS[1]),
        SettlementRequest(OTHERS[2], key=IdempotencyKey("payer", "taken", "mine")),
        SettlementRequest(OTHERS[3]),
    ]
    claims = await claim(database, *requests)
    assert [one.outcome for one in claims] == [
        ClaimedSettlement.LOST,
        ClaimedSettlement.WON,
        ClaimedSettlement.KEY_TAKEN,
        ClaimedSettlement.WON,
    ]
    won = [one.settlement for one in claims if one.outcome is ClaimedSettlement.WON and one.settlement is not None]
    assert {row.transaction_hash for row in won} == {f"0x{8:064x}"}
    assert first.transaction_hash == f"0x{7:064x}"
    for row in won:
        assert [raw.signer_nonce for raw in await transactions_of(database, row)] == [8]
    assert [row.id for row in await settlements_of(database, ("base-sepolia", SIGNER, 8))] == ["s-1", "s-3"]
    done, failure = Move(State.CONFIRMED, 2_000), Move(State.FAILED, 2_000, proof=Proof.REVERTED)
    moved = await database.run(move_all([(won[0], done), (won[1], failure), (won[0], failure)]))
    assert [one and one.settlement.state for one in moved] == [State.CONFIRMED, State.FAILED, None]


async def test_what_a_transaction_is_not_signed_for_takes_no_nonce(database: Database) -> None:
    await claimed(database)
    assert [one.outcome for one in await claim(database, SettlementRequest(NEW))] == [ClaimedSettlement.LOST]
    assert (await claimed(database, OTHERS[0])).transaction_hash == f"0x{8:064x}"


async def test_a_settlement_signed_for_again_keeps_its_attempt_and_names_the_new_transaction(
    database: Database,
) -> None:
    budget = GasBudget("base-sepolia", 1_000, 1_000, 60_000)
    first, second = await claim(database, SettlementRequest(OTHERS[0]), SettlementRequest(OTHERS[1]))
    assert first.settlement is not None
    again = await database.run(sign_again(first.settlement, SIGNER, sign_alone, budget, gas=600))
    assert again is not None
    assert (again.settlement.state, again.settlement.attempt) == (State.SIGNED, 1)
    assert again.settlement.transaction_hash == again.raw.hash == f"0x{8:064x}"
    assert [raw.signer_nonce for raw in await transactions_of(database, again.settlement)] == [8, 7]
    assert second.settlement is not None
    assert [raw.signer_nonce for raw in await transactions_of(database, second.settlement)] == [7]
    # The row has moved since, and the hour has no room for another.
    with pytest.raises(Overtaken):
        await database.run(sign_again(first.settlement, SIGNER, sign_alone, budget, gas=1))
    assert await database.run(sign_again(second.settlement, SIGNER, sign_alone, budget, gas=600)) is None
    assert await next_nonce_of(database, "base-sepolia", SIGNER) == 9


def sign_alone(nonce: int) -> tuple[bytes, str]:
    return sign(nonce, ())


async def test_a_key_bound_to_another_request_leaves_nothing_of_the_claim(database: Database) -> None:
    await record(database, "k")
    (taken,) = await claim(database, SettlementRequest(NEW, key=IdempotencyKey("payer", "k", "mine")))
    assert (taken.outcome, taken.settlement) == (ClaimedSettlement.KEY_TAKEN, None)
    assert await find_settlement(database, KEY) is None
    assert await count(database, "raw_transactions") == 0
    known = await find_key(database, IdempotencyKey("payer", "k", ""))
    assert known is not None
    assert known.fingerprint == "other"


async def test_a_claim_that_was_lost_leaves_its_key_free(database: Database) -> None:
    await claimed(database)
    assert [
        one.outcome for one in await claim(database, SettlementRequest(NEW, key=IdempotencyKey("payer", "k", "mine")))
    ] == [ClaimedSettlement.LOST]
    assert await find_key(database, IdempotencyKey("payer", "k", "")) is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 600_000)), max_size=100))
def test_no_hour_goes_over_the_budget_and_strangers_leave_the_share(requests: list[tuple[bool, int]]) -> None:
    now_ms = 1_700_000_000_000
    granted: list[tuple[bool, int]] = []

    async def settle_all(directory: str) -> None:
        nonlocal now_ms
        database = open_database(f"{directory}/hub.db")
        await database.run(open_lane("base-sepolia", SIGNER, 0))
        for index, (is_trusted, pause_ms) in enumerate(requests):
            now_ms += pause_ms
            new = replace(NEW, id=f"s-{index}", key=structs.replace(KEY, nonce=f"0x{index:064x}"), tenant=f"t-{index}")
            request = SettlementRequest(new, is_trusted=is_trusted, gas=1)
            (one,) = await claim(database, request, budget=GasBudget("base-sepolia", 10, 5, now_ms))
            recent = [known for known in granted if known[1] // 60_000 > now_ms // 60_000 - 60]
            if one.outcome is ClaimedSettlement.OVER_BUDGET:
                assert len(recent) == 10 or (not is_trusted and sum(not known[0] for known in recent) == 5)
                continue
            assert len(recent) < 10
            assert is_trusted or sum(not known[0] for known in recent) < 5
            granted.append((is_trusted, now_ms))
        await database.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(settle_all(directory))


async def test_of_two_who_saw_the_same_row_one_moves_it(database: Database) -> None:
    row = await claimed(database)
    moves = [Move(State.CONFIRMED, 2_000, hand_out=True), Move(State.BROADCAST, 2_000)]
    results = await asyncio.gather(*(database.run(move(row, one)) for one in moves))
    assert sum(result is not None for result in results) == 1
    assert await count(database, "settlement_events") == 3


async def test_a_transition_outside_the_table_is_a_fault(database: Database) -> None:
    row = await claimed(database)
    with pytest.raises(ValueError, match="cannot go from SIGNED to CLAIMED"):
        await database.run(move(row, Move(State.CLAIMED, 2_000)))


async def test_a_success_is_handed_out_once(database: Database) -> None:
    moved = await database.run(move(await claimed(database), Move(State.CONFIRMED, 2_000)))
    assert moved is not None
    row = moved.settlement
    assert not moved.handed_out
    keys = [IdempotencyKey("payer", f"k-{index}", "f") for index in range(20)]
    given = await asyncio.gather(*(database.run(hand_out(row, key, 3_000)) for key in keys))
    assert sum(given) == 1
    assert await count(database, "idempotency") == 1


async def test_who_moves_a_row_has_its_success_unless_somebody_has_it_already(database: Database) -> None:
    taken = await database.run(move(await claimed(database), Move(State.BROADCAST, 2_000, hand_out=True)))
    assert taken is not None
    assert (taken.handed_out, taken.settlement.handed_out_ms) == (True, 2_000)
    proven = await database.run(move(taken.settlement, Move(State.CONFIRMED, 3_000, hand_out=True)))
    assert proven is not None
    assert (proven.handed_out, proven.settlement.state) == (False, State.CONFIRMED)
    assert proven.settlement.handed_out_ms == 2_000


async def test_a_failure_is_handed_out_to_nobody(database: Database) -> None:
    end = Move(State.FAILED, 2_000, proof=Proof.EXPIRED, error="over", hand_out=True)
    moved = await database.run(move(await claimed(database), end))
    assert moved is not None
    assert (moved.handed_out, moved.settlement.handed_out_ms) == (False, None)


async def test_what_is_not_accepted_yet_is_not_handed_out(database: Database) -> None:
    row = await claimed(database)
    assert not await database.run(hand_out(row, None, 3_000))


@pytest.mark.parametrize("proof", list(Proof))
async def test_only_a_payment_that_may_still_succeed_is_claimed_again(database: Database, proof: Proof) -> None:
    row = await failed(database, proof)
    again = await claimed_again(database, row)
    retryable = proof in {Proof.NEVER_SENT, Proof.REVERTED}
    assert (again.outcome is ClaimedSettlement.WON, row.may_be_claimed_again(None)) == (retryable, retryable)
    assert again.settlement is not None
    assert again.settlement.id == row.id
    assert again.settlement.attempt == (2 if retryable else 1)


async def test_of_many_presentations_one_starts_the_next_attempt_and_there_are_three(database: Database) -> None:
    row = await failed(database)
    for attempt in range(2, PAYMENT_ATTEMPTS_MAX + 1):
        claims = await asyncio.gather(*(claimed_again(database, row) for _ in range(10)))
        (winner,) = (one for one in claims if one.outcome is ClaimedSettlement.WON)
        assert winner.settlement is not None
        assert winner.settlement.attempt == attempt
        assert await transactions_of(database, winner.settlement) == [winner.raw]
        moved = await database.run(move(winner.settlement, Move(State.FAILED, 2_000, proof=Proof.REVERTED)))
        assert moved is not None
        row = moved.settlement
    assert not row.may_be_claimed_again(None)
    assert (await claimed_again(database, row)).outcome is ClaimedSettlement.LOST


async def test_an_attempt_s_keys_keep_its_failure_when_the_next_begins(database: Database) -> None:
    row = await claimed(database, key=IdempotencyKey("payer", "k-1", "f"))
    moved = await database.run(move(row, Move(State.FAILED, 2_000, proof=Proof.REVERTED, error="because")))
    assert moved is not None
    await claimed_again(database, moved.settlement, IdempotencyKey("payer", "k-2", "f"))
    first, second = (
        await find_key(database, IdempotencyKey("payer", "k-1", "")),
        await find_key(database, IdempotencyKey("payer", "k-2", "")),
    )
    assert first is not None
    assert second is not None
    assert first.answer == {"success": False, "reason": "because", "transaction": row.transaction_hash}
    assert (second.answer, second.attempt) == (None, 2)


@pytest.mark.parametrize(("chain_nonce", "expected"), [(3, 8), (8, 8), (12, 12)])
async def test_a_lane_opens_at_the_larger_of_chain_and_store(
    database: Database, chain_nonce: int, expected: int
) -> None:
    await claimed(database)
    assert await database.run(open_lane("base-sepolia", SIGNER, chain_nonce)) == expected


async def test_unfinished_rows_come_in_pages_that_end(database: Database) -> None:
    for index in range(7):
        await claimed(database, replace(OTHERS[index], now_ms=1_000 + index // 3))
    seen: list[str] = []
    page = await page_of(database, limit=2)
    while page.after is not None:
        seen += [row.id for row in page.settlements]
        page = await page_of(database, limit=2, after=page.after)
    assert seen == [f"s-{index}" for index in range(7)]
    assert (await page_of(database, before_ms=999)).after is None
    assert (await page_of(database, "p-2")).after is None


async def test_a_row_that_nobody_can_read_is_named_and_set_aside_ever_longer(database: Database) -> None:
    await claimed(database, OTHERS[0])
    await claimed(database, OTHERS[1])
    await database.run(one_statement("UPDATE settlements SET kind = 'gift' WHERE id = 's-0'"))
    page = await page_of(database)
    assert (page.unreadable, [row.id for row in page.settlements]) == (["s-0"], ["s-1"])
    asked = [await database.run(set_aside("s-0", "p-1", 10_000)) for _ in range(13)]
    assert asked == [(times, min(2**times, 3600)) for times in range(1, 14)]
    assert (await page_of(database, now_ms=10_000)).unreadable == []
    assert (await page_of(database, now_ms=3_610_000)).unreadable == ["s-0"]
    assert await count_set_aside(database, 5) == {"base-sepolia": 1}
    assert await database.run(set_aside("s-1", "p-2", 10_000)) == (0, 0)


async def test_who_was_taken_over_writes_nothing_more(database: Database) -> None:
    for process in ("p-1", "p-2"):
        await database.run(join(process, 5_000, 1_000, is_alone=False))
    row = await claimed(database)
    assert await database.run(take_over("p-2", 4_000)) == 0  # its process lives
    assert await database.run(renew("p-2", 9_000, 4_000))
    assert await database.run(take_over("p-2", 5_000)) == 1
    for late in (Move(State.CONFIRMED, 6_000), Move(State.FAILED, 6_000, proof=Proof.REVERTED)):
        assert await database.run(move(row, late)) is None
    assert await database.run(name_transaction(row, "0x" + "ab" * 32, 6_000)) is None
    taken = await find_settlement(database, KEY)
    assert taken is not None
    assert (taken.holder, taken.state, taken.version) == ("p-2", row.state, row.version)
    assert await database.run(move(taken, Move(State.CONFIRMED, 6_000))) is not None
    assert not await database.run(renew("p-1", 9_000, 6_000))  # it was too late


async def test_who_died_before_the_clock_was_put_back_is_not_believed_to_live_until_that_time_comes_again(
    database: Database,
) -> None:
    day_ms = 86_400_000
    await database.run(join("p-1", day_ms + 10_000, day_ms, is_alone=False))
    await database.run(join("p-2", day_ms + 10_000, day_ms, is_alone=False))
    await claimed(database)
    assert await database.run(take_over("p-2", 0)) == 0  # nobody has said anything since
    assert await database.run(renew("p-2", 10_000, 0))
    assert await database.run(take_over("p-2", 9_000)) == 0  # who lives says so until then
    assert await database.run(take_over("p-2", 10_000)) == 1


async def test_a_lease_has_one_holder_and_fences_off_the_one_before(database: Database) -> None:
    for process in ("p-1", "p-2"):
        await database.run(join(process, 5_000, 1_000, is_alone=False))
    first = await database.run(take_lease("lane", "p-1", 1_000))
    assert first is not None
    assert await database.run(take_lease("lane", "p-1", 2_000)) == first
    assert await database.run(take_lease("lane", "p-2", 2_000)) is None
    assert await database.run(renew("p-2", 9_000, 2_000))
    second = await database.run(take_lease("lane", "p-2", 5_000))
    assert second is not None
    assert second.token > first.token
    filler = RawTransaction(b"raw", "0x" + "ab" * 32, "base-sepolia", SIGNER, 3, 6_000)
    with pytest.raises(LeaseLost):
        await database.run(store_filler(first, filler, BUDGET, gas=21))
    assert await count(database, "raw_transactions") == 0
    assert await database.run(store_filler(second, filler, BUDGET, gas=21))
    await database.run(leave("p-2"))
    assert await database.run(take_lease("lane", "p-3", 5_000)) is not None


async def test_a_nonce_that_something_was_signed_under_meanwhile_is_not_filled(database: Database) -> None:
    await database.run(join("p-1", 5_000, 1_000, is_alone=True))
    lease = await database.run(take_lease("lane", "p-1", 1_000))
    assert lease is not None
    signed = RawTransaction(b"raw", "0x" + "ab" * 32, "base-sepolia", SIGNER, 3, 6_000)
    filler = RawTransaction(b"nothing", "0x" + "cd" * 32, "base-sepolia", SIGNER, 3, 6_000)
    await database.run(add_signed(signed, []))
    assert not await database.run(store_filler(lease, filler, BUDGET, gas=21))
    assert await count(database, "raw_transactions") == 1


async def test_an_outcome_whose_block_is_gone_is_open_again_and_its_keys_with_it(database: Database) -> None:
    row = await claimed(database, key=IdempotencyKey("payer", "k", "f"))
    failure = Move(State.FAILED, 2_000, block_number=9, block_hash="0x09", proof=Proof.REVERTED, error="because")
    assert await database.run(move(row, failure)) is not None
    assert await list_blocks(database, "base-sepolia", 9) == [(9, "0x09")]
    assert await list_blocks(database, "base-sepolia", 10) == []
    (found,) = (await list_in_block(database, "base-sepolia", 9, "0x09", 10)).settlements
    opened = await database.run(reopen(found, "p-2", 3_000, "gone"))
    assert opened is not None
    assert (opened.state, opened.holder, opened.proof, opened.block_hash) == (State.BROADCAST, "p-2", None, None)
    assert await database.run(reopen(found, "p-3", 3_000, "gone")) is None
    key = await find_key(database, IdempotencyKey("payer", "k", ""))
    assert key is not None
    assert key.answer is None
    with pytest.raises(ValueError, match="cannot go from BROADCAST to BROADCAST"):
        await database.run(reopen(opened, "p-2", 3_000, "gone"))


async def test_the_events_replay_to_the_row(database: Database) -> None:
    row = await failed(database)
    await claimed_again(database, row)
    current = await find_settlement(database, KEY)
    events = await database.read(Statement("SELECT * FROM settlement_events ORDER BY version"))
    state = None
    for event in events:
        assert event["from_state"] == state
        state = event["to_state"]
    assert current is not None
    assert (state, events[-1]["version"], events[-1]["attempt"]) == (current.state, current.version, current.attempt)


@pytest.mark.sqlite_only("it reads SQLite's plan")
async def test_what_is_unfinished_is_counted_without_looking_at_what_ended(tmp_path: Path) -> None:
    """After each pass, and for whoever reads the metrics: however much was settled before."""
    queries = load_queries("settlements.sql")
    database = open_database(str(tmp_path / "hub.db"))
    for query in (queries.count_set_aside(failures=5), queries.count_unfinished()):
        found = [line for line in await plan_of(database, query) if " settlements" in line]
        assert found == ["SCAN settlements USING INDEX settlements_unfinished"]
    await database.close()
