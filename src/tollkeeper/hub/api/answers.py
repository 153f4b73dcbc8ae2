"""Answers of `/verify`, `/settle` and `/transfer` (specification 4.4; contract 5.1, 10.2): facts in, a body out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.families import row_of
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.version1 import is_text
from tollkeeper.hub.api.withdrawal import pending_transaction
from tollkeeper.hub.settlement.orders import refusal

if TYPE_CHECKING:
    from tollkeeper.core.x402.verification import Check
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.settlement.orders import SettleOutcome
    from tollkeeper.hub.settlement.requests import RequestedPayment


def verdict_body(failed: Check | None, payer: str | None, explained: list[Check] | None) -> dict[str, object]:
    """Write the answer of `/verify`: the first rule that the payment breaks, if any; every check where it was asked."""
    body: dict[str, object] = {
        "isValid": failed is None,
        "invalidReason": None if failed is None else failed.reason.value,
        "payer": payer,
    }
    if failed is not None:
        body["invalidMessage"] = f"payment check failed: {failed.name}"
        body["details"] = {"check": failed.name, "expected": failed.expected, "found": failed.actual}
    if explained is not None:
        body["checks"] = [
            {"name": check.name, "ok": check.ok, "expected": check.expected, "actual": check.actual}
            for check in explained
        ]
    return body


def settled_body(payment: Payment, amount: int, outcome: SettleOutcome, *, use_db_id: bool) -> dict[str, object]:
    """Write the answer to a settlement whose outcome is known. `amount`: as asked, told where none can be read."""
    signed = row_of(payment).signed_value(payment)
    value = amount if signed is None else signed
    transaction = outcome.settlement_id or "" if use_db_id else outcome.transaction
    return {
        "success": outcome.success,
        "status": "success" if outcome.success else "failed",
        "transaction": transaction,
        "network": version2.shown_network(payment),
        "amount": str(value),
        "payer": row_of(payment).payer_of(payment),
        "errorReason": outcome.reason,
    }


def pending_body(asked: RequestedPayment, error: ApiError) -> dict[str, object]:
    """Write the answer to a settlement of version 2 whose outcome nobody knows yet: no `status` is true.

    Raises: any other error.
    """
    transaction = pending_transaction(error)
    if asked.x402_version != version2.VERSION or error.code is not Code.SETTLEMENT_PENDING or not transaction:
        raise error
    body = settled_body(
        asked.payment,
        asked.requirements.amount,
        refusal(version2.SETTLEMENT_PENDING, transaction),
        use_db_id=False,
    )
    del body["status"]
    return body


def refused_unread(body: dict[str, object], failed: Check) -> dict[str, object]:
    """Write the answer to a settlement of a kind that is not ours: of its request only what can be shown is read."""
    payment, named = (_object(body.get(name)) for name in ("paymentPayload", "paymentRequirements"))
    network = payment.get("network") or named.get("network")
    amount = named.get("maxAmountRequired") or named.get("amount")
    return {
        "success": False,
        "status": "failed",
        "transaction": "",
        "network": network if is_text(network) else "",
        "amount": amount if is_text(amount) and amount.isdecimal() else "0",
        "payer": None,
        "errorReason": failed.reason.value,
    }


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
