"""A payer's proof: a payment that is shown to spend a held credit, and is never settled (contract 10.3).

It is a good payment here and now in everything but its balance. Official clients sign one for every call.

- It takes an offer of the gate, to the letter, and its payer signed it (`core.purchases.terms_for`,
  `core.payment_offers`).
- It ends soon: one that holds for long is worth more to whoever finds it than the credit.
- No chain has used it, and nobody showed it before. Its identity is kept until no chain can use it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.core.limits import CHALLENGE_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from tollkeeper.core.payment_offers import OfferedPayment

# Clients let a payment hold for as long as its offer says, by clocks that may be a minute ahead.
LIFETIME_SECONDS: Final = CHALLENGE_TIMEOUT_SECONDS + 60
# A branch of an EVM chain that is dropped takes no later block's time with it than this.
_SAFE_SECONDS: Final = 3600


class AuthorizationStanding(NamedTuple):
    """How a payment stands on its chain.

    `moment` counts as the chain does what ends its payments: on EVM Unix seconds of its latest block, on Solana the
    height of its latest finalized block. `last`: the last such moment at which it may be used; 0 where the payment says
    it itself.
    """

    is_unused: bool
    moment: int
    last: int = 0

    def kept_until(self, offered: OfferedPayment) -> int:
        """Return the moment from which on nobody need remember that this payment was shown."""
        return self.last if offered.valid_before is None else offered.valid_before + _SAFE_SECONDS


def ends_soon(offered: OfferedPayment, now_seconds: int) -> bool:
    """Tell whether the payment ends about when its offer asks for. On Solana each does: blocks end it."""
    return offered.valid_before is None or offered.valid_before <= now_seconds + LIFETIME_SECONDS
