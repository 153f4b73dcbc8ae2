"""The credit ledger, whatever happens to a purchase and in whatever order (contract 4.3; invariants I1 to I3)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines import IS_POSTGRESQL
from tests.storage.plans import plan_of
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import KeyRing, SealError, Sealing
from tollkeeper.core.limits import TRUST_LOST_SECONDS
from tollkeeper.core.paygates.model import CreateDefaults, PayGate, parse_create, updated
from tollkeeper.core.purchases import (
    FIRST_LOOK_MS,
    NOT_ATTEMPTED,
    PARKED_SHOWN_MS,
    Claim,
    PurchaseState,
    Spend,
    Terms,
    header_hash,
    may_move,
)
from tollkeeper.core.trust import Exposure, TrustCaps
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.gateway.purchase.monitor import key_of
from tollkeeper.storage.engine.database import Database, Statement, Steps, load_queries, unit_of_work
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.ledger.first_purchase import Paid
from tollkeeper.storage.ledger.purchase_rows import Look, Purchase, SpendRequest, SpendResult
from tollkeeper.storage.ledger.purchases import ClaimResult, Purchases
from tollkeeper.storage.ledger.quarantine import hold, release
from tollkeeper.storage.ledger.spends import HeldSpend
from tollkeeper.storage.urls import open_database

RING = KeyRing("a", {"a": bytes(32)})
PAYEE = "0x" + "ab" * 20
NOW_MS = 1_700_000_000_000
HEADER = header_hash(b"header")
TRUST = TrustCaps(Exposure(purchases=2, value_micro=10**9), Exposure(purchases=7, value_micro=10**9))


def key(number: int, payer: str = "0x" + "22" * 20) -> PaymentKey:
    return PaymentKey("base-sepolia", "0x" + "11" * 20, payer, f"0x{number:064x}")


class Shop:
    """Both stores on one database, and a counter for call ids."""

    def __init__(self, database: Database) -> None:
        self.database = database
        sealing = Sealing(RING, os.urandom)
        self.gates = PayGates(database, sealing, os.urandom)
        self.purchases = Purchases(database, sealing)
        self.calls = 0

    async def gate(self, granted: int = 3, **fields: object) -> PayGate:
        body = {"price": "0.01", "targetUrl": "http://target/", "credits": granted, **fields}
        new = parse_create(body, CreateDefaults("base-sepolia", PAYEE))
        return await self.gates.create(new, None, None, NOW_MS)

    def spend_request(self, gate: PayGate, header: bytes | None = HEADER) -> SpendRequest:
        self.calls += 1
        return SpendRequest(gate.id, gate.version, header, f"call-{self.calls}", header is None)

    async def claim(
        self,
        gate: PayGate,
        number: int = 1,
        *,
        assume_valid: bool = False,
        payer: str = "0x" + "22" * 20,
        now_ms: int = NOW_MS,
    ) -> ClaimResult:
        terms = Terms(
            gate.id,
            gate.version,
            gate.price_micro,
            gate.credits,
            gate.payment_address,
            gate.network,
            gate.credits_expire_after_seconds,
        )
        return await self.purchases.claim(
            key(number, payer),
            terms,
            purchase_id=f"pur_{gate.id}_{number}",
            paid=Paid(gate.price_micro, NOW_MS // 1000 + 60, HEADER),
            trust=TRUST if assume_valid else None,
            request_of=lambda purchase_id, attempt, _: f"{purchase_id}.{attempt}".encode(),
            now_ms=now_ms,
        )

    async def bought(self, gate: PayGate, number: int = 1, payer: str = "0x" + "22" * 20) -> Purchase:
        claim = await self.claim(gate, number, payer=payer)
        assert claim.outcome is Claim.WON
        assert claim.purchase is not None
        await self.purchases.grant(claim.purchase, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS)
        return claim.purchase

    async def spend(self, payment: PaymentKey, request: SpendRequest, now_ms: int) -> SpendResult:
        """Spends as the data plane does. Raises: StorageError."""
        answered = asyncio.get_running_loop().create_future()
        self.purchases.ledger.spend(HeldSpend(payment, None, request), now_ms, answered.set_result)
        outcome: SpendResult | ApiError = await answered
        if isinstance(outcome, ApiError):
            raise outcome
        return outcome

    async def spend_by(self, proof: str, gate: PayGate, purchase: Purchase) -> Spend:
        """Asks for a credit of a purchase by its header, its token or its wallet."""
        if proof == "header":
            spending = self.spend(key_of(purchase), self.spend_request(gate), NOW_MS)
        elif proof == "token":
            spending = self.purchases.spend_token(purchase.id, self.spend_request(gate, None), NOW_MS)
        else:
            spending = self.purchases.spend_of_payer(purchase.payer, self.spend_request(gate, None), NOW_MS)
        return (await spending).outcome

    async def ledger_agrees(self) -> None:
        rows = await self.database.read(
            Statement(
                "WITH spent AS MATERIALIZED ("
                "SELECT purchase_id AS id, count(*) AS calls FROM calls WHERE state <> 'RESTORED' GROUP BY 1),"
                " entered AS MATERIALIZED ("
                "SELECT purchase_id AS id, sum(delta) AS total FROM credit_entries GROUP BY 1)"
                " SELECT p.*, coalesce(e.total, 0) AS ledger, coalesce(s.calls, 0) AS calls"
                " FROM holdings p LEFT JOIN spent s ON s.id = p.id LEFT JOIN entered e ON e.id = p.id"
            )
        )
        for row in rows:
            assert row["remaining"] == row["ledger"]
            assert row["calls"] == row["granted"] - row["remaining"]
            assert row["is_used_up"] == (row["granted"] > 0 and row["remaining"] == 0)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    database = open_database(str(tmp_path / "shop.sqlite3"))
    yield Shop(database)
    await database.close()


async def test_payment_address_is_not_readable_in_the_database_file(shop: Shop, tmp_path: Path) -> None:
    await shop.bought(await shop.gate())
    await shop.database.close()
    for data in await asyncio.to_thread(lambda: [file.read_bytes() for file in tmp_path.iterdir()]):
        assert PAYEE.encode() not in data
        assert PAYEE[2:].encode() not in data
        assert bytes.fromhex(PAYEE[2:]) not in data


async def test_sealed_address_copied_to_another_gate_does_not_open(shop: Shop) -> None:
    first, second = await shop.gate(), await shop.gate()

    @unit_of_work
    def swap() -> Steps[None]:
        yield Statement(
            "UPDATE paygates SET payment_address = (SELECT payment_address FROM paygates WHERE id = :a) WHERE id = :b",
            {"a": first.id, "b": second.id},
        )

    await shop.database.run(swap())
    with pytest.raises(SealError):
        await shop.gates.by_id(second.id)


async def test_authorization_is_claimed_once_by_a_thousand_callers(shop: Shop) -> None:
    gate = await shop.gate()
    callers = 100 if IS_POSTGRESQL else 1000  # one after the other, none longer than some seconds
    results = await asyncio.gather(*(shop.claim(gate) for _ in range(callers)))
    assert sum(result.outcome is Claim.WON for result in results) == 1
    assert sum(result.outcome is Claim.TAKEN for result in results) == callers - 1


@pytest.mark.parametrize(("granted", "proof"), [(1, "header"), (7, "header"), (7, "token"), (7, "wallet")])
async def test_credits_are_spent_exactly_as_often_as_they_were_granted(shop: Shop, granted: int, proof: str) -> None:
    gate = await shop.gate(granted)
    purchase = await shop.bought(gate)
    outcomes = await asyncio.gather(*(shop.spend_by(proof, gate, purchase) for _ in range(1000)))
    assert outcomes.count(Spend.SPENT) == granted
    assert set(outcomes) == {Spend.SPENT, Spend.UNKNOWN if proof == "wallet" else Spend.EXHAUSTED}
    await shop.ledger_agrees()


async def test_payment_claimed_at_one_gate_is_foreign_at_another(shop: Shop) -> None:
    first, second = await shop.gate(), await shop.gate()
    await shop.bought(first)
    assert (await shop.claim(second)).outcome is Claim.TAKEN
    assert (await shop.spend(key(1), shop.spend_request(second), NOW_MS)).outcome is Spend.FOREIGN


async def test_header_counts_only_byte_for_byte_and_until_the_token_was_used(shop: Shop) -> None:
    gate = await shop.gate()
    purchase = await shop.bought(gate)
    other = shop.spend_request(gate, header_hash(b"other"))
    assert (await shop.spend(key(1), other, NOW_MS)).outcome is Spend.WITHHELD
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.SPENT
    by_token = await shop.purchases.spend_token(purchase.id, shop.spend_request(gate, None), NOW_MS)
    assert by_token.outcome is Spend.SPENT
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.WITHHELD
    last = await shop.purchases.spend_token(purchase.id, shop.spend_request(gate, None), NOW_MS)
    assert last.outcome is Spend.SPENT
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED


async def test_failed_payment_is_tried_three_times_in_all(shop: Shop) -> None:
    gate = await shop.gate()
    for attempt in (1, 2, 3):
        claim = await shop.claim(gate)
        assert claim.outcome is Claim.WON
        assert claim.purchase is not None
        assert claim.purchase.attempt == attempt
        assert await shop.purchases.fail(claim.purchase, "never_sent", None, NOW_MS)
    assert (await shop.claim(gate)).outcome is Claim.ATTEMPTS_EXHAUSTED


async def test_another_attempt_counts_what_its_own_authorization_pays(shop: Shop) -> None:
    """One nonce may be signed for two values; the second is another payment only in what it moves."""
    gate = await shop.gate()
    first = await shop.claim(replace(gate, price_micro=5_000_000_000))
    assert first.purchase is not None
    await shop.purchases.fail(first.purchase, "never_sent", None, NOW_MS)
    second = (await shop.claim(gate)).purchase
    assert second is not None
    assert second.value_micro == gate.price_micro
    await shop.purchases.grant(second, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS)
    assert (await shop.gates.counters(gate.id)).revenue_micro == gate.price_micro


async def test_outcome_of_an_earlier_attempt_changes_nothing(shop: Shop) -> None:
    gate = await shop.gate()
    first = (await shop.claim(gate)).purchase
    assert first is not None
    assert await shop.purchases.fail(first, "never_sent", None, NOW_MS)
    assert (await shop.claim(gate)).outcome is Claim.WON
    late = await shop.purchases.grant(first, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS)
    assert late.outcome is Spend.STALE
    assert late.purchase is not None
    assert late.purchase.state is PurchaseState.CLAIMED
    assert not await shop.purchases.fail(first, "again", None, NOW_MS)


async def test_update_makes_claims_and_spends_of_the_former_version_stale(shop: Shop) -> None:
    gate = await shop.gate()
    await shop.bought(gate)
    newer = await shop.gates.update(gate.id, lambda now: updated(now, {"price": "0.02"}, NOW_MS, frozenset()))
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.STALE
    assert (await shop.claim(gate, 2)).outcome is Claim.STALE
    assert (await shop.spend(key(1), shop.spend_request(newer), NOW_MS)).outcome is Spend.SPENT


async def test_delete_voids_credits_and_serves_a_pending_claim_once(shop: Shop) -> None:
    gate = await shop.gate(5)
    await shop.bought(gate, 1)
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.SPENT
    claimed = (await shop.claim(gate, 2)).purchase
    assert claimed is not None
    assert await shop.gates.delete(gate.id, NOW_MS) == 4
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    result = await shop.purchases.grant(
        claimed, "0xhash", confirmed=True, spend_request=shop.spend_request(gate), now_ms=NOW_MS
    )
    assert result.outcome is Spend.SPENT
    assert (await shop.spend(key(2), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    await shop.ledger_agrees()


async def test_claim_whose_buyer_was_away_is_served_once_after_the_delete(shop: Shop) -> None:
    gate = await shop.gate(5)
    claimed = (await shop.claim(gate, 1)).purchase
    assert claimed is not None
    await shop.gates.delete(gate.id, NOW_MS)
    await shop.purchases.grant(claimed, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS)
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.SPENT
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    await shop.ledger_agrees()


@pytest.mark.parametrize("proof", ["header", "token", "wallet"])
async def test_a_purchase_none_of_whose_calls_was_answered_before_the_delete_is_served_once(
    shop: Shop, proof: str
) -> None:
    """Its buyer was told to come again."""
    gate = await shop.gate(5)
    purchase = await shop.bought(gate, 1)
    await shop.gates.delete(gate.id, NOW_MS)

    nothing = Spend.UNKNOWN if proof == "wallet" else Spend.EXHAUSTED
    assert (await shop.spend(key(1), shop.spend_request(gate, b"other" * 6), NOW_MS)).outcome is Spend.WITHHELD
    told = await asyncio.gather(*(shop.spend_by(proof, gate, purchase) for _ in range(5)))
    assert sorted(told, key=str) == sorted([Spend.SPENT, *[nothing] * 4], key=str)
    await shop.ledger_agrees()


@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_a_call_is_due_once_all_are_given_back_that_were_under_way_when_their_gate_was_deleted(
    shop: Shop, calls: int
) -> None:
    gate = await shop.gate(3)
    await shop.bought(gate, 1)
    spend_requests, other = [shop.spend_request(gate) for _ in range(calls)], shop.spend_request(gate)
    for spend_request in spend_requests:
        assert (await shop.spend(key(1), spend_request, NOW_MS)).outcome is Spend.SPENT
    await shop.gates.delete(gate.id, NOW_MS + 1)
    for left, spend_request in enumerate(spend_requests, 4 - calls):
        assert (await shop.spend(key(1), other, NOW_MS + 1)).outcome is Spend.EXHAUSTED
        assert await shop.purchases.restore(spend_request.call_id, 503, NOW_MS + 2) == left
    assert (await shop.spend(key(1), other, NOW_MS + 2)).outcome is Spend.SPENT
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS + 3)).outcome is Spend.EXHAUSTED
    await shop.ledger_agrees()


async def test_of_a_sale_that_is_held_nothing_is_due_once_its_gate_is_deleted(shop: Shop) -> None:
    gate = await shop.gate(3)
    purchase = await shop.bought(gate, 1)
    assert await hold(shop.database, {purchase.id: "i5_credits_rest_on_a_payment"}, NOW_MS) == [purchase.id]
    await shop.gates.delete(gate.id, NOW_MS)
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    await shop.ledger_agrees()


async def test_of_a_sale_whose_gate_was_deleted_nothing_is_due_while_it_is_held(shop: Shop) -> None:
    gate = await shop.gate(3)
    purchase = await shop.bought(gate, 1)
    await shop.gates.delete(gate.id, NOW_MS)
    for _ in range(2):
        held = await hold(shop.database, {purchase.id: "i5_credits_rest_on_a_payment"}, NOW_MS)
        assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    assert held == []
    await release(shop.database, [purchase.id], NOW_MS)
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.SPENT
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED
    await shop.ledger_agrees()


async def test_disabled_gate_sells_nothing_and_serves_held_credits(shop: Shop) -> None:
    gate = await shop.gate()
    await shop.bought(gate)
    off = await shop.gates.update(gate.id, lambda now: updated(now, {"isEnabled": False}, NOW_MS, frozenset()))
    assert (await shop.claim(off, 2)).outcome is Claim.STALE
    assert (await shop.spend(key(1), shop.spend_request(off), NOW_MS)).outcome is Spend.SPENT


async def test_what_claims_and_grants_return_is_what_the_database_has(shop: Shop) -> None:
    lasting = await shop.gate(creditsExpireAfter=60)
    for number, gate in ((1, await shop.gate()), (2, lasting)):
        for is_trusted in (False, True):
            claim = await shop.claim(gate, number + 2 * is_trusted, assume_valid=is_trusted)
            assert claim.purchase is not None
            assert await shop.purchases.by_id(claim.purchase.id) == claim.purchase
            spend_request = shop.spend_request(gate, None if is_trusted else HEADER)
            result = await shop.purchases.grant(
                claim.purchase, "0xhash", confirmed=not is_trusted, spend_request=spend_request, now_ms=NOW_MS + 5
            )
            assert result.outcome is Spend.SPENT
            assert await shop.purchases.by_id(claim.purchase.id) == result.purchase
    held = await shop.claim(lasting, 9)
    assert held.purchase is not None
    unspent = await shop.purchases.grant(held.purchase, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS)
    assert unspent.outcome is Spend.STALE
    assert await shop.purchases.by_id(held.purchase.id) == unspent.purchase
    await shop.ledger_agrees()


async def test_a_grant_to_whoever_knows_a_former_attempt_tells_what_was_granted(shop: Shop) -> None:
    """An attempt that was not made keeps its number when the payment is claimed again, by the terms of then."""
    gate = await shop.gate(10)
    former = (await shop.claim(gate)).purchase
    assert former is not None
    await shop.purchases.fail(former, NOT_ATTEMPTED, None, NOW_MS)
    cut = await shop.gates.update(gate.id, lambda now: updated(now, {"credits": 2}, NOW_MS, frozenset()))
    assert (await shop.claim(cut, now_ms=NOW_MS + 9)).outcome is Claim.WON
    result = await shop.purchases.grant(
        former, "0xhash", confirmed=True, spend_request=shop.spend_request(cut), now_ms=NOW_MS + 10
    )
    there = await shop.purchases.by_id(former.id)
    assert result.purchase is not None
    assert there is not None
    told, is_so = ((one.state, one.credits, one.granted, one.remaining) for one in (result.purchase, there))
    assert told == is_so == (PurchaseState.LIVE, 2, 2, 1)
    await shop.ledger_agrees()


async def test_a_payment_that_failed_is_claimed_again_only_at_a_gate_as_it_is_now(shop: Shop) -> None:
    gate = await shop.gate()
    first = await shop.claim(gate)
    assert first.purchase is not None
    await shop.purchases.fail(first.purchase, "reverted", None, NOW_MS)
    off = await shop.gates.update(gate.id, lambda now: updated(now, {"isEnabled": False}, NOW_MS, frozenset()))
    assert (await shop.claim(gate)).outcome is Claim.STALE
    assert (await shop.claim(off)).outcome is Claim.STALE
    on = await shop.gates.update(gate.id, lambda now: updated(now, {"isEnabled": True}, NOW_MS, frozenset()))
    again = await shop.claim(on)
    assert again.outcome is Claim.WON
    assert again.purchase is not None
    assert again.purchase.attempt == 2
    assert await shop.purchases.by_id(again.purchase.id) == again.purchase
    await shop.purchases.fail(again.purchase, "reverted", None, NOW_MS)
    await shop.gates.delete(gate.id, NOW_MS)
    assert (await shop.claim(on)).outcome is Claim.STALE


async def test_what_is_paid_already_is_honoured_at_a_gate_that_is_off_and_at_no_former_version(shop: Shop) -> None:
    gate = await shop.gate()
    off = await shop.gates.update(gate.id, lambda now: updated(now, {"isEnabled": False}, NOW_MS, frozenset()))
    former, now = (
        Terms(one.id, one.version, one.price_micro, one.credits, one.payment_address, one.network, None)
        for one in (gate, off)
    )
    paid = Paid(gate.price_micro, None, HEADER)

    async def honoured(terms: Terms) -> Claim:
        result = await shop.purchases.honour(
            key(1), terms, purchase_id="pur_honoured", paid=paid, transaction_hash="0xhash", now_ms=NOW_MS
        )
        return result.outcome

    assert await honoured(former) is Claim.STALE
    assert await honoured(now) is Claim.WON
    assert await honoured(now) is Claim.TAKEN
    await shop.ledger_agrees()


async def test_deleted_slug_is_never_given_again(shop: Shop) -> None:
    gate = await shop.gate(slug="mine")
    await shop.gates.delete(gate.id, NOW_MS)
    with pytest.raises(ApiError) as refused:
        await shop.gate(slug="mine")
    assert refused.value.code is Code.CONFLICT


async def test_update_that_raises_changes_nothing(shop: Shop) -> None:
    gate = await shop.gate()
    with pytest.raises(ApiError):
        await shop.gates.update(gate.id, lambda now: updated(now, {"title": "new", "price": "-1"}, NOW_MS, frozenset()))
    found = await shop.gates.by_id(gate.id)
    assert found is not None
    assert found[0] == gate


async def test_settle_request_comes_back_as_it_was_claimed(shop: Shop) -> None:
    gate = await shop.gate()
    claim = await shop.claim(gate)
    assert claim.purchase is not None
    assert await shop.purchases.in_flight(10) == [(claim.purchase, f"{claim.purchase.id}.1".encode())]


async def test_payer_is_trusted_up_to_the_cap_however_many_claim_at_once(shop: Shop) -> None:
    gate = await shop.gate()
    await shop.bought(gate, 99)
    claims = await asyncio.gather(*(shop.claim(gate, number, assume_valid=True) for number in range(1, 21)))
    trusted = [claim.purchase for claim in claims if claim.purchase is not None and claim.purchase.assume_valid]
    assert len(trusted) == TRUST.payer.purchases
    for purchase in trusted:
        await shop.purchases.grant(purchase, "0xhash", confirmed=False, spend_request=None, now_ms=NOW_MS)
    found = await shop.purchases.unconfirmed(10)
    assert {purchase.id for purchase, _ in found} == {item.id for item in trusted}
    beyond = await shop.claim(gate, 21, assume_valid=True)
    assert beyond.purchase is not None
    assert not beyond.purchase.assume_valid
    await shop.purchases.confirm(trusted[0], NOW_MS)
    again = await shop.claim(gate, 22, assume_valid=True)
    assert again.purchase is not None
    assert again.purchase.assume_valid


@pytest.mark.parametrize("payers", ["one", "many"])
async def test_what_was_not_paid_counts_against_both_caps_for_a_day(shop: Shop, payers: str) -> None:
    gate, day_ms = await shop.gate(), TRUST_LOST_SECONDS * 1000
    count = TRUST.payer.purchases if payers == "one" else TRUST.gate.purchases

    async def is_trusted(number: int, now_ms: int) -> bool:
        payer = "0x" + "22" * 20 if payers == "one" else f"0x{number:040x}"
        claim = await shop.claim(gate, number, assume_valid=True, payer=payer, now_ms=now_ms)
        assert claim.purchase is not None
        if claim.purchase.assume_valid:
            await shop.purchases.grant(claim.purchase, "0xhash", confirmed=False, spend_request=None, now_ms=now_ms)
            await shop.purchases.void(claim.purchase, now_ms)
        return claim.purchase.assume_valid

    assert all([await is_trusted(number, NOW_MS) for number in range(count)])
    assert not await is_trusted(90, NOW_MS + day_ms - 1)
    assert await is_trusted(91, NOW_MS + day_ms)


async def test_all_payers_of_a_gate_together_are_trusted_up_to_its_cap_however_many_claim_at_once(shop: Shop) -> None:
    """Wallets cost nothing: whoever has a thousand of them owes a gate no more than its own cap."""
    gate, other = await shop.gate(), await shop.gate()
    claims = await asyncio.gather(
        *(shop.claim(gate, number, assume_valid=True, payer=f"0x{number:040x}") for number in range(1, 41))
    )
    trusted = [claim.purchase for claim in claims if claim.purchase is not None and claim.purchase.assume_valid]
    assert len(trusted) == TRUST.gate.purchases
    elsewhere = await shop.claim(other, 99, assume_valid=True, payer="0x" + "99" * 20)
    assert elsewhere.purchase is not None
    assert elsewhere.purchase.assume_valid


async def test_trusted_purchase_that_proved_failed_loses_its_unused_credits(shop: Shop) -> None:
    gate = await shop.gate()
    trusted = (await shop.claim(gate, 1, assume_valid=True)).purchase
    assert trusted is not None
    await shop.purchases.grant(
        trusted, "0xhash", confirmed=False, spend_request=shop.spend_request(gate), now_ms=NOW_MS
    )
    await shop.purchases.void(trusted, NOW_MS)
    assert (await shop.gates.counters(gate.id)).revenue_micro == 0
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS)).outcome is Spend.EXHAUSTED


@pytest.mark.parametrize("is_granted_first", [True, False])
async def test_a_trusted_sale_is_followed_to_its_payment_s_end_though_its_gate_is_deleted(
    shop: Shop, *, is_granted_first: bool
) -> None:
    """Its credits end with the gate; whether it was paid is still owed by its buyer, and counts in the books."""
    gate, other = await shop.gate(), await shop.gate()
    paid, unpaid = [(await shop.claim(gate, number, assume_valid=True)).purchase for number in (1, 2)]
    assert paid is not None
    assert unpaid is not None
    if not is_granted_first:
        await shop.gates.delete(gate.id, NOW_MS)
    for purchase in (paid, unpaid):
        spend_request = shop.spend_request(gate)
        result = await shop.purchases.grant(
            purchase, "0xhash", confirmed=False, spend_request=spend_request, now_ms=NOW_MS
        )
        assert result.outcome is Spend.SPENT
    if is_granted_first:
        await shop.gates.delete(gate.id, NOW_MS)
    assert {purchase.state for purchase, _ in await shop.purchases.unconfirmed(10)} == {PurchaseState.VOID}
    assert await shop.purchases.to_follow(10, NOW_MS + FIRST_LOOK_MS) == []

    async def is_trusted(number: int) -> bool:
        claim = await shop.claim(other, number, assume_valid=True)
        assert claim.purchase is not None
        return claim.purchase.assume_valid

    assert not await is_trusted(3)
    await shop.purchases.confirm(paid, NOW_MS)
    assert await is_trusted(4)
    soon_ms = NOW_MS + FIRST_LOOK_MS
    assert [purchase.id for purchase, _ in await shop.purchases.to_follow(10, soon_ms)] == [paid.id]
    await shop.purchases.void(unpaid, NOW_MS)
    assert await shop.purchases.unconfirmed(10) == []
    assert (await shop.gates.counters(gate.id)).revenue_micro == paid.value_micro
    assert len(await shop.purchases.to_follow(10, soon_ms)) == 2
    await shop.purchases.void(unpaid, NOW_MS)  # once
    assert (await shop.gates.counters(gate.id)).revenue_micro == paid.value_micro
    await shop.purchases.revive(unpaid, "0xother", NOW_MS)
    found = await shop.purchases.by_id(unpaid.id)
    assert found is not None
    assert (found.state, found.failure) == (PurchaseState.VOID, "gate_deleted")
    assert (await shop.gates.counters(gate.id)).revenue_micro == 2 * paid.value_micro
    await shop.ledger_agrees()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_sale_whose_payment_was_made_after_all_gets_back_what_it_had_unless_its_gate_was_deleted(
    shop: Shop, *, is_deleted: bool
) -> None:
    gate = await shop.gate(3)
    sold = (await shop.claim(gate, 1, assume_valid=True)).purchase
    assert sold is not None
    await shop.purchases.grant(sold, "0xhash", confirmed=False, spend_request=shop.spend_request(gate), now_ms=NOW_MS)
    await shop.purchases.revive(sold, "0xother", NOW_MS)  # it is not void
    await shop.purchases.void(sold, NOW_MS)
    if is_deleted:
        await shop.gates.delete(gate.id, NOW_MS)
    for _ in range(2):
        await shop.purchases.revive(sold, "0xother", NOW_MS)
    assert (await shop.gates.counters(gate.id)).revenue_micro == sold.value_micro
    found = await shop.purchases.by_id(sold.id)
    assert found is not None
    assert (found.state, found.remaining) == (PurchaseState.VOID if is_deleted else PurchaseState.LIVE, 2)
    assert found.transaction_hash == "0xother"
    outcomes = [
        (await shop.purchases.spend_token(sold.id, shop.spend_request(gate, None), NOW_MS)).outcome for _ in range(3)
    ]
    assert outcomes == [Spend.EXHAUSTED] * 3 if is_deleted else [Spend.SPENT, Spend.SPENT, Spend.EXHAUSTED]
    await shop.ledger_agrees()


async def test_what_is_given_back_while_its_sale_is_void_is_there_once_its_payment_turns_out_to_be_made(
    shop: Shop,
) -> None:
    gate = await shop.gate(3)
    sold = (await shop.claim(gate, 1, assume_valid=True)).purchase
    assert sold is not None
    first, second, third = shop.spend_request(gate), shop.spend_request(gate), shop.spend_request(gate, None)
    await shop.purchases.grant(sold, "0xhash", confirmed=False, spend_request=first, now_ms=NOW_MS)
    assert (await shop.spend(key(1), second, NOW_MS)).outcome is Spend.SPENT
    await shop.purchases.void(sold, NOW_MS)
    assert await shop.purchases.restore(first.call_id, 503, NOW_MS) == 2
    shop.purchases.ledger.refused(second.call_id)
    await shop.purchases.end_calls({first.call_id: 503}, NOW_MS)
    assert (await shop.purchases.spend_token(sold.id, third, NOW_MS)).outcome is Spend.EXHAUSTED
    await shop.purchases.revive(sold, "0xother", NOW_MS)
    found = await shop.purchases.by_id(sold.id)
    assert found is not None
    assert (found.state, found.remaining) == (PurchaseState.LIVE, 3)
    await shop.ledger_agrees()


@pytest.mark.parametrize("is_honoured", [False, True])
async def test_the_time_for_which_a_sale_was_void_is_none_of_its_credits_time(shop: Shop, *, is_honoured: bool) -> None:
    gate = await shop.gate(4, creditsExpireAfter=60)
    lasting, over = [(await shop.claim(gate, number, assume_valid=True)).purchase for number in (1, 2)]
    assert lasting is not None
    assert over is not None
    for sold in (lasting, over):
        await shop.purchases.grant(
            sold, "0xhash", confirmed=False, spend_request=shop.spend_request(gate), now_ms=NOW_MS
        )
    voids = {lasting.number: NOW_MS + 59_999, over.number: NOW_MS + 60_000}
    later_ms = NOW_MS + 3_600_000

    async def spend(sold: Purchase, now_ms: int) -> Spend:
        return (await shop.purchases.spend_token(sold.id, shop.spend_request(gate, None), now_ms)).outcome

    for number, sold in enumerate((lasting, over), start=1):
        await shop.purchases.void(sold, voids[sold.number])
        assert await spend(sold, voids[sold.number]) is Spend.EXHAUSTED
        for now_ms in (later_ms, later_ms + 5_000):  # once
            if is_honoured:
                paid = Paid(sold.value_micro, None, HEADER)
                terms = Terms(gate.id, gate.version, gate.price_micro, 9, gate.payment_address, gate.network, 9)
                await shop.purchases.honour(
                    key(number), terms, purchase_id="unused", paid=paid, transaction_hash="0xother", now_ms=now_ms
                )
            else:
                await shop.purchases.revive(sold, "0xother", now_ms)
    assert [await spend(lasting, now_ms) for now_ms in (later_ms, later_ms + 1)] == [Spend.SPENT, Spend.EXHAUSTED]
    assert await spend(over, later_ms) is Spend.EXHAUSTED
    await shop.ledger_agrees()


async def test_what_a_clock_that_was_put_back_calls_void_later_than_now_ends_no_sooner(shop: Shop) -> None:
    gate = await shop.gate(3, creditsExpireAfter=60)
    sold = (await shop.claim(gate, 1, assume_valid=True)).purchase
    assert sold is not None
    await shop.purchases.grant(sold, "0xhash", confirmed=False, spend_request=None, now_ms=NOW_MS)
    await shop.purchases.void(sold, NOW_MS + 50_000)
    await shop.purchases.revive(sold, "0xother", NOW_MS + 10_000)
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS + 59_999)).outcome is Spend.SPENT


async def test_a_claim_that_failed_by_a_transaction_is_looked_at_and_open_again_once(shop: Shop) -> None:
    gate = await shop.gate()
    shown = (await shop.claim(gate, 1)).purchase
    never_sent = (await shop.claim(gate, 2)).purchase
    assert shown is not None
    assert never_sent is not None
    soon_ms = NOW_MS + FIRST_LOOK_MS
    await shop.purchases.fail(shown, "reverted", "0xfailed", NOW_MS, follow_ms=soon_ms)
    await shop.purchases.fail(never_sent, "never_sent", None, NOW_MS)
    assert [purchase.id for purchase, _ in await shop.purchases.to_follow(10, soon_ms)] == [shown.id]
    await shop.purchases.reopen(never_sent, soon_ms)  # it was not kept
    await shop.purchases.reopen(shown, soon_ms)
    assert [(purchase.id, bool(request)) for purchase, request in await shop.purchases.in_flight(10)] == [
        (shown.id, True)
    ]
    assert await shop.purchases.to_follow(10, soon_ms) == []
    await shop.purchases.fail(shown, "reverted", "0xfailed", soon_ms, follow_ms=soon_ms + FIRST_LOOK_MS)
    assert await shop.purchases.to_follow(10, soon_ms + FIRST_LOOK_MS) == []
    await shop.purchases.reopen(shown, soon_ms)
    assert await shop.purchases.in_flight(10) == []
    again = (await shop.claim(gate, 1)).purchase  # the buyer's next try is another attempt
    assert again is not None
    assert again.attempt == 2
    await shop.purchases.fail(again, "reverted", "0xfailed", soon_ms, follow_ms=soon_ms + FIRST_LOOK_MS)
    await shop.purchases.reopen(shown, soon_ms)
    assert await shop.purchases.in_flight(10) == []
    assert len(await shop.purchases.to_follow(10, soon_ms + FIRST_LOOK_MS)) == 1
    await shop.ledger_agrees()


async def test_a_sale_is_due_for_a_look_until_its_outcome_stands_and_not_before_it_is_confirmed(
    shop: Shop,
) -> None:
    gate = await shop.gate()
    sold = [(await shop.claim(gate, number, assume_valid=number == 3)).purchase for number in range(4)]
    for purchase in sold:
        assert purchase is not None
        confirmed = not purchase.assume_valid
        await shop.purchases.grant(purchase, "0xhash", confirmed=confirmed, spend_request=None, now_ms=NOW_MS)
    stands, fails, later, trusted = [purchase for purchase in sold if purchase is not None]

    async def due(now_ms: int) -> set[str]:
        return {purchase.id for purchase, _ in await shop.purchases.to_follow(10, now_ms)}

    assert await due(NOW_MS) == set()
    soon_ms = NOW_MS + FIRST_LOOK_MS
    assert await due(soon_ms) == {stands.id, fails.id, later.id}
    await shop.purchases.follow(
        [
            Look(stands.id, 1, PurchaseState.LIVE, "0xhash", NOW_MS, None),
            Look(later.id, 1, PurchaseState.LIVE, "0xother", soon_ms, soon_ms + FIRST_LOOK_MS),
        ]
    )
    await shop.purchases.void(fails, soon_ms)
    assert await due(soon_ms) == set()
    await shop.purchases.confirm(trusted, soon_ms)
    assert await due(soon_ms + FIRST_LOOK_MS) == {fails.id, later.id, trusted.id}
    assert {paid_ms for _, paid_ms in await shop.purchases.to_follow(10, soon_ms + FIRST_LOOK_MS)} == {soon_ms}
    found = await shop.purchases.by_id(later.id)
    assert found is not None
    assert found.transaction_hash == "0xother"


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_due_sales_are_found_without_looking_at_the_others(shop: Shop) -> None:
    query = load_queries("gateway.sql").followed_purchases(now_ms=NOW_MS, limit=10)
    plan = await plan_of(shop.database, query)
    assert any("USING INDEX purchases_followed (follow_ms<?)" in line for line in plan)
    assert not any("SCAN" in line or "TEMP B-TREE" in line for line in plan)


async def test_a_credit_is_given_back_once_however_often_it_is_asked_for(shop: Shop) -> None:
    gate = await shop.gate(5)
    await shop.bought(gate)
    spend_request = shop.spend_request(gate)
    assert (await shop.spend(key(1), spend_request, NOW_MS)).outcome is Spend.SPENT
    given = await asyncio.gather(*(shop.purchases.restore(spend_request.call_id, 502, NOW_MS) for _ in range(20)))
    assert sorted(given, key=str) == [5, *[None] * 19]
    await shop.purchases.end_calls({spend_request.call_id: 502}, NOW_MS)
    assert await shop.purchases.restore("no such call", 502, NOW_MS) is None
    await shop.ledger_agrees()
    entries = await shop.database.read(Statement("SELECT reason, delta FROM credit_entries ORDER BY reason"))
    assert [tuple(entry.values()) for entry in entries] == [("grant", 5), ("restore", 1), ("spend", -1)]


async def test_a_credit_is_not_given_back_of_a_call_that_ended_and_served_no_more_once_its_gate_was_deleted(
    shop: Shop,
) -> None:
    gate = await shop.gate(5)
    await shop.bought(gate)
    ended, voided, left = [shop.spend_request(gate) for _ in range(3)]
    for spend_request in (ended, voided, left):
        assert (await shop.spend(key(1), spend_request, NOW_MS)).outcome is Spend.SPENT
    await shop.purchases.end_calls({ended.call_id: 200}, NOW_MS)
    assert await shop.purchases.restore(ended.call_id, 502, NOW_MS) is None
    await shop.gates.delete(gate.id, NOW_MS + 1)
    assert await shop.purchases.restore(voided.call_id, 502, NOW_MS + 1) == 3
    assert (await shop.spend(key(1), shop.spend_request(gate), NOW_MS + 1)).outcome is Spend.EXHAUSTED
    restarted = Shop(shop.database)
    assert await restarted.purchases.interrupt_calls(NOW_MS) == 1
    assert await restarted.purchases.restore(left.call_id, 502, NOW_MS) is None
    await shop.ledger_agrees()


async def test_credits_are_there_until_the_millisecond_in_which_they_expire(shop: Shop) -> None:
    gate = await shop.gate(5, creditsExpireAfter=60)
    await shop.bought(gate)
    until_ms = NOW_MS + 60_000
    assert (await shop.spend(key(1), shop.spend_request(gate), until_ms - 1)).outcome is Spend.SPENT
    assert (await shop.spend(key(1), shop.spend_request(gate), until_ms)).outcome is Spend.EXHAUSTED
    token = await shop.purchases.spend_token(f"pur_{gate.id}_1", shop.spend_request(gate, None), until_ms)
    assert token.outcome is Spend.EXHAUSTED
    payer = key(1).payer
    assert (
        await shop.purchases.spend_of_payer(payer, shop.spend_request(gate, None), until_ms)
    ).outcome is Spend.UNKNOWN
    assert (
        await shop.purchases.spend_of_payer(payer, shop.spend_request(gate, None), until_ms - 1)
    ).outcome is Spend.SPENT
    await shop.ledger_agrees()


async def test_a_wallet_spends_its_oldest_purchase_at_the_gate_first(shop: Shop) -> None:
    gate, other = await shop.gate(2), await shop.gate(2)
    payer = key(1).payer
    assert (await shop.purchases.spend_of_payer(payer, shop.spend_request(gate, None), NOW_MS)).outcome is Spend.UNKNOWN
    settling = await shop.claim(gate, 9)
    assert settling.purchase is not None
    waiting = await shop.purchases.spend_of_payer(payer, shop.spend_request(gate, None), NOW_MS)
    assert (waiting.outcome, waiting.purchase) == (Spend.IN_FLIGHT, settling.purchase)
    for number, where in ((2, other), (3, gate), (1, gate)):
        claimed = (await shop.claim(where, number)).purchase
        assert claimed is not None
        await shop.purchases.grant(claimed, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS - number)
    asking = (shop.purchases.spend_of_payer(payer, shop.spend_request(gate, None), NOW_MS) for _ in range(6))
    answers = await asyncio.gather(*asking)
    spent = [answer.purchase.id for answer in answers if answer.outcome is Spend.SPENT and answer.purchase]
    assert sorted(spent, reverse=True) == [f"pur_{gate.id}_3"] * 2 + [f"pur_{gate.id}_1"] * 2
    assert sum(answer.outcome is Spend.IN_FLIGHT for answer in answers) == 2
    nobody = await shop.purchases.spend_of_payer("0x" + "99" * 20, shop.spend_request(gate, None), NOW_MS)
    assert nobody.outcome is Spend.UNKNOWN
    await shop.ledger_agrees()


async def test_a_credit_of_a_used_up_purchase_that_is_given_back_is_there_for_its_wallet(shop: Shop) -> None:
    gate = await shop.gate(1)
    payer = (await shop.bought(gate)).payer

    async def spend(call_id: str) -> Spend:
        spend_request = SpendRequest(gate.id, gate.version, None, call_id)
        return (await shop.purchases.spend_of_payer(payer, spend_request, NOW_MS)).outcome

    assert [await spend(call_id) for call_id in ("one", "two")] == [Spend.SPENT, Spend.UNKNOWN]
    assert await shop.purchases.restore("one", 502, NOW_MS) == 1
    assert [await spend(call_id) for call_id in ("three", "four")] == [Spend.SPENT, Spend.UNKNOWN]
    await shop.ledger_agrees()


@pytest.mark.sqlite_only("it is about SQLite's file")
async def test_what_a_wallet_spends_is_looked_for_where_no_spend_waits(shop: Shop) -> None:
    gate = await shop.gate(2)
    payer = (await shop.bought(gate)).payer
    written: list[str] = []
    shop.database._writer.set_trace_callback(written.append)  # type: ignore[attr-defined]  # noqa: SLF001
    outcomes = [
        (await shop.purchases.spend_of_payer(payer, shop.spend_request(gate, None), NOW_MS)).outcome for _ in range(3)
    ]
    assert outcomes == [Spend.SPENT, Spend.SPENT, Spend.UNKNOWN]
    assert any("single_calls" in statement for statement in written)
    assert not [statement for statement in written if "payer = " in statement]


async def test_a_wallet_whose_claim_was_parked_of_late_is_not_asked_to_pay_again(shop: Shop) -> None:
    gate = await shop.gate(2)
    parked = (await shop.claim(gate, 1)).purchase
    assert parked is not None
    await shop.purchases.park(parked, "not_of_the_facilitators_signers", NOW_MS)

    async def found(now_ms: int) -> Spend:
        return (await shop.purchases.spend_of_payer(parked.payer, shop.spend_request(gate, None), now_ms)).outcome

    assert await found(NOW_MS + PARKED_SHOWN_MS - 1) is Spend.PARKED
    assert await found(NOW_MS + PARKED_SHOWN_MS) is Spend.UNKNOWN
    await shop.bought(gate, 2)  # what holds a credit goes before it
    assert [await found(NOW_MS) for _ in range(3)] == [Spend.SPENT, Spend.SPENT, Spend.PARKED]


@pytest.mark.parametrize("proof", ["header", "token", "wallet"])
async def test_a_sale_whose_credits_are_closed_though_it_is_live_is_not_called_used_up(shop: Shop, proof: str) -> None:
    """Before the next look at the books holds it; and nobody looks for ever."""
    gate = await shop.gate(2)
    sold = await shop.bought(gate)
    await shop.database.run(_closed(sold.number))
    async with asyncio.timeout(60):
        if proof == "header":
            found = await shop.spend(key(1), shop.spend_request(gate), NOW_MS)
        elif proof == "token":
            found = await shop.purchases.spend_token(sold.id, shop.spend_request(gate, None), NOW_MS)
        else:
            found = await shop.purchases.spend_of_payer(sold.payer, shop.spend_request(gate, None), NOW_MS)
    assert found.outcome is Spend.PARKED


@unit_of_work
def _closed(number: int | None) -> Steps[None]:
    yield Statement("UPDATE credits SET is_live = 0 WHERE number = :number", {"number": number})


async def test_who_claimed_just_before_a_delete_that_had_read_its_clock_before_him_has_his_first_credit(
    shop: Shop,
) -> None:
    """And recovery granted it."""
    gate = await shop.gate(3, creditBinding="token")
    claimed = (await shop.claim(gate, now_ms=NOW_MS + 1)).purchase
    assert claimed is not None
    await shop.purchases.grant(claimed, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS + 2)
    await shop.gates.delete(gate.id, NOW_MS)
    spend_request = shop.spend_request(gate)
    own = await shop.purchases.grant(claimed, "0xhash", confirmed=True, spend_request=spend_request, now_ms=NOW_MS + 3)
    assert own.outcome is Spend.SPENT
    await shop.ledger_agrees()


def test_statements_make_every_lawful_transition_of_a_purchase_and_no_other() -> None:
    moved = []
    for query in load_queries("gateway.sql"):
        change = re.search(r"UPDATE purchases SET\s+state = '(\w+)'.*WHERE.*state = '(\w+)'", query.sql, re.DOTALL)
        if change is not None:
            moved.append((PurchaseState(change[2]), PurchaseState(change[1])))
    assert len(moved) == 13
    assert set(moved) == {pair for pair in product(PurchaseState, PurchaseState) if may_move(*pair)}


ACTIONS = (
    "claim",
    "fail",
    "grant",
    "grant_and_spend",
    "spend",
    "spend_token",
    "void",
    "revive",
    "park",
    "update",
    "delete",
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.integers(1, 2)), max_size=25),
    granted=st.integers(1, 3),
)
def test_ledger_and_counter_agree_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int, int]], granted: int
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "shop.sqlite3"

    async def play() -> None:
        database = open_database(str(path))
        shop = Shop(database)
        gates = [await shop.gate(granted), await shop.gate(granted)]
        for action, which, number in actions:
            gates[which] = await _act(shop, action, gates[which], number)
            await shop.ledger_agrees()
        await database.close()

    asyncio.run(play())


async def _act(shop: Shop, action: str, gate: PayGate, number: int) -> PayGate:
    purchases = shop.purchases
    if action in {"update", "delete"} and await shop.gates.by_id(gate.id) is None:
        return gate
    if action == "update":
        return await shop.gates.update(gate.id, lambda now: replace(now, version=now.version + 1))
    if action == "delete":
        await shop.gates.delete(gate.id, NOW_MS)
    elif action == "claim":
        await shop.claim(gate, number)
    elif action == "spend":
        await shop.spend(key(number), shop.spend_request(gate), NOW_MS)
    elif (found := await purchases.by_payment(key(number))) is not None:
        await _act_on(shop, action, gate, found)
    return gate


async def _act_on(shop: Shop, action: str, gate: PayGate, found: Purchase) -> None:
    purchases = shop.purchases
    spend_request = shop.spend_request(gate) if action == "grant_and_spend" else None
    actions: dict[str, Callable[[], Awaitable[object]]] = {
        "fail": lambda: purchases.fail(found, "never_sent", None, NOW_MS),
        "grant": lambda: purchases.grant(found, "0x", confirmed=True, spend_request=None, now_ms=NOW_MS),
        "grant_and_spend": lambda: purchases.grant(
            found, "0x", confirmed=True, spend_request=spend_request, now_ms=NOW_MS
        ),
        "spend_token": lambda: purchases.spend_token(found.id, shop.spend_request(gate, None), NOW_MS),
        "park": lambda: purchases.park(found, "unknown", NOW_MS),
        "void": lambda: purchases.void(found, NOW_MS),
        "revive": lambda: purchases.revive(found, "0x", NOW_MS),
    }
    await actions[action]()


async def test_a_grant_is_made_once_and_its_call_finds_its_credit(shop: Shop) -> None:
    gate = await shop.gate(1)
    claim = await shop.claim(gate)
    assert claim.purchase is not None
    mine, other = shop.spend_request(gate), shop.spend_request(gate)
    told = [
        await shop.purchases.grant(claim.purchase, "0xhash", confirmed=True, spend_request=spend_request, now_ms=NOW_MS)
        for spend_request in (mine, mine, other)
    ]
    assert [result.outcome for result in told] == [Spend.SPENT, Spend.SPENT, Spend.STALE]
    await shop.ledger_agrees()
