"""How many settlements a network's hub carries at a time, and the share of trusted gateways (contract 5.2).

The hub has no rate limit, and gas bounds an hour, not a moment: a crowd of strangers' payments in a queue would hold up
every sale behind it. So what is under way is bounded. Where the hub has trusted gateways, strangers begin nothing while
half of it is taken, by whomever; the other half is left for these. The count is in the database
(`storage.hub.claims`), so all processes that share it share one bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.limits import PAYER_UNDER_WAY_MAX
from tollkeeper.hub.refusals import LogThrottle, unavailable
from tollkeeper.storage.hub.claims import ClaimBounds, Funds
from tollkeeper.storage.hub.transactions import GasBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.storage.hub.payers import Suspended

_LOG = structlog.get_logger("tollkeeper.hub")


@dataclass(frozen=True, slots=True)
class Admission:
    """The queue of one network.

    `_trusted_gateways`: as they are at each moment. `_payer_max` of one payer's may be under way.
    """

    _network: str
    _settlements_max: int
    _trusted_gateways: Sized
    _metrics: HubMetrics
    _telling: LogThrottle
    _payer_max: int = PAYER_UNDER_WAY_MAX

    def bounds(self, funds: Funds | None = None) -> ClaimBounds:
        """Return the bounds that a claim is held to now."""
        share = self._settlements_max // 2 if len(self._trusted_gateways) else self._settlements_max
        return ClaimBounds(self._network, self._settlements_max, share, self._payer_max, funds)

    def is_full(self) -> ApiError:
        """Return the 503 for a claim that there was no room for; the operator is told once a minute."""
        self._metrics.turned_away.labels(self._network).inc()
        if self._telling.is_due("settlements_turned_away"):
            _LOG.error("settlements_turned_away", network=self._network, under_way_max=self._settlements_max)
        return unavailable("too many settlements are under way: nothing was signed; send it again later")


# Budget of what settling may cost on one network in an hour (contract 5.2; security A-24). The hub has no rate limit,
# so its gas is bounded here. Strangers who settle for themselves may use half of the hour's budget where the hub has
# trusted gateways; the other half is left for the sales of these, so that nobody can stop them from elsewhere. A
# transfer is a stranger's, whoever asks for it. Of either half nobody takes more than half of what is left to the
# others (`core.shares`): no gate's owner, and no stranger. Each transaction counts with its gas limit, in the commit
# that signs it, over the last sixty minutes: the counts are in the database, so that all processes that share it share
# one budget.


@dataclass(frozen=True, slots=True)
class FeeBudget:
    """The budget of one network.

    `_per_hour`: gas units, by that setting. `_trusted_gateways`: as they are at each moment.
    """

    _network: str
    _per_hour: int
    _setting: str
    _trusted_gateways: Sized
    _clock_ms: Callable[[], int]
    _telling: LogThrottle

    def budget(self) -> GasBudget:
        """Return the budget that a claim is held to now."""
        share = self._per_hour // 2 if len(self._trusted_gateways) else self._per_hour
        return GasBudget(self._network, self._per_hour, share, self._clock_ms())

    def used_up(self) -> ApiError:
        """Return the 503 for a claim that the budget had no room for; the operator is told once a minute."""
        if self._telling.is_due("gas_budget_used_up"):
            _LOG.error("gas_budget_used_up", network=self._network, per_hour=self._per_hour)
        return unavailable(f"its gas budget of this hour is used up (the operator's setting {self._setting})")

    def share_used_up(self, tenant: str) -> ApiError:
        """Return the 503 for a claim whose tenant has its share of the budget; told as above."""
        if self._telling.is_due("gas_share_used_up"):
            _LOG.warning("gas_share_used_up", network=self._network, tenant=tenant, per_hour=self._per_hour)
        return unavailable(
            f"who sells here has had its share of the gas budget of this hour (the operator's setting {self._setting})"
        )

    def promised(self, signer: str) -> None:
        """Tell the operator, as above, that nobody's money lasts beside what is under way, this signer's last."""
        if self._telling.is_due("fees_promised"):
            _LOG.error("fees_promised", network=self._network, signer=signer)

    def suspended(self, payer: str, why: Suspended) -> ApiError:
        """Return the 503 for a payer whose payments failed at our cost, or are too many under way; told as above."""
        if self._telling.is_due("payer_suspended"):
            about = {"network": self._network, "payer": payer}
            _LOG.warning("payer_suspended", **about, failures=why.failures, pending=why.under_way)
        return ApiError(
            Code.UNAVAILABLE,
            "too many payments of this payer failed on the chain within the hour, or are under way: try again later",
            details={"reason": "payer_suspended", "failures": why.failures, "pending": why.under_way},
            headers={"Retry-After": str(why.seconds)},
        )
