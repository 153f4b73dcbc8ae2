"""Rows of fees that were given back for transfers that failed in their block, while that may change (contract 8).

What became of such a transfer is asked, and decided, in `gateway.returned_fees`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.purchases import FOLLOWED_MS, CallState
from tollkeeper.core.wire import PaymentKey
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from tollkeeper.storage.database import Database, Unit

_Q: Final = load_queries("returned_fees.sql")
# What is owed is listed for so long (`storage.invariants`).
OWED_LISTED_MS: Final = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class ReturnedFee:
    """A fee's call and its transfer, the transaction that failed, since when that is known (Unix milliseconds)."""

    call_id: str
    transfer: PaymentKey
    transaction_hash: str
    failed_ms: int


def keep_returned(fee: ReturnedFee, follow_ms: int) -> Unit[None]:
    """Keep it, to be looked at then; what was kept of it before stays."""
    yield _Q.forget_owed_fees(since_ms=fee.failed_ms - OWED_LISTED_MS)
    key = fee.transfer
    yield _Q.keep_returned_fee(
        call_id=fee.call_id,
        network=key.network,
        asset=key.asset,
        payer=key.payer,
        nonce=key.nonce,
        transaction_hash=fee.transaction_hash,
        now_ms=fee.failed_ms,
        follow_ms=follow_ms,
    )


async def due_returned(database: Database, limit: int, now_ms: int) -> list[ReturnedFee]:
    """Those whose transfer is due to be looked at."""
    rows = await database.read(_Q.due_returned_fees(now_ms=now_ms, latest_ms=now_ms + FOLLOWED_MS, limit=limit))
    return [
        ReturnedFee(
            row["call_id"],
            PaymentKey(row["network"], row["asset"], row["payer"], row["nonce"]),
            row["transaction_hash"],
            row["failed_ms"],
        )
        for row in rows
    ]


def follow_returned(call_id: str, failed_ms: int, follow_ms: int | None) -> Unit[None]:
    """Look at it again then; None: its transfer's failure stands, and nothing more is kept of it."""
    if follow_ms is None:
        yield _Q.forget_returned_fee(call_id=call_id)
    else:
        yield _Q.follow_returned_fee(call_id=call_id, failed_ms=failed_ms, follow_ms=follow_ms)


async def charge_of_pair(database: Database, call_id: str) -> CallState | None:
    """Where the call stands by which this call's fee and transfer are charged all the same; None where they are not."""
    rows = await database.read(_Q.charge_of_pair(call_id=call_id))
    return CallState(rows[0]["state"]) if rows else None


def owe_returned(fee: ReturnedFee, now_ms: int) -> Unit[None]:
    """Its transfer was made after all, in that transaction."""
    yield _Q.mark_returned_fee_owed(call_id=fee.call_id, transaction_hash=fee.transaction_hash, now_ms=now_ms)
