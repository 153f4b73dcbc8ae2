"""Batches of several workers in one commit: each is answered as if it had been alone (contract 4.3)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from msgspec.structs import replace

from tests.storage.test_purchases import NOW_MS, Shop, key, shop
from tollkeeper.core.paygates import PayGate
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.database import ConstraintError, Outcome, Statement, StorageError
from tollkeeper.storage.joined_spends import SPENDS_MAX, JoinedSpends
from tollkeeper.storage.purchase_rows import Purchase
from tollkeeper.storage.remote_messages import Spends
from tollkeeper.storage.spending import HeldSpend, KnownSpends
from tollkeeper.storage.sqlite import SqliteDatabase

__all__ = ["shop"]


async def told(joined: JoinedSpends, *batches: Spends) -> list[Outcome]:
    """The answers to batches that come in one turn of the loop, in their order."""
    answers: dict[int, Outcome] = {}
    done = asyncio.Event()

    def note(place: int, outcome: Outcome) -> None:
        assert place not in answers
        answers[place] = outcome
        if len(answers) == len(batches):
            done.set()

    for place, batch in enumerate(batches):
        joined.spend(batch, partial(note, place))
    await asyncio.wait_for(done.wait(), 30)
    return [answers[place] for place in range(len(batches))]


def outcomes(outcome: Outcome) -> list[Spend]:
    assert outcome.error is None
    return [result.outcome for result in (*outcome.result.others, *outcome.result.lefts)]


def lefts(outcome: Outcome) -> list[int | None]:
    assert outcome.error is None
    assert outcome.result.others == []
    return [*outcome.result.lefts]


def of(shop: Shop, gate: PayGate, count: int, *, is_again: bool = False) -> Spends:
    return Spends(1, [HeldSpend(key(1), None, shop.wish(gate)) for _ in range(count)], NOW_MS, is_again)


def commits(shop: Shop) -> int:
    assert isinstance(shop.database, SqliteDatabase)
    return shop.database.commits


async def test_batches_that_wait_together_are_one_commit_and_exact(shop: Shop) -> None:
    gate = await shop.gate(7)
    await shop.bought(gate)
    before = commits(shop)
    answers = await told(JoinedSpends(shop.database), *(of(shop, gate, count) for count in (3, 2, 5)))
    assert commits(shop) - before == 1
    assert [outcomes(answer) for answer in answers] == [
        [Spend.SPENT] * 3,
        [Spend.SPENT] * 2,
        [Spend.SPENT] * 2 + [Spend.EXHAUSTED] * 3,
    ]
    await shop.ledger_agrees()


async def test_no_more_spends_than_a_commit_may_have_are_joined(shop: Shop) -> None:
    gate = await shop.gate(9999)
    await shop.bought(gate)
    before = commits(shop)
    answers = await told(JoinedSpends(shop.database), *(of(shop, gate, SPENDS_MAX // 2) for _ in range(6)))
    assert commits(shop) - before == 3
    assert all(outcomes(answer) == [Spend.SPENT] * (SPENDS_MAX // 2) for answer in answers)
    await shop.ledger_agrees()


async def test_a_batch_that_breaks_the_commit_is_told_so_alone(shop: Shop) -> None:
    gate = await shop.gate(9)
    await shop.bought(gate)
    twice = of(shop, gate, 1)
    twice.spends *= 2
    answers = await told(JoinedSpends(shop.database), of(shop, gate, 2), twice, of(shop, gate, 1))
    assert isinstance(answers[1].error, ConstraintError)
    assert [outcomes(answers[0]), outcomes(answers[2])] == [[Spend.SPENT] * 2, [Spend.SPENT]]
    await shop.ledger_agrees()


async def test_what_is_asked_again_is_found_or_made_whatever_comes_with_it(shop: Shop) -> None:
    gate = await shop.gate(9)
    await shop.bought(gate)
    joined = JoinedSpends(shop.database)
    first = of(shop, gate, 2)
    await told(joined, first)
    again = Spends(2, [*first.spends, *of(shop, gate, 1).spends], NOW_MS, is_again=True)
    answers = await told(joined, of(shop, gate, 1), again, of(shop, gate, 1))
    assert [outcomes(answer) for answer in answers] == [[Spend.SPENT], [Spend.SPENT] * 3, [Spend.SPENT]]
    found = await shop.purchases.by_payment(key(1))
    assert found is not None
    assert found.remaining == 9 - 5
    await shop.ledger_agrees()


async def test_a_batch_and_its_asking_again_take_each_credit_once(shop: Shop) -> None:
    """A worker whose line broke asks again while its first asking still waits."""
    gate = await shop.gate(9)
    await shop.bought(gate)
    first = of(shop, gate, 2)
    again = Spends(2, first.spends, NOW_MS, is_again=True)
    answers = await told(JoinedSpends(shop.database), first, again)
    assert [outcomes(answer) for answer in answers] == [[Spend.SPENT] * 2, [Spend.SPENT] * 2]
    found = await shop.purchases.by_payment(key(1))
    assert found is not None
    assert found.remaining == 7
    await shop.ledger_agrees()


async def test_how_calls_ended_is_written_with_the_spends_that_brought_it(shop: Shop) -> None:
    gate = await shop.gate(9)
    await shop.bought(gate)
    joined = JoinedSpends(shop.database)
    first = of(shop, gate, 1)
    await told(joined, first)
    ended = Spends(2, of(shop, gate, 1).spends, NOW_MS, is_again=False, ended={200: [first.spends[0].wish.call_id]})
    before = commits(shop)
    await told(joined, ended, of(shop, gate, 1))
    assert commits(shop) - before == 1
    ends = await shop.database.read(Statement("SELECT id FROM single_calls WHERE state = 'DONE'"))
    assert [row["id"] for row in ends] == [first.spends[0].wish.call_id]


def known(shop: Shop, gate: PayGate, bought: Purchase, count: int, **changed: Any) -> Spends:
    calls = {shop.wish(gate).call_id: bought.number for _ in range(count)}
    columns = KnownSpends({(gate.id, gate.version)}, calls, count)
    return Spends(1, [], NOW_MS, known=replace(columns, **changed))


async def test_known_purchases_of_several_workers_are_spent_at_once_and_each_is_told_its_own(shop: Shop) -> None:
    gate = await shop.gate(9)
    bought = await shop.bought(gate)
    mixed = replace(known(shop, gate, bought, 2), spends=of(shop, gate, 1).spends)
    before = commits(shop)
    answers = await told(JoinedSpends(shop.database), known(shop, gate, bought, 3), mixed)
    assert commits(shop) - before == 1
    assert lefts(answers[0]) == [8, 7, 6]
    (other,), counts = answers[1].result.others, answers[1].result.lefts
    assert (other.outcome, other.purchase.remaining, counts) == (Spend.SPENT, 3, [5, 4])
    await shop.ledger_agrees()


async def test_known_purchases_are_not_touched_where_a_gate_is_another_or_credits_are_short(shop: Shop) -> None:
    gate = await shop.gate(2)
    bought = await shop.bought(gate)
    joined = JoinedSpends(shop.database)
    stale = known(shop, gate, bought, 1, gates={(gate.id, gate.version + 1)})
    assert [lefts(answer) for answer in await told(joined, stale, known(shop, gate, bought, 1))] == [[None], [None]]
    assert [lefts(answer) for answer in await told(joined, known(shop, gate, bought, 3))] == [[None] * 3]
    assert [lefts(answer) for answer in await told(joined, known(shop, gate, bought, 2))] == [[1, 0]]
    await shop.ledger_agrees()


async def test_what_was_taken_of_a_known_purchase_is_found_when_it_is_asked_again(shop: Shop) -> None:
    gate = await shop.gate(9)
    bought = await shop.bought(gate)
    joined = JoinedSpends(shop.database)
    taken, lost = known(shop, gate, bought, 2), known(shop, gate, bought, 1)
    await told(joined, taken)
    answers = await told(joined, *(replace(batch, is_again=True) for batch in (taken, lost)))
    assert outcomes(answers[0]) == [Spend.SPENT] * 2
    assert lefts(answers[1]) == [None]
    await shop.ledger_agrees()


async def test_a_known_purchase_and_its_asking_again_take_each_credit_once(shop: Shop) -> None:
    gate = await shop.gate(9)
    bought = await shop.bought(gate)
    first = known(shop, gate, bought, 2)
    answers = await told(JoinedSpends(shop.database), first, replace(first, is_again=True))
    assert lefts(answers[0]) == [8, 7]
    assert outcomes(answers[1]) == [Spend.SPENT] * 2
    await shop.ledger_agrees()


async def test_a_call_of_two_workers_breaks_neither(shop: Shop) -> None:
    gate = await shop.gate(9)
    bought = await shop.bought(gate)
    first = known(shop, gate, bought, 1)
    one, two = await told(JoinedSpends(shop.database), first, first)
    assert lefts(one) == [8]
    assert isinstance(two.error, ConstraintError)
    await shop.ledger_agrees()


async def test_a_closed_database_is_told_to_each(shop: Shop) -> None:
    gate = await shop.gate(9)
    await shop.bought(gate)
    batches = [of(shop, gate, 1) for _ in range(2)]
    await shop.database.close()
    answers = await told(JoinedSpends(shop.database), *batches)
    assert all(isinstance(answer.error, StorageError) for answer in answers)
