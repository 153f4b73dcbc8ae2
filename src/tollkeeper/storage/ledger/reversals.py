"""Sales whose payment was taken away after all, and those of them whose payment came back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.purchases import FIRST_LOOK_MS
from tollkeeper.storage.engine.database import unit_of_work
from tollkeeper.storage.engine.locks import gates_as_they_are, purchases_to_change
from tollkeeper.storage.engine.queries import load_queries
from tollkeeper.storage.ledger.spends import void_with_gate

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Row, Steps

_Q: Final = load_queries("gateway.sql")


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
