"""What is said of a payment that the facilitator would not take, and what its record knows of it (contract 4.3, 4.5).

A payment that was carried out before may show itself as too old or as not covered, because it was. So nobody is told
that nothing was charged, or to sign another one, before our hub was asked for what it has on record. One that it has no
record of, though its family's row says that this is how a used payment looks, may have been sold before both databases
were put back to a backup: the hub finds that out when it settles it. Another facilitator keeps no record for us: there
a node is asked, where one is set. Decides nothing about claims.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError, Code, failed_check, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.tenders import with_advice
from tollkeeper.core.verification import Reason, code_of_reason
from tollkeeper.gateway import calls
from tollkeeper.gateway.findings import Owed, Seen
from tollkeeper.gateway.following import key_of
from tollkeeper.gateway.hub_client import HubUnreachableError, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.tenders import Tender
    from tollkeeper.core.wire import Payment, PaymentKey
    from tollkeeper.gateway.chain_proofs import ChainProofs
    from tollkeeper.gateway.hub_client import HubClient, SettleAnswer, Supported
    from tollkeeper.storage.purchase_rows import Purchase

# At a facilitator that is not ours: how far back a payment is looked for on the chain, and how long that may take.
_LOOKED_BACK_MS: Final = 900_000
_LOOK_SECONDS: Final = 3.0
# How a payment that was used may be refused.
_OF_USED: Final = frozenset({Code.NONCE_ALREADY_USED, Code.PAYMENT_EXPIRED, Code.INSUFFICIENT_FUNDS})
_NOT_ASKED: Final = "whether it was charged before could not be asked, so look at your wallet's transactions first"


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a refused payment. `is_told`: somebody could say whether it was charged; `used`: it was.

    `reason` and `transaction` are of one that was not, for good. `is_forgotten`: our hub has no record of it.
    """

    is_told: bool
    used: ApiError | None = None
    reason: str | None = None
    transaction: str = ""
    is_forgotten: bool = False


_NOTHING_KNOWN: Final = _Known(is_told=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused payment: what its buyer is told, unless it `may_be_forgotten` and the hub settles it after all."""

    error: ApiError
    may_be_forgotten: bool

    def instead_of(self, failed: ApiError) -> ApiError:
        """What is said where the hub did not settle it either: this says more of the same, but for a transaction."""
        if failed.code is not self.error.code or "transaction" in (failed.details or {}):
            return failed
        return self.error


class Refusals:
    """Judges refusals by what our hub has on record, or by what the chain shows where the facilitator is another."""

    def __init__(
        self,
        hub: HubClient,
        supported: Callable[[], Supported],
        proofs: ChainProofs,
        *,
        status_url: str,
        clock_ms: Callable[[], int],
    ) -> None:
        """`status_url` is our hub's public URL, where anybody can see what became of a payment."""
        self._hub = hub
        self._supported = supported
        self._proofs = proofs
        self._status_url = status_url
        self._clock_ms = clock_ms

    async def of(self, verdict: Verdict, tender: Tender, no_wallet: str) -> Refusal:
        """What the facilitator's refusal means. `no_wallet`: why the seller's address is none; empty where it is."""
        key, reason = tender.key, verdict.reason or "invalid_payment"
        row = FAMILIES[NETWORKS[key.network].family]
        known = _NOTHING_KNOWN
        if code_of_reason(reason) in _OF_USED or reason in row.explained:
            known = await self._known(tender)
        if known.used is not None:
            return Refusal(known.used, may_be_forgotten=False)
        if code_of_reason(reason) is Code.INVALID_NETWORK and self._supported().is_ours:  # since it was asked
            told = f"on {key.network} nothing can be paid for now, and nothing was charged: send the same again later"
            return Refusal(ApiError(Code.UNAVAILABLE, told), may_be_forgotten=False)
        reason, transaction = known.reason or reason, known.transaction or verdict.transaction
        code, explained = code_of_reason(reason), row.explained.get(reason)
        details = failed_check(reason, "verify", "valid", reason) | (verdict.checks or {})
        message = f"the payment hub refused the payment: {reason}"
        if transaction:
            details["transaction"] = transaction
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

    async def of_own(self, error: ApiError, tender: Tender) -> ApiError:
        """The gateway's own refusal of a payment, or that it was used, where that is why it comes too late."""
        known = await self._known(tender) if error.code in _OF_USED else _NOTHING_KNOWN
        return known.used or error

    async def of_used(self, payment: Payment, tender: Tender, failed_by: str = "") -> ApiError | None:
        """The refusal of a payment that somebody had used before another facilitator than our hub was asked for it.

        Such a one may have made it for another server, and calls it valid or a success all the same. None where it was
        not used, or by the transaction only that it had `failed_by` before. What is so old that this is not seen is
        refused as too old. Raises: RpcUnavailable.
        """
        owed = Owed.of(tender, self._clock_ms())
        finding = await self._proofs.use_before(owed, payment)
        if finding.seen is Seen.FAILED:
            return (
                await self.of(Verdict(is_valid=False, reason=finding.reason, transaction=None, checks=None), tender, "")
            ).error
        is_known = finding.transaction and finding.transaction in {failed_by, failed_by.lower()}
        if finding.seen is Seen.NOTHING or is_known:
            return None
        return _used("was settled before", tender.key, finding.transaction, {})

    async def of_claimed_elsewhere(self, purchase: Purchase) -> ApiError:
        """The refusal of a payment that was claimed at another PayGate, with the transaction that is known by now."""
        transaction = purchase.transaction_hash or await self._hub.transaction_of(key_of(purchase))
        return calls.spent_elsewhere(purchase, transaction)

    async def _known(self, tender: Tender) -> _Known:
        """What our hub has on record of the payment; of another facilitator's, what the chain shows."""
        if not self._supported().is_ours:
            return await self._seen(tender)
        try:
            status = await self._hub.payment_status(tender.key)
        except HubUnreachableError:
            return _NOTHING_KNOWN
        if status is None or status.status == "failed":
            return _Known(is_told=True, is_forgotten=status is None)
        what = "was settled before" if status.status == "success" else "is being settled"
        url = self._status_url + tender.key.status_path
        return _Known(is_told=True, used=_used(what, tender.key, status.transaction, {"statusUrl": url}))

    async def _seen(self, tender: Tender) -> _Known:
        key = tender.key
        if not self._proofs.covers(key.network):
            return _NOTHING_KNOWN
        owed = Owed.of(tender, self._clock_ms() - _LOOKED_BACK_MS)
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                finding = await self._proofs.find(owed, "", self._supported().senders_on(key.network))
        except (RpcUnavailable, TimeoutError):
            return _NOTHING_KNOWN
        if finding.seen is Seen.NOTHING:
            return _NOTHING_KNOWN
        if finding.seen is Seen.FAILED:
            if finding.reason is not FAMILIES[NETWORKS[key.network].family].failed_on_chain:
                return _Known(is_told=True)
            return _Known(is_told=True, reason=finding.reason, transaction=finding.transaction)
        return _Known(is_told=True, used=_used("was settled before", key, finding.transaction, {}))


def _used(what: str, key: PaymentKey, transaction: str, details: dict[str, str]) -> ApiError:
    """It was charged, however it looks by now: nobody is told to pay again for it."""
    told: dict[str, Any] = failed_check(Reason.DUPLICATE.value, "unused", "an unused payment", f"one that {what}")
    told |= details
    if transaction:
        told["transaction"] = transaction
    message = f"the payment {what}, and is charged once: details say where to see it"
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
