"""The listener's handler of PayGates' calls (contract 4.2), and how a stop ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.core.paygates.fields import RESERVED_SLUGS, is_slug
from tollkeeper.gateway.call.driver import Cut
from tollkeeper.gateway.call.flow import serve
from tollkeeper.gateway.call.request_facts import asked_by
from tollkeeper.gateway.call.state import PaidCall
from tollkeeper.gateway.call.unpaid import challenged

if TYPE_CHECKING:
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.call.context import GatewayContext


class PayGateHandler:
    """Handler of calls at PayGates (`edge.server.call.CallHandler`)."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    def takes(self, target: bytes) -> bool:
        """Return True if the first path segment, as it was sent, is a slug (security A-18)."""
        slug = target[1:].partition(b"?")[0].partition(b"/")[0].decode("latin-1")
        return is_slug(slug) and slug.lower() not in RESERVED_SLUGS

    def begin(self, call: InboundCall) -> None:
        """Answer one request at a slug: at once where nothing is shown, else by a coroutine."""
        facts = asked_by(call)
        if not challenged(self._context, call, facts):
            paid = PaidCall(self._context, call, facts)
            call.on_gone = paid.driver.client_left
            paid.driver.begin(serve(paid))

    def ended(self, call: InboundCall) -> None:
        """Do nothing: a call tells its own end."""

    async def aclose(self) -> None:
        """Cut what still waits: the listener has waited as long as it may. A commit under way is waited for.

        What a call's commit has taken by then is given back. Behind this nothing asks for a credit or a payment.
        """
        self._context.is_stopping = True  # what stands behind a call that is cut begins now
        await self.settled()

    async def settled(self) -> None:
        """Cut the calls that wait in tasks, also those that begin meanwhile, and wait for what takes or gives back."""
        under_way = self._context.under_way
        while True:
            self._cut_tasks()
            await self._context.purchases.ledger.idle()
            self._cut_tasks()
            if not under_way:
                return
            await asyncio.wait(list(under_way))

    def _cut_tasks(self) -> None:
        for driver in list(self._context.under_way.values()):
            driver.cut_short(Cut.STOPPED)
