"""Places for work that waits for its tenant's share: `core.shares` with a queue (security A-58).

For what ends soon by itself, as the look-up of a name and a list do: who is refused there would only ask again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.core.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Hashable


class Places:
    """Places of one kind. Belongs to one event loop."""

    def __init__(self, capacity: int) -> None:
        self._shares = Shares(capacity)
        self._waiting: dict[Hashable, dict[asyncio.Future[None], None]] = {}  # who was given one last is last

    async def take(self, tenant: Hashable) -> None:
        """Wait for a place. Whoever is cancelled meanwhile has none."""
        if tenant not in self._waiting and self._shares.take(tenant):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(tenant, turn)
            else:  # it was given one at this very moment
                self.give_back(tenant)
            raise

    def give_back(self, tenant: Hashable) -> None:
        """Take a place back, and give it to the next of those who wait."""
        self._shares.give_back(tenant)
        for waiting, turns in list(self._waiting.items()):
            if self._shares.take(waiting):
                turn = next(iter(turns))
                self._forget(waiting, turn)
                if turns:
                    self._waiting[waiting] = self._waiting.pop(waiting)
                turn.set_result(None)

    def _forget(self, tenant: Hashable, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[tenant]
        del turns[turn]
        if not turns:
            del self._waiting[tenant]
