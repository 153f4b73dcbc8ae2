"""The listener's handler of PayGates' calls (contract 4.2): each call is a `flow.PaidCall`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.core.paygates.fields import RESERVED_SLUGS, is_slug
from tollkeeper.gateway.call.context import Shared
from tollkeeper.gateway.call.flow import PaidCall

if TYPE_CHECKING:
    from tollkeeper.edge.server.call import InboundCall


class Access(Shared):
    """Answers calls of PayGates (`edge.server.call.CallHandler`)."""

    def takes(self, target: bytes) -> bool:
        """The first path segment, as it was sent, is a slug or it is not (security A-18)."""
        slug = target[1:].partition(b"?")[0].partition(b"/")[0].decode("latin-1")
        return is_slug(slug) and slug.lower() not in RESERVED_SLUGS

    def begin(self, call: InboundCall) -> None:
        """Answers one request at a slug."""
        PaidCall(self, call).arrive()

    def ended(self, call: InboundCall) -> None:
        """Do nothing: a call tells its own end."""

    async def aclose(self) -> None:
        """Gives up what still waits: the listener has waited as long as it may. A commit under way is waited for.

        What a call's commit has taken by then is given back. Behind this nothing asks for a credit or a payment.
        """
        self.is_stopping = True  # what stands behind a call that is cut begins now
        await self.settled()

    async def settled(self) -> None:
        """Cancels requests' tasks, also those that begin meanwhile, and waits for what takes or gives back a credit."""
        while True:
            self._cancel_tasks()
            await self.purchases.ledger.idle()
            self._cancel_tasks()
            if not (waiting := self.tasks | self.charging):
                return
            await asyncio.wait(waiting)

    def _cancel_tasks(self) -> None:
        """Each once, whatever its own timeouts have cancelled: behind it there may be something to wait for."""
        for task in self.tasks - self.cut_tasks:
            self.cut_tasks.add(task)
            task.cancel()
