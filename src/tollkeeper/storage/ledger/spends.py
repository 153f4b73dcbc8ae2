"""Spending held credits: the one place that takes a credit, but for the first of a grant, which `first_purchase` takes.

`spend_all` answers a batch exactly as if its spends came one after the other (contract 4.3): the purchases are looked
up once, every outcome is decided here in the order of the batch, and one statement each changes the counters and writes
the calls, which are the ledger's entries of their spends, all in one transaction, so before the first byte goes to a
target. Calls of purchases that are known (`KnownSpends`) are written together, in the journal. A counter changes only
where the purchase is live and has the credits. Where an engine lets another transaction be faster, that purchase's
spends of the batch are done again one by one, and the last word has the conditional statement of each. What this module
does not do: gather batches (`ledger` does).
"""

from __future__ import annotations

import hmac
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.purchases import GATE_DELETED, PARKED_SHOWN_MS, PurchaseState, Spend
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import (
    ConstraintError,
    Statement,
    StorageError,
    gates_as_they_are,
    load_queries,
    purchases_to_change,
    purchases_to_spend,
    unit_of_work,
)
from tollkeeper.storage.ledger import call_journal
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult, purchase_from

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tollkeeper.storage.engine.database import Row, Steps

_Q: Final = load_queries("gateway.sql")
_BATCH: Final = load_queries("spending.sql")
_ENCODE: Final = msgspec.json.Encoder().encode
_SPEND_KNOWN: Final = """
SELECT taken, lefts, line FROM spend_known(:node, :gate_ids, :gate_versions, :numbers, :counts, :now_ms, :calls, :ended)
"""
UNAVAILABLE: Final = 503
_UNKNOWN: Final = SpendResult(Spend.UNKNOWN)
_WITHOUT_CREDIT: Final = {
    PurchaseState.CLAIMED: Spend.IN_FLIGHT,
    PurchaseState.PARKED: Spend.PARKED,
    PurchaseState.FAILED: Spend.FAILED,
    PurchaseState.VOID: Spend.EXHAUSTED,
    PurchaseState.LIVE: Spend.EXHAUSTED,
    PurchaseState.SHOWN: Spend.SHOWN,
}


class HeldSpend(msgspec.Struct, frozen=True):
    """A request for one credit of a purchase, which is named by its payment or, for a token or a bearer, by its id."""

    key: PaymentKey | None
    purchase_id: str | None
    spend_request: SpendRequest


class KnownSpends(msgspec.Struct, frozen=True):
    """Spends that name their purchases by number, as most do, in columns: that is all that a paid call costs here.

    For whoever knows that a purchase's credits were granted at this gate and that its very header was shown again; none
    of this ever changes. `gates` are all of theirs, each with the version that its calls were judged by; `calls` are
    ids of calls and the numbers of their purchases, `count` is how many there are: fewer ids are one that is there
    twice. The rest is for the journal: `ended` and `opened` as in `call_journal.write`, and `after`, the last row that
    there was for certain before any of these was spent.
    """

    gates: set[tuple[int, int]]
    calls: dict[str, int]
    count: int
    ended: dict[int, list[str]] = {}
    opened: dict[str, call_journal.Open] = {}
    after: int = 0


class Spent(msgspec.Struct):
    """The answers to a batch: to its `spends`; how many credits the known ones' purchases have left, in their order.

    None for a known one that is to be asked for as one that is not (`spend_known`). `row`: of the journal, where those
    that were taken are.
    """

    others: list[SpendResult]
    lefts: Sequence[int | None] = ()
    row: int = 0


class SpendBatch(msgspec.Struct, frozen=True):
    """Spends that are one unit; `ended`: see `end_calls`. `is_alone`: see `spend_known`."""

    spends: list[HeldSpend]
    now_ms: int
    ended: dict[int, list[str]] = {}
    known: KnownSpends | None = None
    is_alone: bool = False

    @unit_of_work
    def unit(self) -> Steps[Spent]:
        """Write the ends of calls, then the known spends, then all others."""
        if self.ended:
            yield from end_calls(self.ended, self.now_ms)
        spent = Spent([])
        if self.known is not None:
            if self.spends:
                yield from self._lock(self.known)
            is_whole = not self.ended and not self.spends
            spent = yield from spend_known(self.known, self.now_ms, is_alone=self.is_alone, is_whole=is_whole)
        if self.spends:
            spent.others = yield from spend_all(self.spends, self.now_ms)
        return spent

    @unit_of_work
    def _lock(self, known: KnownSpends) -> Steps[None]:
        """Lock for both kinds together, in the one order: each of them would, but behind the other's locks."""
        yield gates_as_they_are([gate for gate, _ in known.gates] + [one.spend_request.gate_id for one in self.spends])
        ids = [one.purchase_id for one in self.spends if one.purchase_id is not None]
        payments = [one.key for one in self.spends if one.key is not None]
        yield purchases_to_spend(known.calls.values(), ids, payments)


