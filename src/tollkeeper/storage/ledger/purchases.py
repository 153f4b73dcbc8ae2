"""The store of purchases and the credit ledger: claim, grant, spend, fail (contract 4.3).

Each race is decided by one conditional statement. A credit is spent in one place, `spends`, whatever bought it; the
counter and the call, which is the ledger's entry, are one commit, before the first byte goes to the target. Spends go
through `ledger`, in batches. The units of a claim and of a grant are in `first_purchase`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.keys.sealing import SealError, place
from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.purchases import (
    FIRST_LOOK_MS,
    FOLLOWED_MS,
    GATE_DELETED,
    Claim,
    PurchaseState,
    Spend,
    Terms,
)
from tollkeeper.core.trust import TrustCaps
from tollkeeper.storage.engine.database import (
    gates_as_they_are,
    load_queries,
    purchases_to_change,
    read_page,
    rows_of,
    unit_of_work,
)
from tollkeeper.storage.ledger.first_purchase import ClaimRow, Paid, book_grant, claim_purchase, grant_purchase
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.open_calls import interrupt_calls
from tollkeeper.storage.ledger.purchase_rows import Look, Purchase, SpendRequest, SpendResult, purchase_from
from tollkeeper.storage.ledger.quarantine import count_again, revive, void_unpaid
from tollkeeper.storage.ledger.spends import (
    HeldSpend,
    RestoredOftenError,
    look_of_payer,
    restore_call,
    spend_of_payer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.keys.sealing import Sealing
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.storage.engine.database import Database, Query, Row, Steps, Unit, Value


_Q = load_queries("gateway.sql")


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Outcome of a claim; `purchase` is the winner's own.

    `was_honoured`: it was TAKEN by this very order to honour it, given before.
    """

    outcome: Claim
    purchase: Purchase | None = None
    was_honoured: bool = False


_LOOKS_MAX: Final = 3
_AS_IT_STANDS: Final = frozenset({Spend.SPENT, Spend.PARKED, Spend.IN_FLIGHT})


