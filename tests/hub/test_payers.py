"""What counts against the hour's gas, and what a payer may have signed, as units of work (contract 5.2; A-24)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs

from tests.hub.test_store import (
    BUDGET,
    KEY,
    NEW,
    OTHERS,
    SIGNER,
    claim,
    claimed,
    count,
    with_lane,
)
from tollkeeper.core.limits import PAYER_FAILURES_MAX, PAYER_UNDER_WAY_MAX
from tollkeeper.core.settlement.states import Proof, State
from tollkeeper.hub.settlement.concurrent_payers import UNREAD
from tollkeeper.storage.engine.database import Database, Statement
from tollkeeper.storage.hub.claims import ClaimedSettlement, NewSettlement, SettlementClaim, SettlementRequest
from tollkeeper.storage.hub.leases import join, take_lease
from tollkeeper.storage.hub.payers import Overdrawn, Suspended
from tollkeeper.storage.hub.settlements import Move, move
from tollkeeper.storage.hub.transactions import RawTransaction, replace_transaction, store_filler


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with with_lane(tmp_path) as database:
        yield database


async def spent(database: Database) -> list[tuple[int, int, int]]:
    rows = await database.read(Statement("SELECT minute, is_trusted, gas FROM gas_spent ORDER BY minute, is_trusted"))
    return [(row["minute"], row["is_trusted"], row["gas"]) for row in rows]


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_what_replaces_a_transaction_counts_what_its_nonce_has_not_counted_within_the_hour(
    database: Database, *, is_trusted: bool
) -> None:
    data = "{}" if is_trusted else None
    request = SettlementRequest(replace(NEW, now_ms=60_000, purchase_data=data), is_trusted=is_trusted, gas=100)
    (won,) = await claim(database, request, budget=BUDGET)
    assert won.raw is not None
    await database.run(join("p-1", 10**9, 1_000, is_alone=False))
    lease = await database.run(take_lease("lane", "p-1", 1_000))
    assert lease is not None

    async def replaced(minute: int, gas: int) -> None:
        assert won.raw is not None
        new = replace(won.raw, hash=f"0x{minute}", created_ms=minute * 60_000)
        budget = replace(BUDGET, now_ms=minute * 60_000)
        unit = replace_transaction(lease, won.raw, new, budget, gas=gas, frees_nonce=False)
        assert await database.run(unit)
        assert not await database.run(replace_transaction(lease, won.raw, new, budget, gas=gas, frees_nonce=False))

    trusted = int(is_trusted)
    await replaced(50, 100)  # of the two one is mined
    assert await spent(database) == [(1, trusted, 100)]
    await replaced(55, 130)
    assert await spent(database) == [(1, trusted, 100), (55, trusted, 30)]
    await replaced(61, 130)  # the first one's hour is over
    assert await spent(database) == [(55, trusted, 30), (61, trusted, 100)]
    await replaced(62, 21)
    assert await spent(database) == [(55, trusted, 30), (61, trusted, 100)]


async def test_a_filler_counts_and_not_against_the_strangers(database: Database) -> None:
    await database.run(join("p-1", 10**9, 1_000, is_alone=False))
    lease = await database.run(take_lease("lane", "p-1", 1_000))
    assert lease is not None
    filler = RawTransaction(b"raw", "0x" + "ab" * 32, "base-sepolia", SIGNER, 3, 6_000)
    assert await database.run(store_filler(lease, filler, BUDGET, gas=21))
    assert not await database.run(store_filler(lease, filler, BUDGET, gas=21))
    assert await spent(database) == [(1, 1, 21)]


async def failed_at(database: Database, new: NewSettlement, now_ms: int, *, cost_gas: bool = True) -> None:
    row = await claimed(database, new)
    failure = Move(State.FAILED, now_ms, proof=Proof.REVERTED, error="because", cost_gas=cost_gas)
    assert await database.run(move(row, failure))


async def asked(database: Database, index: int, now_ms: int, **changes: Any) -> SettlementClaim:
    new = replace(OTHERS[index], value=10, now_ms=now_ms)
    (answer,) = await claim(database, SettlementRequest(new, **changes))
    return answer


async def test_what_a_payer_has_under_way_is_taken_from_its_balance(database: Database) -> None:
    outcomes = [(await asked(database, index, 1_000, balance=25)).outcome for index in range(2)]
    assert outcomes == [ClaimedSettlement.WON, ClaimedSettlement.WON]
    refused = await asked(database, 2, 1_000, balance=25)
    assert (refused.outcome, refused.settlement, refused.raw) == (ClaimedSettlement.OBSTRUCTED, None, None)
    assert refused.obstacle == Overdrawn({OTHERS[0].key.nonce: 10, OTHERS[1].key.nonce: 10})
    assert (
        await asked(database, 1, 1_000, balance=25)
    ).outcome is ClaimedSettlement.LOST  # the same payment is not two
    used = frozenset({OTHERS[0].key.nonce})
    assert (await asked(database, 2, 1_000, balance=25, used=used)).outcome is ClaimedSettlement.WON
    assert (await asked(database, 3, 1_000)).outcome is ClaimedSettlement.WON  # where no balance is known
    stranger = replace(OTHERS[4], key=structs.replace(OTHERS[4].key, payer="0x" + "12" * 20), value=25)
    (other,) = await claim(database, SettlementRequest(stranger, balance=25))
    assert other.outcome is ClaimedSettlement.WON


async def test_a_balance_that_another_payment_has_just_used_up_covers_nothing(database: Database) -> None:
    """It was simulated before that one was mined, and would fail in its block, at our cost."""
    refused = await asked(database, 0, 1_000, balance=9)
    assert (refused.outcome, refused.obstacle) == (ClaimedSettlement.OBSTRUCTED, Overdrawn({}))
    assert (await asked(database, 0, 1_000, balance=UNREAD)).outcome is ClaimedSettlement.WON


async def test_what_is_mined_or_failed_is_under_way_no_more(database: Database) -> None:
    for index, to in enumerate((State.MINED, State.CONFIRMED, State.FAILED)):
        row = (await asked(database, index, 1_000, balance=10)).settlement
        assert row is not None
        done = Move(to, 1_000, block_number=1, proof=Proof.EXPIRED if to is State.FAILED else None, error="e")
        assert await database.run(move(row, done))


async def test_a_payer_that_failed_too_often_at_our_cost_is_suspended_until_the_hour_is_over(
    database: Database,
) -> None:
    for index in range(PAYER_FAILURES_MAX):
        await failed_at(database, replace(OTHERS[index], now_ms=60_000 * index), 60_000 * index)
    now_ms = 60_000 * PAYER_FAILURES_MAX
    refused = await asked(database, 20, now_ms)
    assert refused.outcome is ClaimedSettlement.OBSTRUCTED
    assert refused.obstacle == Suspended(PAYER_FAILURES_MAX, 0, 3600 - now_ms // 1000)
    again = await asked(database, 20, 3_600_000)  # the first of them is an hour old
    assert again.outcome is ClaimedSettlement.WON
    third = await asked(database, 21, 3_600_000)  # what is under way may fail, too
    assert third.obstacle == Suspended(PAYER_FAILURES_MAX - 1, 1, 2)
    assert (await asked(database, 21, 2 * 3_600_000)).outcome is ClaimedSettlement.WON


async def test_what_cost_nothing_suspends_nobody_and_old_failures_are_forgotten(database: Database) -> None:
    for index in range(2 * PAYER_FAILURES_MAX):
        await failed_at(database, OTHERS[index], 1_000, cost_gas=False)
    assert await count(database, "payer_failures") == 0
    for index, now_ms in ((30, 1_000), (31, 61_000), (32, 3_600_000)):
        await failed_at(database, OTHERS[index], now_ms)
    rows = await database.read(Statement("SELECT minute, failures FROM payer_failures ORDER BY minute"))
    assert [(row["minute"], row["failures"]) for row in rows] == [(1, 1), (60, 1)]


async def test_a_payer_has_so_many_payments_under_way_at_most(database: Database) -> None:
    news = [
        replace(NEW, id=f"m-{n}", key=structs.replace(KEY, nonce=f"0x{n:064x}")) for n in range(PAYER_UNDER_WAY_MAX)
    ]
    answers = await claim(database, *(SettlementRequest(new) for new in news))
    assert {answer.outcome for answer in answers} == {ClaimedSettlement.WON}
    refused = (await claim(database, SettlementRequest(NEW)))[0]
    assert refused.obstacle == Suspended(0, PAYER_UNDER_WAY_MAX, 2)