class _Held:
    """A purchase while a batch is decided: as it was looked up, then as each spend leaves it."""

    __slots__ = (
        "_gate_deleted",
        "_gate_version",
        "is_taken_of_void",
        "is_token_used",
        "is_voided",
        "purchase",
        "spent",
    )

    def __init__(self, row: Row) -> None:
        self.purchase = purchase_from(row)
        self._gate_version: int = row["gate_version_now"]
        self._gate_deleted = row["gate_deleted_ms"] is not None
        self.spent = 0
        self.is_token_used = False
        self.is_voided = self.is_taken_of_void = False

    def ask(self, spend_request: SpendRequest, now_ms: int) -> SpendResult:
        """The answer to this request, after those before it."""
        purchase = self.purchase
        if purchase.gate_id != spend_request.gate_id:
            return SpendResult(Spend.FOREIGN, purchase)
        is_held = purchase.state is PurchaseState.LIVE and purchase.failure is not None  # see `quarantine`
        is_over = purchase.expires_ms is not None and purchase.expires_ms <= now_ms
        is_whole = purchase.remaining == purchase.granted
        is_there = self.is_due or (purchase.state is PurchaseState.LIVE and (is_whole or not self._gate_deleted))
        if not is_there or purchase.remaining == 0 or is_over or is_held:
            return SpendResult(Spend.PARKED if is_held else _WITHOUT_CREDIT[purchase.state], purchase)
        if self._gate_version != spend_request.gate_version and not self._gate_deleted:
            return SpendResult(Spend.STALE, purchase)  # before any proof: what a call must show is the gate's to say
        if spend_request.header is not None and (
            purchase.token_used
            or (spend_request.is_once and not is_whole)
            or not hmac.compare_digest(spend_request.header, purchase.header_hash)
        ):
            return SpendResult(Spend.WITHHELD, purchase)
        if self._gate_deleted:
            # Claimed before the delete: one call is served, the rest is void (contract 2), if it is not so yet.
            self.is_taken_of_void = self.is_due
            result = self.take(spend_request)
            self.is_voided = True
            self.purchase = _changed(self.purchase, state=PurchaseState.VOID, failure=GATE_DELETED)
            return result
        return self.take(spend_request)

    @property
    def is_due(self) -> bool:
        """Was its gate deleted before any of its calls was answered? Then one still is (decision 0009)."""
        purchase = self.purchase
        is_void = purchase.state is PurchaseState.VOID and purchase.failure == GATE_DELETED
        return is_void and purchase.remaining == purchase.granted

    def take(self, spend_request: SpendRequest) -> SpendResult:
        """Take one credit, which is known to be there."""
        purchase = self.purchase
        self.spent += 1
        self.is_token_used = self.is_token_used or spend_request.is_token
        self.purchase = _changed(
            purchase, remaining=purchase.remaining - 1, token_used=purchase.token_used or spend_request.is_token
        )
        return SpendResult(Spend.SPENT, self.purchase)


_changed = msgspec.structs.replace


