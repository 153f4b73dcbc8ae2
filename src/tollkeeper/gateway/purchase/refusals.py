"""Refusals of a payment that the facilitator would not take, with what its record knows of it (contract 4.3, 4.5).

A payment that was carried out before may show itself as too old or as not covered, because it was. So nobody is told
that nothing was charged, or to sign another one, before our hub was asked for what it has on record. One that it has no
record of, though its family's row says that this is how a used payment looks, may have been sold before both databases
were put back to a backup: the hub finds that out when it settles it. Another facilitator keeps no record for us: there
a node is asked, where one is set. Decides nothing about claims.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code, failed_check, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.payment_offers import with_advice
from tollkeeper.core.x402.verification import Reason, code_of_reason
from tollkeeper.gateway.evidence.port import EvidenceOutcome, ExpectedTransfer
from tollkeeper.gateway.facilitator.client import FacilitatorVerdict, HubUnreachableError
from tollkeeper.gateway.purchase.monitor import key_of

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.payment_offers import OfferedPayment
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.gateway.evidence.port import PaymentFinding
    from tollkeeper.gateway.facilitator.client import SettleAnswer
    from tollkeeper.gateway.purchase.monitor import PurchaseParts
    from tollkeeper.storage.ledger.purchase_rows import Purchase

# At a facilitator that is not ours: how long a look at the chain may take.
_LOOK_SECONDS: Final = 3.0
# How a payment that was used may be refused.
_OF_USED: Final = frozenset({Code.NONCE_ALREADY_USED, Code.PAYMENT_EXPIRED, Code.INSUFFICIENT_FUNDS})
_NOT_ASKED: Final = "whether it was charged before could not be asked, so look at your wallet's transactions first"


@dataclass(frozen=True, slots=True)
class _Known:
    """Knowledge of a refused payment. `is_told`: somebody could say whether it was charged; `used`: it was.

    `is_forgotten`: our hub has no record of it.
    """

    is_told: bool
    used: ApiError | None = None
    is_forgotten: bool = False


_NOTHING_KNOWN: Final = _Known(is_told=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused payment: what its buyer is told, unless it `may_be_forgotten` and the hub settles it after all."""

    error: ApiError
    may_be_forgotten: bool

    def instead_of(self, failed: ApiError) -> ApiError:
        """Choose the refusal where the hub did not settle it either: this says more, but for a transaction."""
        if failed.code is not self.error.code or "transaction" in (failed.details or {}):
            return failed
        return self.error


