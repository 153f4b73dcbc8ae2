"""What is asked again after an answer was lost is done once, and only a dead process's calls are marked."""

from __future__ import annotations

import os
from typing import cast

import msgspec
import pytest

from tests.storage.test_purchases import NOW_MS, Shop, key, shop
from tollkeeper.core.paygates import PayGate
from tollkeeper.core.purchases import Claim, Spend
from tollkeeper.core.sealing import KeyRing
from tollkeeper.storage.database import Statement
from tollkeeper.storage.first_purchase import Claimed, ClaimPurchase
from tollkeeper.storage.purchase_rows import Purchase
from tollkeeper.storage.resealing import SEALED_TABLES, Resealing
from tollkeeper.storage.sealing import Sealing
from tollkeeper.storage.spending import HeldSpend, restore_call
from tollkeeper.storage.spending_again import spend_again, spend_of_payer_again

__all__ = ["shop"]


async def remaining(shop: Shop) -> int:
    await shop.ledger_agrees()
    (row,) = await shop.database.read(Statement("SELECT remaining FROM credits"))
    left: int = row["remaining"]
    return left


async def test_spends_that_were_taken_are_found_and_the_others_made(shop: Shop) -> None:
    gate = await shop.gate(3)
    await shop.bought(gate)
    taken, lost = HeldSpend(key(1), None, shop.wish(gate)), HeldSpend(key(1), None, shop.wish(gate))
    assert taken.key is not None
    assert (await shop.purchases.spend(taken.key, taken.wish, NOW_MS)).outcome is Spend.SPENT
    for _ in range(3):
        results = await shop.database.run(spend_again([taken, lost], NOW_MS))
        assert [result.outcome for result in results] == [Spend.SPENT, Spend.SPENT]
        assert await remaining(shop) == 1


async def test_a_last_credit_that_was_taken_is_not_exhausted_to_the_call_that_took_it(shop: Shop) -> None:
    gate = await shop.gate(1)
    await shop.bought(gate)
    taken, other = HeldSpend(key(1), None, shop.wish(gate)), HeldSpend(key(1), None, shop.wish(gate))
    await shop.database.run(spend_again([taken], NOW_MS))
    results = await shop.database.run(spend_again([other, taken], NOW_MS))
    assert [result.outcome for result in results] == [Spend.EXHAUSTED, Spend.SPENT]
    assert await remaining(shop) == 0


async def test_a_wallets_spend_is_made_once(shop: Shop) -> None:
    gate = await shop.gate(3)
    purchase = await shop.bought(gate)
    wish = msgspec.structs.replace(shop.wish(gate), header=None)
    for _ in range(2):
        result = await shop.database.run(spend_of_payer_again(purchase.payer, wish, NOW_MS))
        assert result.outcome is Spend.SPENT
    assert await remaining(shop) == 2


async def test_a_grant_is_made_once_and_its_call_finds_its_credit(shop: Shop) -> None:
    gate = await shop.gate(1)
    claim = await shop.claim(gate)
    assert claim.purchase is not None
    mine, other = shop.wish(gate), shop.wish(gate)
    told = [
        await shop.purchases.grant(claim.purchase, "0xhash", confirmed=True, wish=wish, now_ms=NOW_MS)
        for wish in (mine, mine, other)
    ]
    assert [result.outcome for result in told] == [Spend.SPENT, Spend.SPENT, Spend.STALE]
    assert await remaining(shop) == 0


async def claimed_by(shop: Shop, gate: PayGate, monkeypatch: pytest.MonkeyPatch) -> tuple[ClaimPurchase, Purchase]:
    """A claim that is won, and the last job that was run for it."""
    asked: list[ClaimPurchase] = []
    run_job = shop.database.run_job

    async def run(job: ClaimPurchase) -> Claimed:
        asked.append(job)
        return cast("Claimed", await run_job(job))

    with monkeypatch.context() as watched:
        watched.setattr(shop.database, "run_job", run)
        claim = await shop.claim(gate)
    assert claim.purchase is not None
    return asked[-1], claim.purchase