@unit_of_work
def spend_known(known: KnownSpends, now_ms: int, *, is_alone: bool = False, is_whole: bool = False) -> Steps[Spent]:
    """Spend; return how many credits each purchase has left after the spend that named it and was right.

    None where that is not sure, nothing taken: its gate or another of these has changed, or its purchase has not the
    credits for all of these. Such a spend is asked again as one that is not known. `is_whole`: its unit is no more than
    this.
    Raises: ConstraintError for a call id that is used twice in these; with `is_alone` for one that is used already, too
    (ids are made so that none is; a batch that broke is asked for in pieces, to find the one that broke it).
    """
    calls = known.calls
    if len(calls) != known.count or (is_alone and (yield from _are_used(known))):
        raise ConstraintError("a call's id is used twice")
    yield from call_journal.note_open(known.opened)
    count_of = Counter(calls.values())
    gates, numbers = sorted(known.gates), sorted(count_of)
    rows = yield Statement(  # in columns: a row for each of many purchases costs more to read than to spend
        _SPEND_KNOWN,
        {
            "gate_ids": [gate_id for gate_id, _ in gates],
            "gate_versions": [version for _, version in gates],
            "numbers": numbers,
            "counts": [count_of[number] for number in numbers],
            "now_ms": now_ms,
            "calls": _ENCODE(calls).decode(),
            "ended": _ENCODE(known.ended).decode(),
        },
        instead=_spend_here(known, count_of, now_ms),
        is_whole=is_whole and not is_alone and not known.opened,
    )
    spent = rows[0]
    left_of: dict[int, int] = dict(zip(spent["taken"], spent["lefts"], strict=True))  # after the last of its spends
    return Spent([], _lefts(calls.values(), count_of, left_of), spent["line"])


@unit_of_work
def _spend_here(known: KnownSpends, count_of: Counter[int], now_ms: int) -> Steps[list[Row]]:
    """Spend as the function `spend_known` of PostgreSQL does, for an engine without: its row is the same."""
    calls = known.calls
    rows: list[Row] = []
    gates = yield _BATCH.standing_of_gates(wanted=_ENCODE([gate_id for gate_id, _ in known.gates]).decode())
    if known.gates == {(row["id"], row["version"]) for row in gates if row["deleted_ms"] is None}:
        rows = yield _BATCH.spend_known_credits(spent=_ENCODE(count_of).decode(), now_ms=now_ms)
    taken = [row["number"] for row in rows]
    if len(taken) < len(count_of):
        there = set(taken)
        calls = {call_id: number for call_id, number in calls.items() if number in there}
    line = yield from call_journal.write(calls, known.ended, {}, now_ms)
    return [{"taken": taken, "lefts": [row["remaining"] for row in rows], "line": line}]


def _lefts(numbers: Collection[int], count_of: Counter[int], left_of: dict[int, int]) -> list[int | None]:
    """Return how many credits are left after each; None where it is not enough for all of its purchase's."""
    if len(count_of) == len(numbers):  # mostly each has one
        return list(map(left_of.get, numbers))
    left: list[int | None] = []
    for number in reversed([*numbers]):
        left.append(count := left_of.get(number))
        if count is not None:
            left_of[number] = count + 1
    return left[::-1]


@unit_of_work
def _are_used(known: KnownSpends) -> Steps[bool]:
    """Return True if one of these calls has been used."""
    for call_id in known.calls:
        if (yield _Q.purchase_of_call(id=call_id)):
            return True
    return bool((yield from call_journal.find(known.calls, known.after + 1)))


@unit_of_work
def spend_all(spends: Sequence[HeldSpend], now_ms: int) -> Steps[list[SpendResult]]:
    """Spend one credit for each that has a right to one; the answers, in the same order.

    Raises: ConstraintError for a call id that is there twice, or has a row of its own already.
    """
    yield gates_as_they_are(spend.spend_request.gate_id for spend in spends)
    held_of = yield from _look_up(spends)
    if held_of and (yield purchases_to_change(*{held.purchase.id for held in held_of.values()})):
        held_of = yield from _look_up(spends)
    helds = [held_of.get(spend.purchase_id if spend.key is None else spend.key) for spend in spends]
    results = [
        _UNKNOWN if held is None else held.ask(spend.spend_request, now_ms)
        for held, spend in zip(helds, spends, strict=True)
    ]
    changed = {held.purchase.id: held for held in held_of.values() if held.spent}
    short = yield from _take(changed, now_ms)
    if short:
        for place, held in enumerate(helds):
            if held is not None and held.purchase.id in short:
                results[place] = yield from _spend_alone(spends[place], now_ms)
    calls = [
        (spend.spend_request.call_id, result.purchase.id)
        for spend, result in zip(spends, results, strict=True)
        if result.outcome is Spend.SPENT and result.purchase is not None
    ]
    yield from _record(calls, now_ms)
    return results


