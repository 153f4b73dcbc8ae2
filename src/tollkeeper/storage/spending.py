"""Spending held credits: the one place that takes a credit, whatever bought it and however many calls ask at once.

`spend_all` answers a batch exactly as if its spends came one after the other (contract 4.3): the purchases are looked
up once, every outcome is decided here in the order of the batch, and one statement each changes the counters, appends
the ledger's entries and writes the calls, all in one transaction, so before the first byte goes to a target. A counter
changes only where the purchase is live and has the credits. Where an engine lets another transaction be faster, that
purchase's spends of the batch are done again one by one, and the last word has the conditional statement of each.
What this module does not do: gather batches (`ledger` does).
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.purchases import PurchaseState, Spend
from tollkeeper.core.wire import PaymentKey
from tollkeeper.storage.database import StorageError
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult, purchase_from
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.storage.database import Row, Unit

_Q: Final = load_queries("gateway.sql")
_BATCH: Final = load_queries("spending_sqlite.sql")
_ENCODE: Final = msgspec.json.Encoder().encode
_UNKNOWN: Final = SpendResult(Spend.UNKNOWN)
_WITHOUT_CREDIT: Final = {
    PurchaseState.CLAIMED: Spend.IN_FLIGHT,
    PurchaseState.PARKED: Spend.PARKED,
    PurchaseState.FAILED: Spend.FAILED,
    PurchaseState.VOID: Spend.EXHAUSTED,
    PurchaseState.LIVE: Spend.EXHAUSTED,
}


class HeldSpend(msgspec.Struct, frozen=True):
    """A wish for one credit of a purchase, which is named by its payment or, for a credit token, by its id.

    By both it is named by whoever knows that the payment bought this purchase, that its credits were granted at the
    wish's gate and that the wish shows the very header that bought it; none of this ever changes.
    """

    key: PaymentKey | None
    purchase_id: str | None
    wish: SpendRequest


class SpendBatch(msgspec.Struct, frozen=True):
    """Spends that are one unit (a `Job`). `ended` are calls that are over, by id, and their status."""

    spends: list[HeldSpend]
    now_ms: int
    ended: list[tuple[str, int]] = []

    def unit(self) -> Unit[list[SpendResult]]:
        """See `spend_all` and `end_calls`."""
        if self.ended:
            yield from end_calls(self.ended, self.now_ms)
        return (yield from spend_all(self.spends, self.now_ms))


class _Held:
    """A purchase while a batch is decided: as it was looked up, then as each spend leaves it."""

    __slots__ = ("_gate_deleted", "_gate_version", "is_token_used", "is_voided", "purchase", "spent")

    def __init__(self, row: Row) -> None:
        self.purchase = purchase_from(row)
        self._gate_version: int = row["gate_version_now"]
        self._gate_deleted = row["gate_deleted_ms"] is not None
        self.spent = 0
        self.is_token_used = False
        self.is_voided = False

    def ask(self, wish: SpendRequest, now_ms: int) -> SpendResult:
        """The answer to this wish, after those before it."""
        purchase = self.purchase
        if purchase.gate_id != wish.gate_id:
            return SpendResult(Spend.FOREIGN, purchase)
        is_over = purchase.expires_ms is not None and purchase.expires_ms <= now_ms
        if purchase.state is not PurchaseState.LIVE or purchase.remaining == 0 or is_over:
            return SpendResult(_WITHOUT_CREDIT[purchase.state], purchase)
        if self._gate_version != wish.gate_version and not self._gate_deleted:
            return SpendResult(Spend.STALE, purchase)  # first of all: what a call must show is the gate's to say
        if wish.header is not None and (
            purchase.token_used or not hmac.compare_digest(wish.header, purchase.header_hash)
        ):
            return SpendResult(Spend.WITHHELD, purchase)
        if self._gate_deleted:
            # Claimed before the delete and granted after it: one call is served, the rest is void (contract 2).
            result = self.take(wish)
            self.is_voided = True
            self.purchase = _changed(self.purchase, state=PurchaseState.VOID, failure="gate_deleted")
            return result
        return self.take(wish)

    def take(self, wish: SpendRequest) -> SpendResult:
        """Take one credit, which is known to be there."""
        purchase = self.purchase
        self.spent += 1
        self.is_token_used = self.is_token_used or wish.header is None
        self.purchase = _changed(
            purchase, remaining=purchase.remaining - 1, token_used=purchase.token_used or wish.header is None
        )
        return SpendResult(Spend.SPENT, self.purchase)


_changed = msgspec.structs.replace


def spend_all(spends: Sequence[HeldSpend], now_ms: int) -> Unit[list[SpendResult]]:
    """Spend one credit for each that has a right to one; the answers, in the same order.

    Those that name their purchase come first: nothing need be read for them, and the statement that takes the credits
    says whether the purchase still stands as they think; where it does not, they are asked anew with the others.
    Raises: ConstraintError for a call id that was used before.
    """
    results = yield from _spend_known(spends, now_ms)
    places = [place for place, result in enumerate(results) if result is None]
    if places:
        others = yield from _spend_unknown([spends[place] for place in places], now_ms)
        for place, other in zip(places, others, strict=True):
            results[place] = other
    return [result for result in results if result is not None]


def _spend_known(spends: Sequence[HeldSpend], now_ms: int) -> Unit[list[SpendResult | None]]:
    """The answers to those that name their purchase and were right; None for every other."""
    known = [spend for spend in spends if spend.purchase_id is not None and spend.key is not None]
    if not known:
        return [None] * len(spends)
    gates = yield _BATCH.standing_of_gates(wanted=_ENCODE(list({spend.wish.gate_id for spend in known})).decode())
    versions = {row["id"]: row["version"] for row in gates if row["deleted_ms"] is None}
    count_of: dict[str, int] = {}
    for spend in known:
        if spend.purchase_id is not None and versions.get(spend.wish.gate_id) == spend.wish.gate_version:
            count_of[spend.purchase_id] = count_of.get(spend.purchase_id, 0) + 1
    rows = yield _BATCH.spend_known_credits(spent=_ENCODE(list(count_of.items())).decode(), now_ms=now_ms)
    left_of = {row["id"]: row["remaining"] + count_of[row["id"]] for row in rows}
    results: list[SpendResult | None] = []
    calls: list[tuple[str, str, int]] = []
    for spend in spends:
        wish, purchase_id = spend.wish, spend.purchase_id
        left = None if purchase_id is None or spend.key is None else left_of.get(purchase_id)
        if left is None or purchase_id is None or versions[wish.gate_id] != wish.gate_version:
            results.append(None)
            continue
        left_of[purchase_id] = left = left - 1
        calls.append((wish.call_id, purchase_id, wish.gate_id))
        results.append(SpendResult(Spend.SPENT, None, left))
    yield from _record(calls, now_ms)
    return results


def _spend_unknown(spends: Sequence[HeldSpend], now_ms: int) -> Unit[list[SpendResult]]:
    held_of = yield from _look_up(spends)
    helds = [held_of.get(spend.purchase_id if spend.key is None else spend.key) for spend in spends]
    results = [
        _UNKNOWN if held is None else held.ask(spend.wish, now_ms) for held, spend in zip(helds, spends, strict=True)
    ]
    changed = {held.purchase.id: held for held in held_of.values() if held.spent}
    short = yield from _take(changed, now_ms)
    if short:
        for place, held in enumerate(helds):
            if held is not None and held.purchase.id in short:
                results[place] = yield from _spend_alone(spends[place], now_ms)
    calls = [
        (spend.wish.call_id, result.purchase.id, spend.wish.gate_id)
        for spend, result in zip(spends, results, strict=True)
        if result.outcome is Spend.SPENT and result.purchase is not None
    ]
    yield from _record(calls, now_ms)
    return results


def _spend_alone(spend: HeldSpend, now_ms: int) -> Unit[SpendResult]:
    """One spend of a purchase that changes under our hands. Its call is the caller's to record."""
    held_of = yield from _look_up([spend])
    (held,) = set(held_of.values())
    before = held.purchase
    result = held.ask(spend.wish, now_ms)
    if held.spent and (yield from _take({before.id: held}, now_ms)):
        return SpendResult(Spend.EXHAUSTED, _changed(before, remaining=0))
    return result