@pytest.mark.parametrize("is_granted", [False, True])
@pytest.mark.parametrize("is_retry", [False, True])
async def test_a_claim_is_its_writers_who_asks_again_though_it_was_granted_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, is_granted: bool, is_retry: bool
) -> None:
    gate = await shop.gate(3)
    if is_retry:
        failed = (await shop.claim(gate)).purchase
        assert failed is not None
        await shop.purchases.fail(failed, "never_sent", None, NOW_MS)
    job, purchase = await claimed_by(shop, gate, monkeypatch)
    if is_granted:  # by whoever waited for it
        await shop.purchases.grant(purchase, "0xhash", confirmed=True, wish=None, now_ms=NOW_MS)
    again: Claimed = await shop.database.run_job(msgspec.structs.replace(job, is_again=True))
    assert (again.won, again.purchase and again.purchase.id) == (Claim.WON, purchase.id)
    its = job.purchase_id if is_retry else "another"  # the id of a first attempt is nobody else's
    other = msgspec.structs.replace(job, is_again=True, purchase_id=its, pay_to=b"other", request=b"other")
    assert (await shop.database.run_job(other)).won is Claim.TAKEN
    wish = shop.wish(gate)
    told = await shop.purchases.grant(purchase, "0xhash", confirmed=True, wish=wish, now_ms=NOW_MS)
    assert told.outcome is Spend.SPENT
    assert await remaining(shop) == 2


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_claim_is_its_writers_though_its_row_was_sealed_anew_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, is_granted: bool
) -> None:
    gate = await shop.gate(3)
    job, purchase = await claimed_by(shop, gate, monkeypatch)
    if is_granted:
        await shop.purchases.grant(purchase, "0xhash", confirmed=True, wish=None, now_ms=NOW_MS)
    former = shop.purchases._sealing.ring  # noqa: SLF001 - what it seals with
    next_one = Sealing(KeyRing("next", {**former.keys, "next": b"n" * 32}), os.urandom)
    (table,) = [one for one in SEALED_TABLES if one.name == "purchases"]
    assert (await Resealing(shop.database, next_one).page(table, table.first)).moved
    again: Claimed = await shop.database.run_job(msgspec.structs.replace(job, is_again=True))
    assert again.won is Claim.WON


async def test_a_credit_is_given_back_once_and_whoever_asks_again_is_told_so(shop: Shop) -> None:
    gate = await shop.gate(3)
    await shop.bought(gate)
    wish = shop.wish(gate)
    assert (await shop.purchases.spend(key(1), wish, NOW_MS)).outcome is Spend.SPENT
    assert await shop.database.run(restore_call(wish.call_id, 502, NOW_MS)) == 3
    for _ in range(2):
        assert await shop.database.run(restore_call(wish.call_id, 502, NOW_MS, is_again=True)) == 3
    assert await shop.database.run(restore_call("no such call", 502, NOW_MS, is_again=True)) is None
    assert await remaining(shop) == 3


async def test_calls_of_living_processes_are_left_alone(shop: Shop) -> None:
    gate = await shop.gate(5)
    await shop.bought(gate)
    ids = [f"{0:012x}{mark}{number:012x}" for number, mark in enumerate(("aaaaaaaa", "bbbbbbbb", "cccccccc"))]
    for call_id in (*ids, "of another kind"):
        wish = msgspec.structs.replace(shop.wish(gate), call_id=call_id)
        assert (await shop.purchases.spend(key(1), wish, NOW_MS)).outcome is Spend.SPENT
    assert (await shop.purchases.interrupt_calls(NOW_MS, lambda: "aaaaaaaa cccccccc")).count == 1
    rows = await shop.database.read(Statement("SELECT id FROM calls WHERE state = 'INTERRUPTED'"))
    assert [row["id"] for row in rows] == [ids[1]]
    assert (await shop.purchases.interrupt_calls(NOW_MS, lambda: " ")).count == 2  # all of them were started anew
    assert (await shop.purchases.interrupt_calls(NOW_MS)).count == 1
    assert await shop.database.read(Statement("SELECT id FROM calls WHERE state = 'DISPATCHED'")) == []
