"""The gas money of one signer on one network: for how many settlements does it last (security A-26)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.storage.hub.claim_bounds import Funds

if TYPE_CHECKING:
    from tollkeeper.hub.metrics import HubMetrics

_LOG = structlog.get_logger("tollkeeper.hub")
# For so many settlements at the fees of the moment the signer's money should last, or the operator is told.
LOW_SETTLEMENTS: Final = 100


@dataclass(slots=True)
class SignerBalance:
    """Gas money as it was seen last; `affordable` is None before it was seen.

    `unit`: what its network counts money in; `reserve`: how much the network lets nobody spend.
    """

    network: str
    address: str
    gas_limit: int
    metrics: HubMetrics
    unit: str = "wei"
    reserve: int = 0
    affordable: int | None = None

    def see(self, balance: int, max_fee_per_gas: int) -> None:
        """Note the signer's money, and say when it runs low. Both are in this balance's unit."""
        affordable = self.spendable(balance) // max(1, max_fee_per_gas * self.gas_limit)
        was_low = self.is_low
        was_empty, self.affordable = self.is_empty, affordable
        self.metrics.signer_settlements.labels(self.network, self.address).set(affordable)
        about = {"network": self.network, "signer": self.address, f"balance_{self.unit}": balance}
        if self.is_empty and not was_empty:
            _LOG.error("signer_without_gas", **about)
        elif self.is_low and not was_low:
            _LOG.warning("signer_low_on_gas", **about, settlements=affordable)

    def spendable(self, balance: int) -> int:
        """Return how much of this balance may be spent."""
        return max(0, balance - self.reserve)

    def funds(self, cost_max: int) -> Funds | None:
        """Return what the signer may promise in all, in gas at the fees of the moment, as `cost_max` is.

        None if the balance was not seen yet.
        """
        if self.affordable is None:
            return None
        return Funds(self.address, self.affordable * self.gas_limit, cost_max, 0)

    @property
    def is_low(self) -> bool:
        """Does what was seen last not last for long?"""
        return self.affordable is not None and self.affordable < LOW_SETTLEMENTS

    @property
    def is_empty(self) -> bool:
        """Was there not enough for one settlement when the balance was seen last?"""
        return self.affordable == 0
