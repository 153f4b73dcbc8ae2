"""Refusals of a payment whose credits are withheld, used up, or spent as a proof (contract 4.3, 4.5, 10.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code, failed_check, payment_error
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.payment_offers import with_advice
from tollkeeper.core.purchases import SETTLEMENT_FAILED

if TYPE_CHECKING:
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.storage.ledger.purchase_rows import Purchase


class ExhaustedError(Exception):
    """The payment's credits are used up here: answered as if unpaid, so that a client may pay again.

    `is_unpaid`: what was left of them is void, because the payment proved failed after it was sold for. `is_expired`:
    it is lost, because their time is over.
    """

    def __init__(self, payer: str, *, is_unpaid: bool = False, is_expired: bool = False) -> None:
        super().__init__("the credits are used up")
        self.payer = payer
        self.is_unpaid = is_unpaid
        self.is_expired = is_expired

    @classmethod
    def of(cls, purchase: Purchase) -> ExhaustedError:
        """Make the error of this purchase."""
        return cls(
            purchase.payer,
            is_unpaid=purchase.failure == SETTLEMENT_FAILED,
            is_expired=purchase.expires_ms is not None and purchase.remaining > 0,
        )


def exhausted(spent: ExhaustedError) -> ApiError:
    """Make the refusal of a payment whose credits are used up, expired, or void since it failed."""
    what = "have expired" if spent.is_expired else "are used up"
    message = with_advice(f"the credits of this payment {what}; sign a new payment", spent.payer)
    if spent.is_unpaid:
        message = "the payment failed after all, and its credits are void; sign a new one once it has expired"
    return ApiError(Code.CREDITS_EXHAUSTED, message)


WITHHELD: Final = {
    CreditBinding.PAYMENT: (
        "credits are left, but not for these bytes: send X-Payment exactly as it was when it bought, or X-Credit-Token"
    ),
    CreditBinding.TOKEN: (
        "credits are left, and at this PayGate the credit token holds them: send X-Credit-Token, or the payment "
        "together with its payer's bearer"
    ),
    CreditBinding.WALLET: (
        "at this PayGate only the payer spends what was bought, and no payment or credit token counts for it: log in "
        "with the wallet that paid, and send the access token as Authorization: Bearer"
    ),
}
_GAVE_WAY: Final = (
    "credits are left, but the payment's bytes count no more: its credit token was used, or it was honoured by hand; "
    "send X-Credit-Token"
)


_SERVED: Final = (
    "credits are left, but a payment of x402 version 2 counts only until it was served once, because the chain shows "
    "it to everybody: send X-Credit-Token"
)


def withheld(purchase: Purchase, binding: CreditBinding, presented: PresentedPayment | None) -> ApiError:
    """The refusal of a payment whose credits are left, but not for what was shown (contract 4.3)."""
    message = WITHHELD[binding]
    if binding is CreditBinding.PAYMENT and purchase.token_used:
        message = _GAVE_WAY
    elif binding is CreditBinding.PAYMENT and presented is not None and presented.accepted is not None:
        message = _SERVED
    if presented is not None and presented.offered.is_repeatable:
        message = with_advice(message, purchase.payer)
    return ApiError(Code.CREDIT_TOKEN_REQUIRED, message, details={"purchaseId": purchase.id})


def shown_before(purchase: Purchase, *, holds: bool) -> ApiError:
    """The refusal of a payment that spent a held credit before; `holds`: its payer has another one."""
    told = "this payment spent a credit before, and was not charged"
    if holds:
        message = f"{told}: sign a new payment, which spends the next credit, or send X-Credit-Token"
        return ApiError(Code.CREDIT_TOKEN_REQUIRED, message)
    details = failed_check("duplicate_settlement", "unused", "a new payment", "one that spent a credit")
    message = with_advice(f"{told}: sign a new payment, which buys", purchase.payer)
    return payment_error(Code.NONCE_ALREADY_USED, message, details=details)


def next_try_withheld(purchase_id: str, transaction_hash: str) -> ApiError:
    """Make the refusal of a payment that failed in public, for whoever shows only what everybody can read there."""
    return ApiError(
        Code.CREDIT_TOKEN_REQUIRED,
        "this payment failed in a transaction that anybody can read: at this PayGate it is tried again with the "
        "X-Credit-Token of the answer to its first request, or with its payer's bearer; without them, sign a new "
        "payment once this one has expired",
        details={"purchaseId": purchase_id, "transaction": transaction_hash},
    )
