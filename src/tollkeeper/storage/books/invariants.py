"""The invariants that a database can state, and what does not hold of one now (security 5: I1 to I14).

Each is a query that lists what breaks it, of everything or of what changed lately (`Extent`). I6 to I8 also speak of
the chain, which `chains` and `serving.books.reconciliation` compare. What this module does not do: mend anything.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.purchases import PARKED_SHOWN_MS
from tollkeeper.core.settlement.reconciliation import Difference
from tollkeeper.core.settlement.states import State, may_move
from tollkeeper.storage.engine.database import load_queries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tollkeeper.storage.engine.database import Query, Snapshot, Value

_GATEWAY: Final = load_queries("invariants_gateway.sql")
_HUB: Final = load_queries("invariants_hub.sql")
_PURCHASES: Final = load_queries("gateway.sql")
_SETTLEMENTS: Final = load_queries("settlements.sql")
_BOTH: Final = load_queries("invariants_both.sql")
# What these speak of, nothing says when it changed; or, of all purchases and calls, they tell one figure.
_OF_ALL_ONLY: Final = frozenset(
    {
        "i1_one_purchase_per_payment",
        "i1_one_settlement_per_payment",
        "i2_credits_are_of_a_purchase",
        "i2_days_are_the_calls",
        "i3_what_is_given_back_was_spent",
        "i9_nonces_below_the_lanes_next",
        "counters_are_the_sales",
    }
)
# These read every row of the journal.
_OF_ALL_CALLS: Final = frozenset({"i2_days_are_the_calls", "i3_what_is_given_back_was_spent"})
_JUDGED_HERE: Final = frozenset({"i10_old_unfinished", "i12_transitions_seen"})
# A row that is still open so long after its authorization ended is nobody's work any more (I10).
_OPEN_AFTER_END_SECONDS: Final = 600
# What one part records a little after the other.
_FOLLOWED_SECONDS: Final = 60
LISTED_MAX: Final = 1000
# What a hub has forgotten is listed for a week: it may never know it again.
_FORGOTTEN_LISTED_MS: Final = 7 * 86_400_000
# Each speaks of one sale, which it names. What breaks one of them is held (`quarantine`).
_OF_ONE_SALE: Final = frozenset(
    {
        "i2_remaining_is_the_ledger",
        "i2_granted_is_what_was_bought",
        "i2_credits_are_live_where_their_purchase_is",
        "i4_calls_within_the_credits",
        "i5_credits_rest_on_a_payment",
        "i5_no_credits_of_a_failed_settlement",
        "i11_terms_are_a_version_of_the_gate",
        "a_sale_has_its_settlement",
        "a_sale_is_worth_its_settlement",
    }
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds in a process's settings: trusted debts of one payer, and of all payers of one gate (I13)."""

    payments: int
    value_micro: int
    gate_payments: int
    gate_value_micro: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of a check: what changed since a time, 0 for whenever; and then whether with every row of the journal."""

    since_ms: int = 0
    with_journal: bool = True

    def has(self, rule: str) -> bool:
        """Return True if the rule is looked at."""
        if self.since_ms:
            return rule not in _OF_ALL_ONLY
        return self.with_journal or rule not in _OF_ALL_CALLS


EVERYTHING: Final = Extent()


@dataclass(frozen=True, slots=True)
class Found:
    """Findings of a check: at most LISTED_MAX differences of each kind; every broken sale, with the first rule."""

    differences: list[Difference]
    sales: dict[str, str]


def inspect(snapshot: Snapshot, now_ms: int, bounds: Bounds, *, is_shared: bool, extent: Extent = EVERYTHING) -> Found:
    """List what of this extent does not hold.

    `is_shared`: gateway and hub write this one database, so that their rows must agree. Raises: StorageError.
    """
    given: dict[str, Value] = {
        **asdict(bounds),
        "before_ms": now_ms - _FOLLOWED_SECONDS * 1000,
        "now_seconds": now_ms // 1000,
        "brace": b"{",
        "since_ms": extent.since_ms,
        "since_id": f"{extent.since_ms:012x}" if extent.since_ms else "",
    }
    found: list[Difference] = []
    sales: dict[str, str] = {}
    for query in _queries(is_shared=is_shared):
        if not extent.has(query.name):
            continue
        rows = snapshot.read(query(**{name: given[name] for name in query.parameters}))
        found += [Difference(query.name, row["subject"], row["found"]) for row in rows[:LISTED_MAX]]
        if query.name in _OF_ONE_SALE:
            sales = {row["subject"]: query.name for row in rows} | sales
    return Found([*found, *_overdue(snapshot, now_ms), *_unlawful(snapshot, extent.since_ms)], sales)


def unattended(snapshot: Snapshot, networks: Collection[str]) -> list[Difference]:
    """I10 of a hub with these networks: what is under way where it looks no more. Raises: StorageError."""
    under_way: Counter[str] = Counter()
    for row in snapshot.read(_SETTLEMENTS.count_unfinished()):
        under_way[row["network"]] += row["settlements"]
    return [
        Difference("i10_what_is_under_way_is_looked_after", network, f"{count} under way, and it is off")
        for network, count in under_way.items()
        if network not in networks
    ]


def forgotten(snapshot: Snapshot, now_ms: int) -> list[Difference]:
    """Sales of a gateway whose hub made their payment and has no record of it any more. Raises: StorageError."""
    return [
        Difference(
            "a_sale_is_known_to_its_hub",
            row["id"],
            f"{row['state']}, {row['network']}/{row['payer']}/{row['nonce']} in {row['transaction_hash']} is not",
        )
        for row in snapshot.read(_PURCHASES.forgotten_sales(since_ms=now_ms - _FORGOTTEN_LISTED_MS))[:LISTED_MAX]
    ]


def parked(snapshot: Snapshot, now_ms: int) -> list[Difference]:
    """Claims of a gateway whose outcome nobody can tell: an operator is to look for them. Raises: StorageError."""
    return [
        Difference(
            "a_claim_has_an_outcome", row["id"], f"{row['failure']}: {row['network']}/{row['payer']}/{row['nonce']}"
        )
        for row in snapshot.read(_PURCHASES.parked_claims(since_ms=now_ms - PARKED_SHOWN_MS))[:LISTED_MAX]
    ]


def _queries(*, is_shared: bool) -> Iterator[Query]:
    for queries in (_GATEWAY, _HUB, *([_BOTH] if is_shared else [])):
        yield from (query for query in queries if query.name not in _JUDGED_HERE)


def _overdue(snapshot: Snapshot, now_ms: int) -> Iterator[Difference]:
    """I10 of the hub: what is open though its authorization ended long ago."""
    before_ms = now_ms - _OPEN_AFTER_END_SECONDS * 1000
    for row in snapshot.read(_HUB.i10_old_unfinished(before_ms=before_ms)):
        if _end_of(row["payment"]) < before_ms // 1000:
            yield Difference("i10_nothing_open_long_after_its_end", row["subject"], row["found"])


def _end_of(payment: str) -> int:
    """The authorization's end, Unix seconds.

    0 where there is none: a Solana transaction ends minutes after it was signed, and a payment that cannot be read is
    wrong whatever its age.
    """
    try:
        return int(json.loads(payment)["payload"]["authorization"]["validBefore"])
    except (ValueError, KeyError, TypeError):
        return 0


def _unlawful(snapshot: Snapshot, since_ms: int) -> Iterator[Difference]:
    """I12: transitions that are not in the table. An event may also stay where it is: a row was given another hash."""
    for row in snapshot.read(_HUB.i12_transitions_seen(since_ms=since_ms)):
        old, new = State(row["from_state"]), State(row["to_state"])
        if old is not new and not may_move(old, new):
            yield Difference("i12_each_transition_is_lawful", row["subject"], f"{old} to {new}")
