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
        turns = self._waiting.setdefault(tenant, {})
        turns[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given one at this very moment
                self._shares.give_back(tenant)
            self._forget(tenant, turn)
            self._hand_out()
            raise

    def give_back(self, tenant: Hashable) -> None:
        """Take a place back, and give it to the next of those who wait."""
        self._shares.give_back(tenant)
        self._hand_out()

    def _hand_out(self) -> None:
        for tenant, turns in list(self._waiting.items()):
            turn = next((one for one in turns if not one.cancelled()), None)
            if turn is not None and self._shares.take(tenant):
                self._forget(tenant, turn)
                if turns:
                    self._waiting[tenant] = self._waiting.pop(tenant)
                turn.set_result(None)

    def _forget(self, tenant: Hashable, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant, {})
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(tenant, None)