@unit_of_work
def _spend_alone(spend: HeldSpend, now_ms: int) -> Steps[SpendResult]:
    """One spend of a purchase that changes under our hands. Its call is the caller's to record."""
    (held,) = set((yield from _look_up([spend])).values())
    result = held.ask(spend.spend_request, now_ms)
    if held.spent and (yield from _take({held.purchase.id: held}, now_ms)):
        (seen,) = set((yield from _look_up([spend])).values())
        # Where credits are left nobody was faster: they are closed, their sale is live. The next inspection holds it.
        is_contradicted = seen.ask(spend.spend_request, now_ms).outcome is Spend.SPENT
        return SpendResult(Spend.PARKED if is_contradicted else Spend.EXHAUSTED, _changed(held.purchase, remaining=0))
    return result


@unit_of_work
def spend_one(spend: HeldSpend, now_ms: int) -> Steps[SpendResult]:
    """Spend one credit as `spend_all` does."""
    (result,) = yield from spend_all([spend], now_ms)
    return result


def look_of_payer(payer: str, spend_request: SpendRequest, now_ms: int) -> Statement:
    """Return the query for the purchase that a wallet's call is spent from.

    It reads all that the wallet ever bought.
    """
    since_ms = now_ms - PARKED_SHOWN_MS
    return _Q.oldest_of_payer(payer=payer, gate_id=spend_request.gate_id, now_ms=now_ms, parked_since_ms=since_ms)


@unit_of_work
def spend_of_payer(payer: str, spend_request: SpendRequest, now_ms: int) -> Steps[SpendResult]:
    """Spend a credit of the oldest purchase that a wallet has at the gate; the caller is that wallet."""
    while True:
        rows = yield look_of_payer(payer, spend_request, now_ms)
        if not rows:
            return _UNKNOWN
        result = yield from spend_one(HeldSpend(None, rows[0]["id"], spend_request), now_ms)
        if result.outcome is not Spend.EXHAUSTED:  # else another transaction was faster: the next one
            return result


@unit_of_work
def restore_call(
    call_id: str,
    status: int,
    now_ms: int,
    *,
    row: int | None = None,
) -> Steps[int | None]:
    """Give a credit back, with its entry in the ledger; see `Purchases.restore`.

    `row`: of the journal, where the call is there; how it ended is then for who asks to say.

    Raises: RestoredOftenError.
    """
    is_bounded = status != UNAVAILABLE
    if row is not None:
        for found in (yield from call_journal.find([call_id], row, row)):
            if (yield from call_journal.enter_restore(call_id, found["id"], now_ms)):
                return (yield from _give_credit_back(found["id"], is_bounded=is_bounded))
    else:
        for restored in (yield _Q.restore_call(id=call_id, status=status, now_ms=now_ms)):
            purchase_id = restored["purchase_id"]
            left = yield from _give_credit_back(purchase_id, is_bounded=is_bounded)
            yield _Q.give_credits(cause=call_id, reason="restore", purchase_id=purchase_id, delta=1, now_ms=now_ms)
            return left
    return None


class RestoredOftenError(Exception):
    """For failures of the target a purchase had as many credits given back as it has: this one stays used.

    Else a buyer of one credit could have a target work for ever (contract 4.5).
    """


@unit_of_work
def _give_credit_back(purchase_id: str, *, is_bounded: bool) -> Steps[int]:
    """Give a credit back; return how many there are then. Raises: RestoredOftenError, which changes nothing."""
    yield purchases_to_change(purchase_id)
    rows = yield _Q.give_credit_back(id=purchase_id, is_bounded=int(is_bounded))
    if not rows and is_bounded:
        raise RestoredOftenError
    if not rows:
        raise StorageError("a purchase has no credits to which one could be given back")
    remaining: int = rows[0]["remaining"]
    return remaining


