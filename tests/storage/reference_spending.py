"""A spend as one would write it for one call at a time: what every batch must equal (contract 4.3)."""

from __future__ import annotations

import hmac

from tollkeeper.core.purchases import PurchaseState, Spend
from tollkeeper.storage.engine.database import Row, Statement, Steps, unit_of_work
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult, purchase_from
from tollkeeper.storage.ledger.spends import HeldSpend

_WITHOUT_CREDIT = {
    PurchaseState.CLAIMED: Spend.IN_FLIGHT,
    PurchaseState.PARKED: Spend.PARKED,
    PurchaseState.FAILED: Spend.FAILED,
    PurchaseState.VOID: Spend.EXHAUSTED,
    PurchaseState.LIVE: Spend.EXHAUSTED,
}


@unit_of_work
def spend_one(spend: HeldSpend, now_ms: int) -> Steps[SpendResult]:
    """The answer to one spend, and everything that it changes."""
    if spend.key is not None:
        key = spend.key
        rows = yield Statement(
            "SELECT * FROM holdings WHERE network = :network AND asset = :asset AND payer = :payer AND nonce = :nonce",
            {"network": key.network, "asset": key.asset, "payer": key.payer, "nonce": key.nonce},
        )
    else:
        rows = yield Statement("SELECT * FROM holdings WHERE id = :id", {"id": spend.purchase_id})
    if not rows:
        return SpendResult(Spend.UNKNOWN)
    spend_request, purchase = spend.spend_request, purchase_from(rows[0])
    is_foreign = purchase.gate_id != spend_request.gate_id
    is_over = purchase.expires_ms is not None and purchase.expires_ms <= now_ms
    is_void = purchase.state is PurchaseState.VOID and purchase.failure == "gate_deleted"
    is_there = purchase.state is PurchaseState.LIVE or (is_void and purchase.remaining == purchase.granted)
    if is_foreign or is_over or not is_there or purchase.remaining == 0:
        return SpendResult(Spend.FOREIGN if is_foreign else _WITHOUT_CREDIT[purchase.state], purchase)
    standing = yield Statement("SELECT version, deleted_ms FROM paygates WHERE id = :id", {"id": spend_request.gate_id})
    if standing[0]["deleted_ms"] is None and standing[0]["version"] != spend_request.gate_version:
        return SpendResult(Spend.STALE, purchase)
    if spend_request.header is not None and (
        purchase.token_used or not hmac.compare_digest(spend_request.header, purchase.header_hash)
    ):
        return SpendResult(Spend.WITHHELD, purchase)
    if standing[0]["deleted_ms"] is not None:
        result = yield from _take(rows[0], spend_request, now_ms)
        yield Statement(
            "UPDATE purchases SET state = 'VOID', failure = 'gate_deleted', updated_ms = :now_ms"
            " WHERE id = :id AND state = 'LIVE'",
            {"id": purchase.id, "now_ms": now_ms},
        )
        yield Statement("UPDATE credits SET is_live = 0 WHERE number = :number", {"number": purchase.number})
        return result
    return (yield from _take(rows[0], spend_request, now_ms))


@unit_of_work
def _take(row: Row, spend_request: SpendRequest, now_ms: int) -> Steps[SpendResult]:
    token_used = int(bool(row["token_used"]) or spend_request.is_token)
    spent = yield Statement(
        "UPDATE credits SET remaining = remaining - 1, token_used = :token_used"
        " WHERE number = :number AND remaining > 0 RETURNING remaining",
        {"number": row["number"], "token_used": token_used},
    )
    if not spent:
        return SpendResult(Spend.EXHAUSTED, purchase_from(row, remaining=0))
    yield Statement(
        "INSERT INTO single_calls (id, purchase_id, state, created_ms)"
        " VALUES (:call, :purchase, 'DISPATCHED', :now_ms)",
        {"call": spend_request.call_id, "purchase": row["id"], "now_ms": now_ms},
    )
    return SpendResult(Spend.SPENT, purchase_from(row, remaining=spent[0]["remaining"], token_used=token_used))