class Purchases:
    """Purchases and credits in one database."""

    def __init__(self, database: Database, sealing: Sealing) -> None:
        self._database = database
        self._sealing = sealing
        self.ledger = Ledger(database)

    async def spend_token(self, purchase_id: str, spend_request: SpendRequest, now_ms: int) -> SpendResult:
        """Spend one credit of a purchase by another proof than its header, which does not count from then on.

        The proof is the credit token, or that the caller is the payer. This, and each verb below that spends, raises
        StorageError where the outcome is unknown: a call that is refused for it is told to `ledger.refused`.
        """
        return await self._spend(HeldSpend(None, purchase_id, spend_request), now_ms)

    async def spend_of_payer(self, payer: str, spend_request: SpendRequest, now_ms: int) -> SpendResult:
        """Spend one credit that a wallet holds at the gate, the oldest first; UNKNOWN where it has none.

        Its purchase is looked for where no spend waits for that: a wallet may have a great many. Where what was found
        is spent meanwhile again and again, look and spend are one unit.
        """
        for _ in range(_LOOKS_MAX):
            rows = await self._database.read(look_of_payer(payer, spend_request, now_ms))
            if not rows:
                return SpendResult(Spend.UNKNOWN)
            result = await self._spend(HeldSpend(None, rows[0]["id"], spend_request), now_ms)
            if result.outcome in _AS_IT_STANDS:
                return result
        return await self._database.run(spend_of_payer(payer, spend_request, now_ms), is_short=True)

    async def has_credit(self, payer: str, spend_request: SpendRequest, now_ms: int) -> bool:
        """Tell whether a wallet holds a credit that `spend_of_payer` would spend."""
        return bool(await self._database.read(look_of_payer(payer, spend_request, now_ms)))

    async def restore(self, call_id: str, status: int, now_ms: int) -> int | None:
        """Give the credit of a call back whose answer is to have this status, once.

        Gives how many are left then; None where the call is not open, and for a failure of the target where so many
        were given back for failures already as were granted. What is given back to a void purchase stays closed
        (`spends`). No end of the call may be noted until this is done.
        """
        row = self.ledger.row_of(call_id)
        try:
            return await self._database.run(restore_call(call_id, status, now_ms, row=row), is_short=True)
        except RestoredOftenError:
            return None

    async def _spend(self, spend: HeldSpend, now_ms: int) -> SpendResult:
        """Spend with all who wait: callers of one purchase would wait for each other, each with a connection."""
        told: asyncio.Future[SpendResult | ApiError] = asyncio.get_running_loop().create_future()

        def tell(answer: SpendResult | ApiError) -> None:
            if not told.done():  # else whoever asked has left
                told.set_result(answer)

        self.ledger.spend(spend, now_ms, tell)
        answer = await told
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def claim(
        self,
        key: PaymentKey,
        terms: Terms,
        *,
        purchase_id: str,
        paid: Paid,
        trust: TrustCaps | None,
        request_of: Callable[[str, int, bool], bytes],
        now_ms: int,
    ) -> ClaimResult:
        """Make the payment ours to settle, with the terms and the gate's version in one commit.

        `trust` has the caps under which the settlement may be trusted (the winner's `assume_valid` says whether it is),
        None where it may not. `request_of` gives the exact settle request of (purchase id, attempt, trusted), which is
        kept sealed with the claim, so that the same bytes can be sent again after a crash.
        """
        row = ClaimRow.of(terms, paid, now_ms)
        failed: Purchase | None = None  # the purchase of the payment whose next attempt this is
        while True:
            attempt = 1 if failed is None else failed.next_attempt
            columns = {
                "id": purchase_id,
                "pay_to": self._seal(purchase_id, "pay_to", terms.pay_to.encode()),
                "request": self._seal(purchase_id, "request", request_of(purchase_id, attempt, trust is not None)),
                "assume_valid": int(trust is not None),
                **msgspec.structs.asdict(row),
            }
            if failed is None:
                write = _Q.claim_payment(gate_id=terms.gate_id, is_paid=0, **key.columns, **columns)
            else:
                write = _Q.claim_again(next_attempt=attempt, attempts_max=PAYMENT_ATTEMPTS_MAX, **columns)
            unit = claim_purchase(write, key, terms.gate_id, row, trust)
            claimed = await self._database.run(unit, is_short=True)
            if claimed.outcome is not None:
                return ClaimResult(claimed.outcome, claimed.purchase)
            if claimed.purchase is None:
                trust = None
            else:
                failed, purchase_id = claimed.purchase, claimed.purchase.id

    async def honour(
        self, key: PaymentKey, terms: Terms, *, purchase_id: str, paid: Paid, transaction_hash: str, now_ms: int
    ) -> ClaimResult:
        """Grant the credits of a payment that was found on the chain, once (contract 4.3).

        Where it was claimed, the terms of the claim hold, else these; what is void for a failed payment gets back what
        was left of it. TAKEN where it was granted before, `was_honoured` where that was by the same order; where it is
        being settled or belongs to another gate, too. STALE where the gate changed.
        """
        row = ClaimRow.of(terms, paid, now_ms)
        return await self._database.run(self._honour(key, terms, purchase_id, transaction_hash, row))

    @unit_of_work
    def _honour(
        self, key: PaymentKey, terms: Terms, purchase_id: str, transaction_hash: str, row: ClaimRow
    ) -> Steps[ClaimResult]:
        identity, now_ms = key.columns, row.now_ms
        yield gates_as_they_are([terms.gate_id])
        proven: JsonObject = {"transaction_hash": transaction_hash, "now_ms": now_ms}
        rows = yield _Q.purchase_by_payment(**identity)
        if rows and (yield purchases_to_change(rows[0]["id"])):
            rows = yield _Q.purchase_by_payment(**identity)
        if rows:
            found = purchase_from(rows[0])
            is_same = rows[0]["honoured_ms"] is not None and found.transaction_hash == transaction_hash
            if found.gate_id == terms.gate_id and found.state is PurchaseState.VOID:
                is_same = is_same and found.failure == GATE_DELETED
                return (yield from _honour_void(found, transaction_hash, now_ms, is_same=is_same))
            honours = {
                PurchaseState.FAILED: _Q.honour_failed,
                PurchaseState.PARKED: _Q.honour_parked,
                PurchaseState.SHOWN: _Q.honour_shown,
            }
            if found.gate_id != terms.gate_id or found.state not in honours:
                is_here = found.gate_id == terms.gate_id and found.state is PurchaseState.LIVE
                return ClaimResult(Claim.TAKEN, found, was_honoured=is_same and is_here)
            purchase_id = found.id
            granted = yield honours[found.state](id=purchase_id, attempt=found.attempt, **proven)
        else:
            pay_to = self._seal(purchase_id, "pay_to", terms.pay_to.encode())
            claimed = yield _Q.claim_payment(
                id=purchase_id,
                **identity,
                gate_id=terms.gate_id,
                pay_to=pay_to,
                assume_valid=0,
                request=None,
                is_paid=1,
                **msgspec.structs.asdict(row),
            )
            if not claimed:
                return ClaimResult(Claim.STALE)
            granted = yield _Q.grant_credits(id=purchase_id, attempt=1, confirmed=1, follow_ms=None, **proven)
            yield _Q.mark_honoured(id=purchase_id, now_ms=now_ms)
        yield from book_grant(purchase_id, granted[0], now_ms, token_used=True)
        rows = yield _Q.purchase_by_payment(**identity)
        return ClaimResult(Claim.WON, purchase_from(rows[0]))

    def _seal(self, purchase_id: str, column: str, plaintext: bytes) -> bytes:
        return self._sealing.seal(plaintext, place("purchases", purchase_id, column))

    async def grant(
        self,
        purchase: Purchase,
        transaction_hash: str,
        *,
        confirmed: bool,
        is_followed: bool = True,
        spend_request: SpendRequest | None,
        now_ms: int,
    ) -> SpendResult:
        """Grant the credits of a settled claim, once, and spend the first for `spend_request` in the same commit.

        A claim that was granted or failed meanwhile is left as it is. `is_followed`: its payment may be taken away.
        """
        unit = grant_purchase(
            purchase, transaction_hash, spend_request, now_ms, confirmed=confirmed, is_followed=is_followed
        )
        return await self._database.run(unit, is_short=True)

    async def fail(
        self,
        purchase: Purchase,
        failure: str,
        transaction_hash: str | None,
        now_ms: int,
        *,
        follow_ms: int | None = None,
        is_followed_anew: bool = False,
    ) -> bool:
        """Record that this attempt is proved not settled; False when it was decided otherwise meanwhile.

        It is looked at again at `follow_ms`; one that was open again before only where it `is_followed_anew`.
        """
        unit = _attempt_changed(
            _Q.fail_purchase,
            purchase,
            failure=failure,
            transaction_hash=transaction_hash,
            follow_ms=follow_ms,
            is_followed_anew=int(is_followed_anew),
            now_ms=now_ms,
        )
        return bool(await self._database.run(unit))

    async def shown_in(self, purchase: Purchase) -> str | None:
        """The transaction of any of its attempts that failed, and shows its payment to everybody; None without one."""
        transaction_hash: str | None = (await self._database.read(_Q.shown_in(id=purchase.id)))[0]["transaction_hash"]
        return transaction_hash

    async def untold_since(self, purchase: Purchase, now_ms: int) -> int:
        """Since when a claim's attempt is not told of: from the first time that this was asked, in whichever process.

        A clock that was put back begins anew.
        """
        rows = await self._database.read(_Q.untold_claim(id=purchase.id, attempt=purchase.attempt, now_ms=now_ms))
        if rows:
            since_ms: int = rows[0]["untold_ms"]
            return since_ms
        await self._database.run(_attempt_changed(_Q.mark_untold, purchase, now_ms=now_ms))
        return now_ms

    async def name(self, purchase: Purchase, transaction_hash: str) -> None:
        """Keep the transaction that a facilitator named for a claim which it did not settle for sure."""
        await self._database.run(_attempt_changed(_Q.name_claim, purchase, transaction_hash=transaction_hash))

    async def park(self, purchase: Purchase, failure: str, now_ms: int) -> None:
        """Leave a claim to the operator."""
        await self._database.run(_attempt_changed(_Q.park_purchase, purchase, failure=failure, now_ms=now_ms))

    async def confirm(self, purchase: Purchase, now_ms: int, named: str = "", *, is_followed: bool = True) -> None:
        """Record that a trusted settlement proved true, in that transaction where one is known."""
        follow_ms = now_ms + FIRST_LOOK_MS if is_followed else None
        known = {"id": purchase.id, "transaction_hash": named, "follow_ms": follow_ms}
        await self._database.run(rows_of(_Q.confirm_purchase(**known, now_ms=now_ms)))

    async def void(self, purchase: Purchase, now_ms: int, *, is_followed: bool = True) -> None:
        """Void the credits not yet used of a settlement that proved failed; `is_followed`: that may be taken back."""
        await self._database.run(void_unpaid(purchase.id, now_ms, is_followed=is_followed))

    async def revive(self, purchase: Purchase, transaction_hash: str, now_ms: int) -> None:
        """Give back what `void` took, because the payment was made after all."""
        await self._database.run(revive(purchase.id, purchase.gate_id, transaction_hash, now_ms))

    async def reopen(self, purchase: Purchase, now_ms: int) -> bool:
        """Make an attempt that had failed a claim again: its payment was made after all, for whomever.

        False for one that has not failed, or is followed no more.
        """
        return bool(await self._database.run(_attempt_changed(_Q.reopen_failed, purchase, now_ms=now_ms)))

    async def end_calls(self, ended: dict[str, int], now_ms: int) -> None:
        """Write how these calls ended (by id), and what no spend took along. Raises: StorageError; it is kept."""
        for call_id, status in ended.items():
            self.ledger.end(call_id, status)
        await self.ledger.flush_ended(now_ms)

    async def interrupt_calls(self, now_ms: int) -> int:
        """Mark the calls that a dead process left dispatched, which stay charged; how many there were."""
        return await self._database.run(interrupt_calls(now_ms))

    async def by_id(self, purchase_id: str) -> Purchase | None:
        """One purchase."""
        rows = await self._database.read(_Q.purchase_by_id(id=purchase_id), is_short=True)
        return purchase_from(rows[0]) if rows else None

    async def by_payment(self, key: PaymentKey) -> Purchase | None:
        """The purchase of a payment."""
        rows = await self._database.read(_Q.purchase_by_payment(**key.columns))
        return purchase_from(rows[0]) if rows else None

    async def of_payer(self, payer: str, limit: int, offset: int) -> tuple[list[tuple[Purchase, str]], int]:
        """Live purchases of a wallet with their gates' slugs, newest first, and how many there are."""
        count = _Q.count_purchases_of_payer(payer=payer)
        page = _Q.purchases_of_payer(payer=payer, limit=limit, offset=offset)
        rows, total = await read_page(self._database, count, page, payer)
        return [(purchase_from(row), row["slug"]) for row in rows], total

    async def unpaid_of_payer(self, payer: str, gate_id: int, limit: int) -> list[Purchase]:
        """A wallet's newest purchases at a gate that are void for their payment, which may be made after all."""
        rows = await self._database.read(_Q.unpaid_of_payer(payer=payer, gate_id=gate_id, limit=limit))
        return [purchase_from(row) for row in rows]

    async def slug_of(self, gate_id: int) -> str:
        """The slug of a gate, deleted or not."""
        slug: str = (await self._database.read(_Q.slug_of_gate(id=gate_id)))[0]["slug"]
        return slug

    async def in_flight(self, limit: int) -> list[tuple[Purchase, bytes]]:
        """Claims without an outcome, oldest first, each with its settle request as it was first sent.

        A request that does not open (its key is not in the ring) is empty: nobody can ask for that claim then.
        """
        rows = await self._database.read(_Q.claims_in_flight(limit=limit))
        return [(purchase_from(row), self._request(row)) for row in rows]

    def _request(self, row: Row) -> bytes:
        try:
            return self._sealing.unseal(row["request"] or b"", place("purchases", row["id"], "request"))
        except SealError:
            return b""

    async def pay_to(self, purchase: Purchase) -> str:
        """Return the recipient by the purchase's terms. Raises: SealError."""
        row = (await self._database.read(_Q.purchase_by_id(id=purchase.id)))[0]
        return self._sealing.unseal(row["pay_to"], place("purchases", purchase.id, "pay_to")).decode()

    async def unconfirmed(self, limit: int) -> list[tuple[Purchase, bytes]]:
        """Trusted purchases whose settlement is not known to be final, oldest first, each with its settle request."""
        rows = await self._database.read(_Q.unconfirmed_purchases(limit=limit))
        return [(purchase_from(row), self._request(row)) for row in rows]

    async def to_follow(self, limit: int, now_ms: int) -> list[tuple[Purchase, int]]:
        """Sales whose payment is due to be looked at again, each with since when it is known to be paid, or not to."""
        rows = await self._database.read(_Q.followed_purchases(limit=limit, now_ms=now_ms))
        return [(purchase_from(row), row["paid_ms"] or row["granted_ms"]) for row in rows]

    async def follow_sooner(self, now_ms: int) -> None:
        """Make sales due now whose next look was set before the clock was put back; they would wait until then."""
        await self._database.run(rows_of(_Q.correct_followed(now_ms=now_ms, longest_ms=FOLLOWED_MS)))

    async def forgotten(self, purchase: Purchase, now_ms: int) -> bool:
        """Record that the hub which made a sale's payment knows nothing of it; False where it is recorded already."""
        return bool(await self._database.run(rows_of(_Q.mark_forgotten(id=purchase.id, now_ms=now_ms))))

    async def follow(self, looks: Sequence[Look]) -> None:
        """Record what was seen of sales' payments, in one commit."""
        await self._database.run(_follow(looks))


