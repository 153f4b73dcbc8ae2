"""Sales that break an invariant are held: nothing is spent of them until they are mended (security 5).

A held sale stays LIVE, so that counters, confirmations and a gate's end treat it as they did; its credits are closed,
and `failure` names the invariant. So is one held whose gate was deleted: no call of it is due meanwhile. Whoever shows
the payment of another is told to send it again later, never to pay again. The first check that finds the sale in order
opens its credits again.
What this module does not do: find what is broken (`invariants`), mend anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.purchases import FIRST_LOOK_MS, PurchaseState
from tollkeeper.storage.engine.database import gates_as_they_are, load_queries, purchases_to_change, unit_of_work
from tollkeeper.storage.ledger.spends import void_with_gate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.storage.engine.database import Database, Row, Snapshot, Steps

_Q: Final = load_queries("gateway.sql")
_AT_ONCE: Final = 100


def held_sales(snapshot: Snapshot) -> frozenset[str]:
    """The sales that are held, by id."""
    return frozenset(row["id"] for row in snapshot.read(_Q.held_purchases()))


async def hold(database: Database, broken: Mapping[str, str], now_ms: int) -> list[str]:
    """Hold these sales, id to invariant; returns those that were not held yet. Raises: StorageError."""
    held: list[str] = []
    sales = list(broken.items())
    for first in range(0, len(sales), _AT_ONCE):
        held += await database.run(_hold(sales[first : first + _AT_ONCE], now_ms))
    return held


@unit_of_work
def _hold(broken: Sequence[tuple[str, str]], now_ms: int) -> Steps[list[str]]:
    held: list[str] = []
    yield purchases_to_change(*(purchase_id for purchase_id, _ in broken))
    for purchase_id, rule in broken:
        if (yield _Q.hold_purchase(id=purchase_id, failure=f"held: {rule}", now_ms=now_ms)):
            held.append(purchase_id)
        yield _Q.close_stray_credits(id=purchase_id)
    return held


async def release(database: Database, mended: Sequence[str], now_ms: int) -> list[str]:
    """Let the credits of these sales be spent again; those that were held. Raises: StorageError."""
    released: list[str] = []
    for first in range(0, len(mended), _AT_ONCE):
        released += await database.run(_release(mended[first : first + _AT_ONCE], now_ms))
    return released


@unit_of_work
def _release(mended: Sequence[str], now_ms: int) -> Steps[list[str]]:
    released: list[str] = []
    yield purchases_to_change(*mended)
    for purchase_id in mended:
        for row in (yield _Q.release_purchase(id=purchase_id, now_ms=now_ms)):
            released.append(purchase_id)
            if row["state"] == PurchaseState.LIVE:
                yield _Q.reopen_credits(number=row["number"])
    return released


# Sales whose payment was taken away after all, and those of them whose payment came back.


@unit_of_work
def void_unpaid(purchase_id: str, now_ms: int, *, is_followed: bool) -> Steps[None]:
    """End a sale, and what is left of its credits, because its payment failed."""
    follow_ms = now_ms + FIRST_LOOK_MS if is_followed else None
    yield purchases_to_change(purchase_id)
    for row in (yield _Q.void_unpaid(id=purchase_id, follow_ms=follow_ms, now_ms=now_ms)):
        yield _Q.close_credits(number=row["number"])
        yield _Q.add_revenue(gate_id=row["gate_id"], revenue_micro=-int(row["value_micro"]))


@unit_of_work
def revive(purchase_id: str, gate_id: int, transaction_hash: str, now_ms: int) -> Steps[None]:
    """Open a sale again that is void for its payment, which was made by this transaction."""
    yield gates_as_they_are([gate_id])
    yield purchases_to_change(purchase_id)
    yield _Q.reopen_void_credits(id=purchase_id, token_used=0, now_ms=now_ms)
    yield _Q.rename_credits(id=purchase_id, transaction_hash=transaction_hash)
    rows = yield _Q.revive_purchase(
        id=purchase_id, transaction_hash=transaction_hash, follow_ms=now_ms + FIRST_LOOK_MS, now_ms=now_ms
    )
    for row in rows:
        yield from count_again(purchase_id, row, now_ms)


@unit_of_work
def count_again(purchase_id: str, row: Row, now_ms: int) -> Steps[None]:
    """Count its value as earned; of a gate that was deleted meanwhile its credits end all the same."""
    yield _Q.add_revenue(gate_id=row["gate_id"], revenue_micro=int(row["value_micro"]))
    standing = yield _Q.gate_standing(gate_id=row["gate_id"])
    if standing[0]["deleted_ms"] is not None:
        yield from void_with_gate(purchase_id, now_ms)
