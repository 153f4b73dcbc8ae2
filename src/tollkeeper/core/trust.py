"""How much may be served on trust: purchases that are not confirmed yet, or were not paid of late (contract 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Exposure:
    """Trusted purchases that are unconfirmed, or were not paid of late: how many, and what they are for."""

    purchases: int
    value_micro: int

    def allows(self, value_micro: int, cap: Exposure) -> bool:
        """Tell whether one more purchase of this value may be trusted under `cap`."""
        return self.purchases < cap.purchases and self.value_micro + value_micro <= cap.value_micro


@dataclass(frozen=True, slots=True)
class TrustCaps:
    """How much of a payer's, and of all payers' at one gate, may be trusted and unpaid at a time (contract 4.4).

    A gate has many payers: all of them may owe ten times what one may.
    """

    payer: Exposure
    gate: Exposure


_ANY: Final = Exposure(purchases=2**62, value_micro=2**62)
WITHOUT_LIMIT: Final = TrustCaps(_ANY, _ANY)
DEFAULT_EXPOSURE: Final = TrustCaps(Exposure(20, 20_000_000), Exposure(200, 200_000_000))