class Refusals:
    """Judges refusals by what our hub has on record, or by what the chain shows where the facilitator is another."""

    def __init__(self, parts: PurchaseParts) -> None:
        self._parts = parts

    async def of(self, verdict: FacilitatorVerdict, offered: OfferedPayment, no_wallet: str) -> Refusal:
        """Make our refusal of the facilitator's. `no_wallet`: why the seller's address is none; empty where it is."""
        key, reason = offered.key, verdict.reason or "invalid_payment"
        row = FAMILIES[NETWORKS[key.network].family]
        known = _NOTHING_KNOWN
        if code_of_reason(reason) in _OF_USED or reason in row.explained:
            known = await self._known(offered)
        if known.used is not None:
            return Refusal(known.used, may_be_forgotten=False)
        if code_of_reason(reason) is Code.INVALID_NETWORK and self._parts.supported().is_ours:  # since it was asked
            told = f"on {key.network} nothing can be paid for now, and nothing was charged: send the same again later"
            return Refusal(ApiError(Code.UNAVAILABLE, told), may_be_forgotten=False)
        code, explained = code_of_reason(reason), row.explained.get(reason)
        details = failed_check(reason, "verify", "valid", reason) | (verdict.checks or {})
        message = f"the payment hub refused the payment: {reason}"
        if verdict.transaction:
            details["transaction"] = verdict.transaction
        if code is Code.NONCE_ALREADY_USED:
            message = with_advice("the payment was used before", key.payer)
        elif explained is not None:
            what = explained.what
            if reason == row.not_payable and no_wallet:
                what = f"{what}, and is no wallet's ({no_wallet})"
            charged = "nothing was charged" if known.is_told else _NOT_ASKED
            message = f"{what}: {charged}; {explained.advice}"
        may_be_forgotten = known.is_forgotten and reason in row.shown_by_used
        return Refusal(payment_error(code, message, details=details), may_be_forgotten)

    async def of_own(self, error: ApiError, offered: OfferedPayment) -> ApiError:
        """The gateway's own refusal of a payment, or that it was used, where that is why it comes too late."""
        known = await self._known(offered) if error.code in _OF_USED else _NOTHING_KNOWN
        return known.used or error

    async def of_used(self, payment: Payment, offered: OfferedPayment) -> ApiError | None:
        """Refuse a payment that somebody had used before another facilitator than our hub was asked for it.

        Such a facilitator may have made it for another server, and calls it valid or a success all the same. None
        where it is unused and may be made. Raises: RpcUnavailable.
        """
        finding = await self._parts.evidence.on(offered.key.network).before(self._expected(offered), payment)
        if finding.is_unused:
            return None
        if finding.is_used:
            return _seen_used(offered.key, finding)
        verdict = FacilitatorVerdict(
            is_valid=False, reason=finding.reason, transaction=finding.transaction or None, checks=None
        )
        return (await self.of(verdict, offered, "")).error

    def _expected(self, offered: OfferedPayment) -> ExpectedTransfer:
        senders = self._parts.supported().senders_on(offered.key.network)
        return ExpectedTransfer.of(offered, self._parts.clock_ms(), senders)

    async def of_claimed_elsewhere(self, purchase: Purchase) -> ApiError:
        """Refuse a payment that was claimed at another PayGate (contract 4.3), with the transaction known by now."""
        transaction = purchase.transaction_hash or await self._parts.hub.transaction_of(key_of(purchase))
        details = failed_check("duplicate_settlement", "purchase", "one of this PayGate", "one of another PayGate")
        details["transaction"] = transaction
        message = with_advice("this payment was presented at another PayGate", purchase.payer)
        return payment_error(Code.NONCE_ALREADY_USED, message, details=details)

    async def _known(self, offered: OfferedPayment) -> _Known:
        """Ask what our hub has on record of the payment; of another facilitator's, what the chain shows."""
        if not self._parts.supported().is_ours:
            return await self._seen(offered)
        try:
            status = await self._parts.hub.payment_status(offered.key)
        except HubUnreachableError:
            return _NOTHING_KNOWN
        if status is None or status.status == "failed":
            return _Known(is_told=True, is_forgotten=status is None)
        what = "was settled before" if status.status == "success" else "is being settled"
        url = self._parts.status_url + offered.key.status_path
        return _Known(is_told=True, used=_used(what, offered.key, status.transaction, {"statusUrl": url}))

    async def _seen(self, offered: OfferedPayment) -> _Known:
        if not self._parts.evidence.covers(offered.key.network):
            return _NOTHING_KNOWN
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                finding = await self._parts.evidence.on(offered.key.network).of(self._expected(offered))
        except (RpcUnavailable, TimeoutError):
            return _NOTHING_KNOWN
        if finding.is_used:
            return _Known(is_told=True, used=_seen_used(offered.key, finding))
        return _Known(is_told=finding.outcome is EvidenceOutcome.FAILED or finding.may_change)


def _seen_used(key: PaymentKey, finding: PaymentFinding) -> ApiError:
    """Refuse what the chain shows as used."""
    return _used("was settled before" if finding.transaction else "was used before", key, finding.transaction, {})


def _used(what: str, key: PaymentKey, transaction: str, details: dict[str, str]) -> ApiError:
    """It was charged, however it looks by now: nobody is told to pay again for it."""
    told: JsonObject = failed_check(Reason.DUPLICATE.value, "unused", "an unused payment", f"one that {what}")
    told |= details
    if transaction:
        told["transaction"] = transaction
    message = f"the payment {what}, and is charged once: details say where to see it"
    if not (transaction or details):
        message = f"the payment {what}: your wallet's transactions show whether it was charged"
    return payment_error(Code.NONCE_ALREADY_USED, with_advice(message, key.payer), details=told)


def not_settled(answer: SettleAnswer, network: str) -> ApiError:
    """The refusal of a payment that was clearly not settled."""
    details = failed_check(answer.reason, "settle", "success", answer.reason)
    if answer.transaction:
        details["transaction"] = answer.transaction
    explained = FAMILIES[NETWORKS[network].family].explained.get(answer.reason)
    message = "the payment was not settled"
    if explained is not None:
        message = f"{explained.what}: nothing was charged; {explained.advice}"
    return payment_error(code_of_reason(answer.reason), message, details=details)
