"""The listener's handler of PayGates' calls (contract 4.2), and how a stop ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.gateway.call.driver import Cut
from tollkeeper.gateway.call.flow import serve
from tollkeeper.gateway.call.request_facts import SLUGS, RequestFacts
from tollkeeper.gateway.call.state import PaidCall
from tollkeeper.gateway.call.unpaid import UnpaidRequest, UnpaidRequests

if TYPE_CHECKING:
    from tollkeeper.edge.server.call import AnsweredRequest, InboundCall
    from tollkeeper.gateway.call.context import GatewayContext


class PayGateHandler:
    """Handler of calls at PayGates (`edge.server.call.CallHandler`)."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self.at_once = UnpaidRequests(context).told

    def takes(self, target: bytes) -> bool:
        """Return True if the first path segment, as it was sent, is a slug (security A-18)."""
        return SLUGS[target.partition(b"?")[0].split(b"/", 2)[1]] is not None

    def begin(self, call: InboundCall) -> None:
        """Answer one request at a slug, by a coroutine."""
        paid = PaidCall(self._context, call, RequestFacts.of(call.head))
        call.on_gone = paid.driver.client_left
        paid.driver.begin(serve(paid))

    def ended(self, call: AnsweredRequest) -> None:
        """Count a request that was told to pay at once; a call counts its own end."""
        if isinstance(call, UnpaidRequest):
            self._context.traffic.challenged(call.gate_id, call)

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
