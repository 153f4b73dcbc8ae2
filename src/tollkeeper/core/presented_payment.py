"""A payment as it was shown with one request, once its form was checked (contract 4.2, 10.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.core.payment_offers import OfferedPayment
    from tollkeeper.core.x402.version1 import Payment, PaymentKey


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
