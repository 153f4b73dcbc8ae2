"""Answers of `/verify`, `/settle` and `/transfer` (specification 4.4; contract 5.1, 10.2): facts in, a body out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.core.api.bodies import Settled
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.families import row_of
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.version1 import is_text
from tollkeeper.hub.api.bodies import PendingSettlement, ShownCheck, ShownVerdict
from tollkeeper.hub.api.withdrawal import pending_transaction
from tollkeeper.hub.settlement.orders import refusal

if TYPE_CHECKING:
    from tollkeeper.core.x402.verification import Check
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.settlement.orders import SettleOutcome
    from tollkeeper.hub.settlement.requests import RequestedPayment


def verdict_body(failed: Check | None, payer: str | None, explained: list[Check] | None) -> ShownVerdict:
    """Write the answer of `/verify`: the first rule that the payment breaks, if any; every check where it was asked."""
    verdict = ShownVerdict(failed is None, None if failed is None else failed.reason.value, payer)
    if failed is not None:
        verdict.invalid_message = f"payment check failed: {failed.name}"
        verdict.details = {"check": failed.name, "expected": failed.expected, "found": failed.actual}
    if explained is not None:
        verdict.checks = [ShownCheck(check.name, check.ok, check.expected, check.actual) for check in explained]
    return verdict


def settled_body(payment: Payment, amount: int, outcome: SettleOutcome, *, use_db_id: bool) -> Settled:
    """Write the answer to a settlement whose outcome is known. `amount`: as asked, told where none can be read."""
    signed = row_of(payment).signed_value(payment)
    return Settled(
        success=outcome.success,
        status="success" if outcome.success else "failed",
        transaction=outcome.settlement_id or "" if use_db_id else outcome.transaction,
        network=version2.shown_network(payment),
        amount=str(amount if signed is None else signed),
        payer=row_of(payment).payer_of(payment),
        error_reason=outcome.reason,
    )


def pending_body(asked: RequestedPayment, error: ApiError) -> PendingSettlement:
    """Write the answer to a settlement of version 2 whose outcome nobody knows yet: no `status` is true.

    Raises: any other error.
    """
    transaction = pending_transaction(error)
    if asked.x402_version != version2.VERSION or error.code is not Code.SETTLEMENT_PENDING or not transaction:
        raise error
    told = refusal(version2.SETTLEMENT_PENDING, transaction)
    body = settled_body(asked.payment, asked.requirements.amount, told, use_db_id=False)
    return PendingSettlement(
        success=False,
        transaction=body.transaction,
        network=body.network,
        amount=body.amount,
        payer=body.payer,
        error_reason="settlement_pending",
    )


def refused_unread(body: dict[str, object], failed: Check) -> Settled:
    """Write the answer to a settlement of a kind that is not ours: of its request only what can be shown is read."""
    payment, named = (_object(body.get(name)) for name in ("paymentPayload", "paymentRequirements"))
    network = payment.get("network") or named.get("network")
    amount = named.get("maxAmountRequired") or named.get("amount")
    return Settled(
        success=False,
        status="failed",
        transaction="",
        network=network if is_text(network) else "",
        amount=amount if is_text(amount) and amount.isdecimal() else "0",
        payer=None,
        error_reason=failed.reason.value,
    )


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