@unit_of_work
def give_back(calls: Mapping[str, int | None], since: int, now_ms: int) -> Steps[None]:
    """Undo what spends took whose callers were answered 503; one that took nothing, or was undone, changes nothing.

    Those of which no row of the journal is named have rows of their own, or are in the journal from the row `since` on.
    """
    found: list[Row] = []
    if unknown := [call_id for call_id, row in calls.items() if row is None]:
        for call_id in unknown:
            yield from restore_call(call_id, UNAVAILABLE, now_ms)
        yield from end_calls({UNAVAILABLE: unknown}, now_ms)  # what was not given back has its end, too
        found += yield from call_journal.find(unknown, since)
    known: dict[int, list[str]] = {}
    for call_id, row in calls.items():
        if row is not None:
            known.setdefault(row, []).append(call_id)
    for row, its in known.items():
        found += yield from call_journal.find(its, row, row)
    yield purchases_to_change(*{spent["id"] for spent in found})
    for spent in found:
        if (yield from call_journal.enter_restore(spent["call_id"], spent["id"], now_ms)):
            yield from _give_credit_back(spent["id"], is_bounded=False)
    if found:
        yield from call_journal.write({}, {UNAVAILABLE: [spent["call_id"] for spent in found]}, {}, now_ms)


@unit_of_work
def end_calls(
    ended: Mapping[int, Sequence[str]],
    now_ms: int,
    in_journal: Mapping[int, Sequence[str]] = MappingProxyType({}),
    opened: Mapping[str, call_journal.Open] = MappingProxyType({}),
) -> Steps[None]:
    """Record how calls ended: by status, ids of those with rows of their own, and of those in the journal.

    `opened`: see `call_journal.write`.
    """
    for status, calls in ended.items():
        yield _BATCH.end_calls(ended=_ENCODE(calls).decode(), status=status, now_ms=now_ms)
    yield from call_journal.write({}, in_journal, opened, now_ms)


@unit_of_work
def _look_up(spends: Sequence[HeldSpend]) -> Steps[dict[PaymentKey | str | None, _Held]]:
    """The purchases that the spends name; one that is named by payment and by id is one and the same."""
    held_of: dict[PaymentKey | str | None, _Held] = {}
    by_id: dict[str, _Held] = {}
    keys = list(dict.fromkeys(spend.key for spend in spends if spend.key is not None))
    if keys:
        wanted = _ENCODE([(key.network, key.asset, key.payer, key.nonce) for key in keys]).decode()
        for row in (yield _BATCH.purchases_of_payments(wanted=wanted)):
            held_of[keys[row["place"]]] = by_id[row["id"]] = _Held(row)
    ids = list(dict.fromkeys(spend.purchase_id for spend in spends if spend.key is None))
    if ids:
        for row in (yield _BATCH.purchases_of_ids(wanted=_ENCODE(ids).decode())):
            held_of[row["id"]] = by_id.get(row["id"]) or _Held(row)
    return held_of


@unit_of_work
def _take(changed: dict[str, _Held], now_ms: int) -> Steps[set[str]]:
    """Take what was decided from the counters; the purchases that did not have it any more and stay as they are."""
    if not changed:
        return set()
    of_void = [held for held in changed.values() if held.is_taken_of_void]
    spent = [
        (held.purchase.number, held.spent, int(held.is_token_used))
        for held in changed.values()
        if not held.is_taken_of_void
    ]
    rows = yield _BATCH.spend_credits(spent=_ENCODE(spent).decode(), now_ms=now_ms)
    for held in of_void:
        rows += yield _Q.spend_due(number=held.purchase.number, token_used=int(held.is_token_used), now_ms=now_ms)
    taken = {row["number"] for row in rows}
    short = {purchase_id for purchase_id, held in changed.items() if held.purchase.number not in taken}
    for purchase_id, held in changed.items():
        if held.is_voided and purchase_id not in short:
            yield from void_with_gate(purchase_id, now_ms)
    return short


@unit_of_work
def void_with_gate(purchase_id: str, now_ms: int) -> Steps[None]:
    """End a purchase that is LIVE, and what is left of its credits, because its gate was deleted."""
    for row in (yield _Q.void_with_gate(id=purchase_id, now_ms=now_ms)):
        yield _Q.close_credits(number=row["number"])


@unit_of_work
def _record(calls: Sequence[tuple[str, str | None]], now_ms: int) -> Steps[None]:
    """The calls, which are the ledger's entries of these spends: call id, purchase id.

    Raises: ConstraintError for an id that is there twice, as the database does for one that it has.
    """
    if calls:
        purchase_of = dict(calls)
        if len(purchase_of) != len(calls):
            raise ConstraintError("a call's id is used twice")
        yield _BATCH.insert_calls(calls=_ENCODE(purchase_of).decode(), now_ms=now_ms)
