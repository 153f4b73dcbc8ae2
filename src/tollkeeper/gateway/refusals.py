"""What is said of a payment that the facilitator would not take, and what its record knows of it (contract 4.3, 4.5).

A payment that was carried out before may show itself as too old or as not covered, because it was. So nobody is told
that nothing was charged, or to sign another one, before our hub was asked for what it has on record. One that it has no
record of, though its family's row says that this is how a used payment looks, may have been sold before both databases
were put back to a backup: the hub finds that out when it settles it. Decides nothing about claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.tenders import with_advice
from tollkeeper.core.verification import Reason, code_of_reason
from tollkeeper.gateway.hub_client import HubUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.gateway.hub_client import HubClient, PaymentStatus, Supported, Verdict

# How a payment that was used may be refused.
_OF_USED: Final = frozenset({Code.NONCE_ALREADY_USED, Code.PAYMENT_EXPIRED, Code.INSUFFICIENT_FUNDS})
_NOT_ASKED: Final = "whether it was charged before could not be asked, so look at your wallet's transactions first"


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
    """Judges refusals by what our hub has on record."""

    def __init__(self, hub: HubClient, supported: Callable[[], Supported], status_url: str) -> None:
        """`status_url` is our hub's public URL, where anybody can see what became of a payment."""
        self._hub = hub
        self._supported = supported
        self._status_url = status_url

    async def of(self, verdict: Verdict, key: PaymentKey, no_wallet: str) -> Refusal:
        """What the facilitator's refusal means. `no_wallet`: why the seller's address is none; empty where it is."""
        reason = verdict.reason or "invalid_payment"
        code = code_of_reason(reason)
        is_asked, status = False, None
        row = FAMILIES[NETWORKS[key.network].family]
        explained = row.explained.get(reason)
        if code in _OF_USED or explained is not None:
            is_asked, status = await self._record(key)
        if status is not None and status.status != "failed":
            return Refusal(self._used(status, key), may_be_forgotten=False)
        details: dict[str, Any] = {"reason": reason, **(verdict.checks or {})}
        message = f"the payment hub refused the payment: {reason}"
        if verdict.transaction:
            details["transaction"] = verdict.transaction
        if code is Code.NONCE_ALREADY_USED:
            message = with_advice("the payment was used before", key.payer)
        elif explained is not None:
            what = explained.what
            if reason == row.not_payable and no_wallet:
                what = f"{what}, and is no wallet's ({no_wallet})"
            charged = "nothing was charged" if is_asked else _NOT_ASKED
            message = f"{what}: {charged}; {explained.advice}"
        may_be_forgotten = is_asked and status is None and reason in row.shown_by_used
        return Refusal(payment_error(code, message, details=details), may_be_forgotten)

    async def of_own(self, error: ApiError, key: PaymentKey) -> ApiError:
        """The gateway's own refusal of a payment, or that it was used, where that is why it comes too late."""
        if error.code not in _OF_USED:
            return error
        _, status = await self._record(key)
        return error if status is None or status.status == "failed" else self._used(status, key)

    def _used(self, status: PaymentStatus, key: PaymentKey) -> ApiError:
        """It was charged, however it looks by now: nobody is told to pay again for it."""
        what = "was settled before" if status.status == "success" else "is being settled"
        details = {"reason": Reason.DUPLICATE.value, "statusUrl": self._status_url + key.status_path}
        if status.transaction:
            details["transaction"] = status.transaction
        message = f"the payment {what}, and is charged once: details say where to see it"
        return payment_error(Code.NONCE_ALREADY_USED, with_advice(message, key.payer), details=details)

    async def _record(self, key: PaymentKey) -> tuple[bool, PaymentStatus | None]:
        """Could our hub be asked, and what does it know of the payment?"""
        if not self._supported().is_ours:
            return False, None
        try:
            return True, await self._hub.payment_status(key)
        except HubUnreachableError:
            return False, None
