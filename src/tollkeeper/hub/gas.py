"""What settling may cost on one network in an hour (contract 5.2; security A-24).

The hub has no rate limit, so its gas is bounded here. Strangers who settle for themselves may use half of the hour's
budget where the hub has trusted gateways; the other half is left for these, so that nobody can stop their sales. Each
transaction counts with its gas limit, in the commit that signs it, over the last sixty minutes: the counts are in the
database, so that all processes that share it share one budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.hub.accounts import unavailable
from tollkeeper.storage.transactions import GasBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from tollkeeper.core.errors import ApiError

_LOG = structlog.get_logger("tollkeeper.hub")
_MINUTE_MS: Final = 60_000


class Gas:
    """The budget of one network."""

    def __init__(self, network: str, per_hour: int, trusted_gateways: Sized, clock_ms: Callable[[], int]) -> None:
        """`per_hour`: gas units. `trusted_gateways`: as they are at each moment."""
        self._network = network
        self._per_hour = per_hour
        self._trusted_gateways = trusted_gateways
        self._clock_ms = clock_ms
        self._told_minute = -1

    def budget(self) -> GasBudget:
        """What a claim is held to now."""
        share = self._per_hour // 2 if len(self._trusted_gateways) else self._per_hour
        return GasBudget(self._network, self._per_hour, share, self._clock_ms())

    def used_up(self) -> ApiError:
        """503 for a claim that the budget had no room for; the operator is told once a minute."""
        minute = self._clock_ms() // _MINUTE_MS
        if minute != self._told_minute:
            self._told_minute = minute
            _LOG.error("gas_budget_used_up", network=self._network, per_hour=self._per_hour)
        return unavailable("its gas budget of this hour is used up")
