"""Parts of a hub process that everything that settles has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.storage.hub.settlements import reopen_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.hub.settlements import Settlement


@dataclass(frozen=True, slots=True)
class SettlementParts:
    """Database, clock, this process among those that share the database, and metrics."""

    database: Database
    clock_ms: Callable[[], int]
    membership: Membership
    metrics: HubMetrics

    async def reopen(self, rows: Sequence[Settlement], detail: str) -> int:
        """Make rows pending again whose block is gone, in one commit; how many. Raises: StorageError."""
        return await self.database.run(reopen_all(rows, self.membership.id, self.clock_ms(), detail))