def _attempt_changed(query: Query, attempt: Purchase, **columns: Value) -> Unit[list[Row]]:
    """Return the unit that writes to this attempt of a purchase; without a row where that changes nothing."""
    return rows_of(query(id=attempt.id, attempt=attempt.attempt, **columns))


@unit_of_work
def _follow(looks: Sequence[Look]) -> Steps[None]:
    yield purchases_to_change(*(look.purchase_id for look in looks))
    for look in looks:
        if look.is_renamed:
            yield _Q.rename_credits(id=look.purchase_id, transaction_hash=look.transaction_hash)
        yield _Q.follow_purchase(
            id=look.purchase_id,
            attempt=look.attempt,
            state=look.state.value,
            transaction_hash=look.transaction_hash,
            paid_ms=look.paid_ms,
            follow_ms=look.next_ms,
            is_told=int(look.is_told),
        )


@unit_of_work
def _honour_void(found: Purchase, transaction_hash: str, now_ms: int, *, is_same: bool) -> Steps[ClaimResult]:
    yield _Q.reopen_void_credits(id=found.id, token_used=1, now_ms=now_ms)
    rows = yield _Q.honour_void(id=found.id, attempt=found.attempt, transaction_hash=transaction_hash, now_ms=now_ms)
    for row in rows:
        yield from count_again(found.id, row, now_ms)
    now = yield _Q.purchase_by_id(id=found.id)
    return ClaimResult(Claim.WON if rows else Claim.TAKEN, purchase_from(now[0]), was_honoured=is_same and not rows)
