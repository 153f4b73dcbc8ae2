"""Batches of several workers in one commit: each is answered as if it had been alone (contract 4.3)."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.storage.test_purchases import NOW_MS, Shop, key, shop
from tollkeeper.core.paygates import PayGate
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.database import ConstraintError, Outcome, StorageError
from tollkeeper.storage.joined_spends import SPENDS_MAX, JoinedSpends
from tollkeeper.storage.remote_messages import Spends
from tollkeeper.storage.spending import HeldSpend
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
    return [result.outcome for result in outcome.result]


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
    ended = Spends(2, of(shop, gate, 1).spends, NOW_MS, is_again=False, ended=[(first.spends[0].wish.call_id, 200)])
    before = commits(shop)
    await told(joined, ended, of(shop, gate, 1))
    assert commits(shop) - before == 1
    assert await shop.purchases.call_state(first.spends[0].wish.call_id) == "DONE"


async def test_a_closed_database_is_told_to_each(shop: Shop) -> None:
    gate = await shop.gate(9)
    await shop.bought(gate)
    batches = [of(shop, gate, 1) for _ in range(2)]
    await shop.database.close()
    answers = await told(JoinedSpends(shop.database), *batches)
    assert all(isinstance(answer.error, StorageError) for answer in answers)
