"""Offers that payments make, of either family: payer, amount and recipient (specification 2.3; contract 4.2, 4.3).

Only what a gateway must know by itself before it asks its facilitator: form, the payer's signature, and whether the
payment is to this recipient and of this price. On EVM at least the price is paid, on Solana exactly. Balance, fee and
blockhash are the facilitator's to judge: only the facilitator risks anything by them.
`PresentedPayment` is a payment as it was shown with one request, once its form was checked (contract 4.2, 10.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tollkeeper.core.families import FAMILIES
from tollkeeper.core.solana.rules import SolanaAsset, has_memo, payment_key, read_transfer, transaction_checks
from tollkeeper.core.wallets import family_of
from tollkeeper.core.x402 import verification
from tollkeeper.core.x402.verification import Check, EvmAsset, require, signature_check, time_checks, with_usual_v
from tollkeeper.core.x402.version1 import EvmPayload, SolanaPayload

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.core.x402.version1 import Payment, PaymentKey

Asset: TypeAlias = EvmAsset | SolanaAsset


@dataclass(frozen=True, slots=True)
class OfferedPayment:
    """One payment as a gate sees it; its form was checked.

    `recipient` is who is paid: an address on EVM, a token account on Solana. `valid_before` is in Unix seconds, None
    where blocks and not clocks decide. `fee_payer` is whom a Solana payer chose to pay the fee.
    `is_signed_by_key`: the payer's key signed; else only a chain can say, because a contract may be the payer.
    `is_repeatable`: nothing in it tells it from another payment of the same moment, so two may be the very same bytes.
    """

    key: PaymentKey
    value: int
    recipient: str
    valid_before: int | None
    signature: bytes = field(repr=False)
    fee_payer: str = ""
    is_signed_by_key: bool = True
    is_repeatable: bool = False


def offered_payment(payment: Payment, asset: Asset) -> OfferedPayment:
    """Return what a payment of that asset's network offers. Its form was checked before.

    Raises: the payment error of a rule that it breaks; on Solana also of a signature that its payer did not make.
    """
    payload = payment.payload
    if isinstance(asset, SolanaAsset):
        assert isinstance(payload, SolanaPayload)  # noqa: S101 - form_checks came first
        return _on_solana(payload, asset)
    assert isinstance(payload, EvmPayload)  # noqa: S101 - the same
    authorization = payload.authorization
    return OfferedPayment(
        verification.payment_key(asset, payload),
        authorization.value,
        authorization.pay_to,
        authorization.valid_before,
        payload.signature,
        is_signed_by_key=signature_check(with_usual_v(payload), asset).ok,
    )


def _on_solana(payload: SolanaPayload, asset: SolanaAsset) -> OfferedPayment:
    require(transaction_checks(payload, asset))
    transfer = read_transfer(payload)
    return OfferedPayment(
        payment_key(asset, transfer),
        transfer.value,
        transfer.destination,
        None,
        transfer.transaction.signatures[1],
        transfer.fee_payer,
        is_repeatable=not has_memo(transfer),
    )


def require_valid_now(payment: Payment, now_seconds: int) -> None:
    """Is the payment valid by its own times, where it has any? Raises: PAYMENT_EXPIRED, PAYMENT_INVALID."""
    if isinstance(payment.payload, EvmPayload):
        require(time_checks(payment.payload, now_seconds))


def recipient_check(offered: OfferedPayment, asset: Asset, pay_to: str) -> Check:
    """Is it this wallet that is paid?"""
    return asset.recipient_check(offered.recipient, pay_to)


def price_check(offered: OfferedPayment, asset: Asset, price_micro: int) -> Check:
    """Is it this price that is paid, on EVM or more?"""
    return asset.price_check(offered.value, price_micro)


def with_advice(message: str, payer: str) -> str:
    """A refusal of a payment that was used before, with what its family's payers should know."""
    return message + FAMILIES[family_of(payer)].used_advice


@dataclass(frozen=True, slots=True)
class PresentedPayment:
    """A payment whose form was checked, as it came with one request; on EVM its signature may still be anything."""

    payment: Payment
    offered: OfferedPayment
    header: bytes = field(repr=False)
    header_hash: bytes = field(repr=False)

    @property
    def key(self) -> PaymentKey:
        """The payment's identity."""
        return self.offered.key

    @property
    def accepted(self) -> JsonMapping | None:
        """The offer that a payment of version 2 says to take; None of version 1."""
        return self.payment.accepted
