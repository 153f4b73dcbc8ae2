"""The two units of a first purchase: the claim is one commit, grant and first spend are another (contract 4.2, 4.3).

Both hold all that they need; what is stored sealed was sealed before. What this module does not do: seal, or decide
what is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX, TRUST_LOST_SECONDS
from tollkeeper.core.purchases import Claim, PurchaseState, Spend, next_look_ms
from tollkeeper.core.trust import WITHOUT_LIMIT, Exposure, TrustCaps
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import (
    counted_together,
    gates_as_they_are,
    load_queries,
    purchases_to_change,
    unit_of_work,
)
from tollkeeper.storage.ledger.purchase_rows import Purchase, SpendRequest, SpendResult, in_whole, purchase_from
from tollkeeper.storage.ledger.spends import void_with_gate

if TYPE_CHECKING:
    from tollkeeper.core.purchases import Terms
    from tollkeeper.storage.engine.database import Row, Statement, Steps

_Q: Final = load_queries("gateway.sql")
_NO_CREDITS: Final[JsonObject] = {"granted": 0, "remaining": 0, "token_used": False, "expires_ms": None}


_FAR_OFF_SECONDS: Final = 2**53  # an authorization's end is a uint256


@dataclass(frozen=True, slots=True)
class Paid:
    """Parts of a payment kept with its claim: its value, its end (Unix seconds), the hash of its header.

    The end is None on Solana, where blocks and not clocks end a payment.
    """

    value_micro: int
    valid_before: int | None
    header: bytes


class ClaimRow(msgspec.Struct, frozen=True):
    """The columns of a claim that a payment and its terms decide; `value_micro` as text, for it has no bound."""

    gate_version: int
    price_micro: int
    credits: int
    credits_expire_after_seconds: int | None
    value_micro: str
    valid_before_seconds: int | None
    header_hash: bytes
    now_ms: int

    @classmethod
    def of(cls, terms: Terms, paid: Paid, now_ms: int) -> ClaimRow:
        """Return the columns of a claim by these terms."""
        end = paid.valid_before
        return cls(
            gate_version=terms.gate_version,
            price_micro=terms.price_micro,
            credits=terms.credits,
            credits_expire_after_seconds=terms.credits_expire_after_seconds,
            value_micro=str(paid.value_micro),
            valid_before_seconds=None if end is None else min(end, _FAR_OFF_SECONDS),
            header_hash=paid.header,
            now_ms=now_ms,
        )


class ClaimedPurchase(NamedTuple):
    """Outcome of a claim. `purchase` is the winner's own, or the one that is there.

    Without an outcome it may be asked for in another way: as the next attempt of `purchase`, which failed before; where
    there is none, without trust, whose cap is reached.
    """

    outcome: Claim | None = None
    purchase: Purchase | None = None


@unit_of_work
def claim_purchase(
    write: Statement, key: PaymentKey, gate_id: int, row: ClaimRow, trust: TrustCaps | None
) -> Steps[ClaimedPurchase]:
    """Make a payment ours to settle. The gate, the cap and the payment's identity are judged where it is written.

    `write` is the one conditional statement that decides who claims. `trust` is the cap under which the settlement may
    be trusted, None where it is not to be.
    """
    yield gates_as_they_are([gate_id])
    if trust is not None and not (yield from _may_trust(key.payer, gate_id, row, trust)):
        return ClaimedPurchase()
    won = yield write
    if won:
        return ClaimedPurchase(Claim.WON, purchase_from(won[0], **_NO_CREDITS))
    standing = yield _Q.gate_standing(gate_id=gate_id)
    gate = standing[0]
    if gate["version"] != row.gate_version or gate["deleted_ms"] is not None or not gate["is_enabled"]:
        return ClaimedPurchase(Claim.STALE)
    rows = yield _Q.purchase_by_payment(**key.columns)
    found = purchase_from(rows[0])
    if found.gate_id != gate_id or found.state is not PurchaseState.FAILED:
        return ClaimedPurchase(Claim.TAKEN, found)
    if found.next_attempt > PAYMENT_ATTEMPTS_MAX:
        return ClaimedPurchase(Claim.ATTEMPTS_EXHAUSTED, found)
    return ClaimedPurchase(None, found)


@unit_of_work
def _may_trust(payer: str, gate_id: int, row: ClaimRow, caps: TrustCaps) -> Steps[bool]:
    if caps == WITHOUT_LIMIT:
        return True
    yield counted_together(f"trust:{gate_id}", f"trust:{payer}")
    value_micro = int(row.value_micro)
    after_ms = row.now_ms - TRUST_LOST_SECONDS * 1000
    rows = yield _Q.exposure_of_payer(payer=payer, after_ms=after_ms)
    if not _exposure(rows[0]).allows(value_micro, caps.payer):
        return False
    rows = yield _Q.exposure_of_gate(gate_id=gate_id, after_ms=after_ms)
    return _exposure(rows[0]).allows(value_micro, caps.gate)


def _exposure(row: Row) -> Exposure:
    return Exposure(row["purchases"], in_whole(row["value_high"], row["value_low"]))


@unit_of_work
def grant_purchase(
    claim: Purchase,
    transaction_hash: str,
    spend_request: SpendRequest | None,
    now_ms: int,
    *,
    confirmed: bool,
    is_followed: bool,
) -> Steps[SpendResult]:
    """Grant the credits of a settled claim once, and spend the first of them, where `spend_request` asks for it.

    A claim that failed meanwhile is left as it is; of one that was granted the first credit is its claimer's.
    """
    yield gates_as_they_are([claim.gate_id])
    granted = yield _Q.grant_credits(
        id=claim.id,
        attempt=claim.attempt,
        transaction_hash=transaction_hash,
        confirmed=int(confirmed),
        follow_ms=next_look_ms(now_ms, now_ms, is_used_up=False) if is_followed else None,
        now_ms=now_ms,
    )
    if not granted:
        spent = spend_request is not None and (yield from _spent_behind(claim, spend_request, now_ms))
        rows = yield _Q.purchase_by_id(id=claim.id)
        return SpendResult(Spend.SPENT if spent else Spend.STALE, purchase_from(rows[0]))
    # The first credit is taken whatever became of its gate since, and whichever proof its call showed.
    spent_count = int(spend_request is not None)
    is_token_used = spend_request is not None and spend_request.is_token
    booked = yield from book_grant(claim.id, granted[0], now_ms, spent_count=spent_count, token_used=is_token_used)
    if spend_request is not None:
        yield _Q.insert_call(id=spend_request.call_id, purchase_id=claim.id, now_ms=now_ms)
    purchase = msgspec.structs.replace(
        claim,
        state=PurchaseState.LIVE,
        confirmed=confirmed,
        transaction_hash=transaction_hash,
        credits=booked.granted,  # an attempt that was not made may have been claimed again, by other terms
        granted=booked.granted,
        remaining=booked.granted - spent_count,
        token_used=is_token_used,
        expires_ms=booked.expires_ms,
    )
    return SpendResult(Spend.STALE if spend_request is None else Spend.SPENT, purchase)


@unit_of_work
def _spent_behind(claim: Purchase, spend_request: SpendRequest, now_ms: int) -> Steps[bool]:
    """Return True if a credit of somebody else's grant was taken for `spend_request`, by this unit before, or now.

    The first credit is its claimer's, whatever became of the gate since (contract 2, 3.3).
    """
    if (yield _Q.purchase_of_call(id=spend_request.call_id)):
        return True
    yield purchases_to_change(claim.id)
    taken = yield _Q.spend_first(
        id=claim.id, attempt=claim.attempt, token_used=int(spend_request.is_token), now_ms=now_ms
    )
    if taken:
        yield _Q.insert_call(id=spend_request.call_id, purchase_id=claim.id, now_ms=now_ms)
    return bool(taken)


class Booked(NamedTuple):
    """Result of a grant: how many credits, and when they end, if they do."""

    granted: int
    expires_ms: int | None


@unit_of_work
def book_grant(purchase_id: str, granted: Row, now_ms: int, *, token_used: bool, spent_count: int = 0) -> Steps[Booked]:
    """The credits of a grant, so many of them spent at once, their entry in the ledger and the gate's counters.

    Of a gate that was deleted by then they are void (contract 2); one of its calls is due where none was spent.
    """
    count: int = granted["credits"]
    lasting_seconds: int | None = granted["credits_expire_after_seconds"]
    expires_ms = None if lasting_seconds is None else now_ms + lasting_seconds * 1000
    yield _Q.open_credits(
        number=granted["number"],
        granted=count,
        remaining=count - spent_count,
        token_used=int(token_used),
        expires_ms=expires_ms,
    )
    yield _Q.give_credits(cause=purchase_id, reason="grant", purchase_id=purchase_id, delta=count, now_ms=now_ms)
    rows = yield _Q.count_purchase(gate_id=granted["gate_id"], revenue_micro=int(granted["value_micro"]))
    if rows and rows[0]["gate_deleted_ms"] is not None:
        yield from void_with_gate(purchase_id, now_ms)
    return Booked(count, expires_ms)