def spend_first(row: Row, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
    """Spend the first credit of a purchase that was granted in this transaction, whatever became of its gate since."""
    held = _Held({**row, "gate_version_now": wish.gate_version, "gate_deleted_ms": None})
    result = held.take(wish)
    if (yield from _take({held.purchase.id: held}, now_ms)):
        return SpendResult(Spend.EXHAUSTED, purchase_from(row, remaining=0))
    yield from _record([(wish.call_id, held.purchase.id, wish.gate_id)], now_ms)
    return result


def spend_of_payer(payer: str, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
    """Spend a credit of the oldest purchase that a wallet has at the gate; the caller is that wallet."""
    while True:
        rows = yield _Q.oldest_of_payer(payer=payer, gate_id=wish.gate_id, now_ms=now_ms)
        if not rows:
            return _UNKNOWN
        (result,) = yield from spend_all([HeldSpend(None, rows[0]["id"], wish)], now_ms)
        if result.outcome is not Spend.EXHAUSTED:  # else another transaction was faster: the next one
            return result


def restore_call(call_id: str, status: int, now_ms: int) -> Unit[int | None]:
    """Give a credit back, with its entry in the ledger; see `Purchases.restore`."""
    rows = yield _Q.restore_call(id=call_id, status=status, now_ms=now_ms)
    if not rows:
        return None
    purchase_id = rows[0]["purchase_id"]
    left = yield _Q.give_credit_back(id=purchase_id, now_ms=now_ms)
    if not left:
        raise StorageError("a purchase became void while its credit was given back")
    yield _Q.insert_entry(cause=call_id, reason="restore", purchase_id=purchase_id, delta=1, now_ms=now_ms)
    remaining: int = left[0]["remaining"]
    return remaining


def end_calls(ended: Sequence[tuple[str, int]], now_ms: int) -> Unit[None]:
    """Record how calls ended: call id and status."""
    yield _BATCH.end_calls(ended=_ENCODE(ended).decode(), now_ms=now_ms)


def _look_up(spends: Sequence[HeldSpend]) -> Unit[dict[PaymentKey | str | None, _Held]]:
    """The purchases that the spends name; one that is named by payment and by id is one and the same."""
    held_of: dict[PaymentKey | str | None, _Held] = {}
    by_id: dict[str, _Held] = {}
    keys = list(dict.fromkeys(spend.key for spend in spends if spend.key is not None))
    if keys:
        wanted = _ENCODE([(key.network, key.asset, key.payer, key.nonce) for key in keys]).decode()
        for row in (yield _BATCH.purchases_of_payments(wanted=wanted)):
            held_of[keys[row["number"]]] = by_id[row["id"]] = _Held(row)
    ids = list(dict.fromkeys(spend.purchase_id for spend in spends if spend.key is None))
    if ids:
        for row in (yield _BATCH.purchases_of_ids(wanted=_ENCODE(ids).decode())):
            held_of[row["id"]] = by_id.get(row["id"]) or _Held(row)
    return held_of


def _take(changed: dict[str, _Held], now_ms: int) -> Unit[set[str]]:
    """Take what was decided from the counters; the purchases that did not have it any more and stay as they are."""
    if not changed:
        return set()
    spent = [(purchase_id, held.spent, int(held.is_token_used)) for purchase_id, held in changed.items()]
    rows = yield _BATCH.spend_credits(spent=_ENCODE(spent).decode(), now_ms=now_ms)
    short = changed.keys() - {row["id"] for row in rows} if len(rows) != len(spent) else set()
    for purchase_id, held in changed.items():
        if held.is_voided and purchase_id not in short:
            yield _Q.void_purchase(id=purchase_id, failure="gate_deleted", now_ms=now_ms)
    return short


def _record(calls: list[tuple[str, str, int]], now_ms: int) -> Unit[None]:
    """The ledger's entries and the calls' rows: call id, purchase id, gate id."""
    if calls:
        written = _ENCODE(calls).decode()
        yield _BATCH.insert_entries(calls=written, now_ms=now_ms)
        yield _BATCH.insert_calls(calls=written, now_ms=now_ms)
