"""The hub's units of work, two callers at a time: one of them wins (contract 5.2; security A-25)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.transactions import Kind, Proof, State
from tollkeeper.core.wire import PaymentKey
from tollkeeper.storage import Database, open_database
from tollkeeper.storage.database import Statement, Unit
from tollkeeper.storage.hub import (
    Claim,
    IdempotencyKey,
    KeyTaken,
    Move,
    NewSettlement,
    Settlement,
    claim_and_sign,
    find_key,
    find_settlement,
    hand_out,
    list_unfinished,
    move,
    open_lane,
    raw_from_nonce,
    raws_of_settlement,
    reclaim_and_sign,
    record_answer,
)

SIGNER = "0x" + "aa" * 20
KEY = PaymentKey("base-sepolia", "0x" + "bb" * 20, "0x" + "cc" * 20, "0x" + "dd" * 32)
NEW = NewSettlement(
    id="s-1",
    key=KEY,
    kind=Kind.PURCHASE,
    pay_to="0x" + "ee" * 20,
    value=2**256 - 1,
    payment="{}",
    requirements="{}",
    requirements_hash="r",
    confirm=True,
    purchase_data=None,
    signer=SIGNER,
    now_ms=1_000,
)


def sign(nonce: int) -> tuple[bytes, str]:
    return b"raw-%d" % nonce, f"0x{nonce:064x}"


def refuse(_nonce: int) -> tuple[bytes, str]:
    msg = "the policy forbids it"
    raise ValueError(msg)


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = open_database(str(tmp_path / "hub.db"))
    await opened.run(open_lane("base-sepolia", SIGNER, 7))
    yield opened
    await opened.close()


async def claimed(database: Database, *, key: IdempotencyKey | None = None) -> Settlement:
    return (await database.run(claim_and_sign(NEW, key, sign))).settlement


async def failed(database: Database, proof: Proof = Proof.REVERTED) -> Settlement:
    moved = await database.run(move(await claimed(database), Move(State.FAILED, 2_000, proof=proof, error="because")))
    assert moved is not None
    return moved[0]


async def count(database: Database, table: str) -> int:
    rows = await database.read(Statement(f"SELECT COUNT(*) AS n FROM {table}"))  # noqa: S608 - the test's own names
    number: int = rows[0]["n"]
    return number


async def test_one_of_many_claims_wins_and_the_others_see_it(database: Database) -> None:
    news = [replace(NEW, id=f"s-{index}") for index in range(50)]
    claims = await asyncio.gather(*(database.run(claim_and_sign(new, None, sign)) for new in news))
    winners = [claim for claim in claims if claim.won]
    assert len(winners) == 1
    assert {claim.settlement.id for claim in claims} == {winners[0].settlement.id}
    assert await count(database, "raw_transactions") == 1
    assert winners[0].settlement.value == 2**256 - 1


async def test_nonces_are_dense_and_a_refused_signature_leaves_no_gap(database: Database) -> None:
    def unit(index: int) -> Unit[Claim]:
        new = replace(NEW, id=f"s-{index}", key=replace(KEY, nonce=f"0x{index:064x}"))
        return claim_and_sign(new, None, refuse if index % 3 == 0 else sign)

    outcomes = await asyncio.gather(*(database.run(unit(index)) for index in range(60)), return_exceptions=True)
    assert sum(isinstance(outcome, ValueError) for outcome in outcomes) == 20
    stored = await raw_from_nonce(database, "base-sepolia", SIGNER, 0, 100)
    assert [raw.signer_nonce for raw in stored] == list(range(7, 47))
    assert await count(database, "settlements") == 40


async def test_a_key_bound_to_another_request_undoes_the_claim(database: Database) -> None:
    await database.run(record_answer(IdempotencyKey("k", "other"), {"success": False}, 1))
    with pytest.raises(KeyTaken):
        await claimed(database, key=IdempotencyKey("k", "mine"))
    assert await find_settlement(database, KEY) is None
    assert await count(database, "raw_transactions") == 0
    known = await find_key(database, "k")
    assert known is not None
    assert known.fingerprint == "other"


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
    row, handed = moved
    assert not handed
    keys = [IdempotencyKey(f"k-{index}", "f") for index in range(20)]
    given = await asyncio.gather(*(database.run(hand_out(row, key, 3_000)) for key in keys))
    assert sum(given) == 1
    assert await count(database, "idempotency") == 1


async def test_what_is_not_accepted_yet_is_not_handed_out(database: Database) -> None:
    row = await claimed(database)
    assert not await database.run(hand_out(row, None, 3_000))


@pytest.mark.parametrize("proof", list(Proof))
async def test_only_a_payment_that_may_still_succeed_is_claimed_again(database: Database, proof: Proof) -> None:
    row = await failed(database, proof)
    again = await database.run(reclaim_and_sign(row, replace(NEW, id="s-2"), None, sign))
    retryable = proof in {Proof.NEVER_SENT, Proof.REVERTED}
    assert (again.won, row.may_be_claimed_again) == (retryable, retryable)
    assert again.settlement.id == row.id
    assert again.settlement.attempt == (2 if retryable else 1)


async def test_of_many_presentations_one_starts_the_next_attempt_and_there_are_three(database: Database) -> None:
    row = await failed(database)
    for attempt in range(2, PAYMENT_ATTEMPTS_MAX + 1):
        claims = await asyncio.gather(*(database.run(reclaim_and_sign(row, NEW, None, sign)) for _ in range(10)))
        (winner,) = (claim for claim in claims if claim.won)
        assert winner.settlement.attempt == attempt
        assert await raws_of_settlement(database, winner.settlement) == [winner.raw]
        moved = await database.run(move(winner.settlement, Move(State.FAILED, 2_000, proof=Proof.REVERTED)))
        assert moved is not None
        row = moved[0]
    assert not row.may_be_claimed_again
    assert not (await database.run(reclaim_and_sign(row, NEW, None, sign))).won


async def test_an_attempt_s_keys_keep_its_failure_when_the_next_begins(database: Database) -> None:
    row = await claimed(database, key=IdempotencyKey("k-1", "f"))
    moved = await database.run(move(row, Move(State.FAILED, 2_000, proof=Proof.REVERTED, error="because")))
    assert moved is not None
    await database.run(reclaim_and_sign(moved[0], NEW, IdempotencyKey("k-2", "f"), sign))
    first, second = await find_key(database, "k-1"), await find_key(database, "k-2")
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
        new = replace(NEW, id=f"s-{index}", key=replace(KEY, nonce=f"0x{index:064x}"), now_ms=1_000 + index // 3)
        await database.run(claim_and_sign(new, None, sign))
    seen: list[str] = []
    after: Settlement | None = None
    while page := await list_unfinished(database, 10_000, 2, after):
        seen += [row.id for row in page]
        after = page[-1]
    assert seen == [f"s-{index}" for index in range(7)]
    assert await list_unfinished(database, 999, 2) == []


async def test_the_events_replay_to_the_row(database: Database) -> None:
    row = await failed(database)
    await database.run(reclaim_and_sign(row, NEW, None, sign))
    current = await find_settlement(database, KEY)
    events = await database.read(Statement("SELECT * FROM settlement_events ORDER BY version"))
    state = None
    for event in events:
        assert event["from_state"] == state
        state = event["to_state"]
    assert current is not None
    assert (state, events[-1]["version"], events[-1]["attempt"]) == (current.state, current.version, current.attempt)
