"""A PayGate's own page: what it is, what it did, and how to call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.web.visit import Answer, Visit


@dataclass(frozen=True, slots=True)
class GatePage:
    """The page."""

    management: Management

    async def show(self, visit: Visit, gate_id: int) -> Answer:
        """Show the page. Raises: NOT_FOUND, FORBIDDEN."""
        gate = await self.management.read(visit.bearer, gate_id)
        return visit.page("gate.html", gate=gate)
