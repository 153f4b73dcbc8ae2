"""What settling may cost on one network: gas per hour, and the signer's money (contract 5.2; security A-24).

The hub has no rate limit, so its gas is bounded here. Strangers who settle for themselves may use half of the hour's
budget where the hub has trusted gateways; the other half is left for these, so that nobody can stop their sales. Each
transaction counts with its gas limit, when it is signed, over the last sixty minutes; a start counts what the database
shows. Held in memory: one process settles from one database.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.hub.accounts import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sized

_LOG = structlog.get_logger("tollkeeper.hub")
_MINUTE_MS: Final = 60_000
_WINDOW_MINUTES: Final = 60
WINDOW_MS: Final = _WINDOW_MINUTES * _MINUTE_MS
# For so many settlements at the fees of the moment the signer's money should last, or the operator is told.
LOW_SETTLEMENTS: Final = 100


class Gas:
    """The budget and the purse of one network's signer."""

    def __init__(
        self, network: str, per_hour: int, gas_limit: int, trusted_gateways: Sized, clock_ms: Callable[[], int]
    ) -> None:
        """`per_hour`: gas units. `gas_limit`: of one settlement. `trusted_gateways`: as they are at each moment."""
        self._network = network
        self._per_hour = per_hour
        self._gas_limit = gas_limit
        self._trusted_gateways = trusted_gateways
        self._clock_ms = clock_ms
        self._by_minute: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])  # gas of strangers, of gateways
        self._told_minute = -1
        self._affordable: int | None = None

    def remember(self, spent: Iterable[tuple[int, bool, int]]) -> None:
        """Counts what was signed before the start: Unix minute, by a trusted gateway, transactions."""
        for minute, is_trusted, count in spent:
            self._by_minute[minute][is_trusted] += count * self._gas_limit

    def reserve(self, *, is_trusted: bool) -> Callable[[], None]:
        """Counts one transaction; what is returned takes it back. Raises: UNAVAILABLE where the budget is used up."""
        minute = self._clock_ms() // _MINUTE_MS
        for old in [known for known in self._by_minute if known <= minute - _WINDOW_MINUTES]:
            del self._by_minute[old]
        of_strangers, of_gateways = (sum(pair[index] for pair in self._by_minute.values()) for index in (0, 1))
        share = self._per_hour // 2 if len(self._trusted_gateways) else self._per_hour
        is_within = of_strangers + of_gateways + self._gas_limit <= self._per_hour
        if not is_within or (not is_trusted and of_strangers + self._gas_limit > share):
            if minute != self._told_minute:
                self._told_minute = minute
                _LOG.error("gas_budget_used_up", network=self._network, strangers=of_strangers, gateways=of_gateways)
            raise unavailable("its gas budget of this hour is used up")
        bucket = self._by_minute[minute]
        bucket[is_trusted] += self._gas_limit

        def give_back() -> None:
            bucket[is_trusted] -= self._gas_limit

        return give_back

    def see_balance(self, balance_wei: int, max_fee_per_gas_wei: int) -> None:
        """Takes note of the signer's money and says when it runs low."""
        affordable = balance_wei // max(1, max_fee_per_gas_wei * self._gas_limit)
        was_low = self._affordable is not None and self._affordable < LOW_SETTLEMENTS
        was_empty, self._affordable = self.is_empty, affordable
        if self.is_empty and not was_empty:
            _LOG.error("signer_without_gas", network=self._network, balance_wei=balance_wei)
        elif affordable < LOW_SETTLEMENTS and not was_low:
            _LOG.warning("signer_low_on_gas", network=self._network, balance_wei=balance_wei, settlements=affordable)

    @property
    def is_empty(self) -> bool:
        """Was there not enough for one settlement when the balance was seen last?"""
        return self._affordable == 0
