"""A PayGate's own page: what it is, what it did, who holds credits, and how to call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.web.dashboard.payments import linked
from tollkeeper.web.figures import calls_chart, columns_of, revenue_chart, span_of

if TYPE_CHECKING:
    from tollkeeper.gateway.management.owner_lists import OwnerLists
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.gateway.management.statistics import Reports
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit


@dataclass(frozen=True, slots=True)
class GatePage:
    """The page."""

    management: Management
    reports: Reports
    lists: OwnerLists

    async def show(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Show the page. Raises: NOT_FOUND, FORBIDDEN."""
        gate = await self.management.read(visit.bearer, gate_id)
        days, query = span_of(visit.query)
        stats = await self.reports.of_gate(visit.bearer, gate_id, query)
        columns = columns_of(stats)
        few = {"paygate": str(gate_id), "limit": "5"}
        requests = await self.lists.requests(visit.bearer, few)
        payments = await self.lists.payments(visit.bearer, few)
        holders = await self.lists.payments(visit.bearer, {**few, "held": "true"})
        return visit.page(
            "gate.html",
            gate=gate,
            stats=stats,
            days=days,
            charts=[revenue_chart(columns), calls_chart(columns)],
            requests=requests["data"],
            payments=[linked(one) for one in payments["data"]],
            holders=holders["pagination"].total_count,
        )
