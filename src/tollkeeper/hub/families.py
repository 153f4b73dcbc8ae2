"""Each family's settlements behind one door: the endpoints ask here and know no family (contract 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.core.networks import Family
    from tollkeeper.hub.orders import Order, Outcome
    from tollkeeper.hub.settlement import Settlements


class Settling:
    """Settles orders of any family."""

    def __init__(self, by_family: Mapping[Family, Settlements]) -> None:
        self._by_family = by_family

    async def settle(self, order: Order) -> Outcome:
        """As `Settlements.settle` of the order's family."""
        return await self._by_family[order.account.chain.network.family].settle(order)
