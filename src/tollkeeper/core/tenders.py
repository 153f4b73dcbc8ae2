"""What a payment offers, of either family: from whom, how much, to whom (specification 2.3; contract 4.2, 4.3).

Only what a gateway must know by itself before it asks its facilitator: form, the payer's signature, and whether the
payment is to this recipient and of this price. On EVM at least the price is paid, on Solana exactly. Balance, fee and
blockhash are the facilitator's to judge, which alone risks anything by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from tollkeeper.core import verification
from tollkeeper.core.networks import Family
from tollkeeper.core.solana import SolanaAsset, payer_checks, payment_key, read_transfer
from tollkeeper.core.solana.programs import associated_token_account
from tollkeeper.core.verification import Check, EvmAsset, Reason, require, signature_check, time_checks
from tollkeeper.core.wallets import family_of
from tollkeeper.core.wire import EvmPayload, SolanaPayload

if TYPE_CHECKING:
    from tollkeeper.core.wire import Payment, PaymentKey

Asset: TypeAlias = EvmAsset | SolanaAsset

_SIGN_AGAIN: Final = (
    ". On Solana two payments of one wallet to the same recipient, of the same amount and within the same moment can "
    "be one transaction, which is charged once: sign a new payment"
)


@dataclass(frozen=True, slots=True)
class Tender:
    """One payment as a gate sees it; its form was checked.

    `recipient` is who is paid: an address on EVM, a token account on Solana. `valid_before` is in Unix seconds, None
    where blocks and not clocks decide. `fee_payer` is whom a Solana payer chose to pay the fee.
    `is_signed_by_key`: the payer's key signed; else only a chain can say, because a contract may be the payer.
    """

    key: PaymentKey
    value: int
    recipient: str
    valid_before: int | None
    signature: bytes = field(repr=False)
    fee_payer: str = ""
    is_signed_by_key: bool = True


def tender_of(payment: Payment, asset: Asset) -> Tender:
    """What a payment of that asset's network, whose form was checked, offers.

    Raises: the payment error of a rule that it breaks; on Solana also of a signature that its payer did not make.
    """
    payload = payment.payload
    if isinstance(asset, SolanaAsset):
        assert isinstance(payload, SolanaPayload)  # noqa: S101 - form_checks came first
        return _on_solana(payload, asset)
    assert isinstance(payload, EvmPayload)  # noqa: S101 - the same
    authorization = payload.authorization
    return Tender(
        verification.payment_key(asset, payload),
        authorization.value,
        authorization.pay_to,
        authorization.valid_before,
        payload.signature,
        is_signed_by_key=signature_check(payload, asset).ok,
    )


def _on_solana(payload: SolanaPayload, asset: SolanaAsset) -> Tender:
    require(payer_checks(payload, asset))
    transfer = read_transfer(payload)
    return Tender(
        payment_key(asset, transfer),
        transfer.value,
        transfer.destination,
        None,
        transfer.transaction.signatures[1],
        transfer.fee_payer,
    )


def require_valid_now(payment: Payment, now_seconds: int) -> None:
    """Is the payment valid by its own times, where it has any? Raises: PAYMENT_EXPIRED, PAYMENT_INVALID."""
    if isinstance(payment.payload, EvmPayload):
        require(time_checks(payment.payload, now_seconds))


def recipient_check(tender: Tender, asset: Asset, pay_to: str) -> Check:
    """Is it this wallet that is paid?"""
    if isinstance(asset, SolanaAsset):
        account = associated_token_account(pay_to, asset.address, asset.token_program)
        return Check("recipient", tender.recipient == account, Reason.SVM_RECIPIENT, account, tender.recipient)
    return Check("recipient", tender.recipient == pay_to, Reason.RECIPIENT, pay_to, tender.recipient)


def price_check(tender: Tender, asset: Asset, price_micro: int) -> Check:
    """Is it this price that is paid, on EVM or more?"""
    is_paid, reason = tender.value >= price_micro, Reason.VALUE
    if isinstance(asset, SolanaAsset):
        reason = Reason.SVM_AMOUNT if is_paid else Reason.SVM_AMOUNT_LOW
        is_paid = tender.value == price_micro
    return Check("value", is_paid, reason, str(price_micro), str(tender.value))


def with_advice(message: str, payer: str) -> str:
    """A refusal of a payment that was used before. On Solana an honest payer may have made its very bytes twice.

    Clients that add no memo do, and nothing in the payment shows it.
    """
    return message + _SIGN_AGAIN if family_of(payer) is Family.SOLANA else message
