"""The listener's handler of PayGates' calls (contract 4.2), and how a stop ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tollkeeper.core.paygates.fields import RESERVED_SLUGS, is_slug
from tollkeeper.gateway.call.driver import Cut
from tollkeeper.gateway.call.flow import serve
from tollkeeper.gateway.call.request_facts import RequestFacts, shows_payment
from tollkeeper.gateway.call.state import PaidCall
from tollkeeper.gateway.call.unpaid import challenged

if TYPE_CHECKING:
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.call.context import GatewayContext

_SEGMENTS_MAX: Final = 4096
SLUG_MAX: Final = 64


class _Segments(dict[bytes, "str | None"]):
    """The slug that a path's first segment is, None for none, by the segment as it was sent."""

    def __missing__(self, segment: bytes) -> str | None:
        slug = segment.decode("latin-1")
        known = slug if is_slug(slug) and slug.lower() not in RESERVED_SLUGS else None
        if len(self) >= _SEGMENTS_MAX:  # callers invent them
            self.clear()
        if len(segment) <= SLUG_MAX:
            self[segment] = known
        return known


class PayGateHandler:
    """Handler of calls at PayGates (`edge.server.call.CallHandler`)."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._slugs = _Segments()

    def takes(self, target: bytes) -> bool:
        """Return True if the first path segment, as it was sent, is a slug (security A-18)."""
        return self._slugs[target.partition(b"?")[0].split(b"/", 2)[1]] is not None

    def begin(self, call: InboundCall) -> None:
        """Answer one request at a slug: at once where nothing is shown, else by a coroutine."""
        path, _, query = call.head.target.partition(b"?")
        _, segment, *below = path.split(b"/", 2)
        slug = self._slugs[segment]
        assert slug is not None  # noqa: S101 - else it is not taken
        subpath = b"/" + below[0] if below else b""
        has_proof = shows_payment(call) or bool(call.head.header.get(b"x-credit-token"))
        facts = RequestFacts(slug, query, subpath, has_proof)
        if has_proof or not challenged(self._context, call, facts):
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
