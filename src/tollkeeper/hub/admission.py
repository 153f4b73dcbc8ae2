"""How many settlements a network's hub carries at a time, and the share of trusted gateways (contract 5.2).

The hub has no rate limit, and gas bounds an hour, not a moment: a crowd of strangers' payments in a queue would hold up
every sale behind it. So what is under way is bounded. Where the hub has trusted gateways, strangers begin nothing while
half of it is taken, by whomever; the other half is left for these. The count is in the database
(`storage.hub.claim_bounds`), so all processes that share it share one bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tollkeeper.core.limits import PAYER_UNDER_WAY_MAX
from tollkeeper.hub.log_throttle import LogThrottle
from tollkeeper.hub.refusals import unavailable
from tollkeeper.storage.hub.claim_bounds import ClaimBounds, Funds

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.hub.metrics import HubMetrics

_LOG = structlog.get_logger("tollkeeper.hub")


class Admission:
    """The queue of one network."""

    def __init__(
        self,
        network: str,
        settlements_max: int,
        trusted_gateways: Sized,
        metrics: HubMetrics,
        clock_ms: Callable[[], int],
        *,
        payer_max: int = PAYER_UNDER_WAY_MAX,
    ) -> None:
        """`trusted_gateways`: as they are at each moment. `payer_max` of one payer's may be under way."""
        self._network = network
        self._settlements_max = settlements_max
        self._payer_max = payer_max
        self._trusted_gateways = trusted_gateways
        self._metrics = metrics
        self._telling = LogThrottle(clock_ms)

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
