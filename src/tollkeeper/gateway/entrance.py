"""What is a PayGate's call, and those of them that are answered before they become one (contract 4.1, 4.2).

`Access` is the listener's handler. A request whose head got a 402 before, at the very same gate, gets it again at once
(`unpaid`), counted and limited as any other; one that spent a credit is an `again.CallAgain`; every other becomes an
`access.PaidCall`. Decides nothing else.
"""

from __future__ import annotations

import asyncio
from time import time
from typing import TYPE_CHECKING

from tollkeeper.core.paygate_fields import RESERVED_SLUGS, is_slug
from tollkeeper.edge.ready import ID_ENDS
from tollkeeper.gateway.access import PaidCall
from tollkeeper.gateway.again import CallAgain
from tollkeeper.gateway.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.edge.call import InboundCall, Tell
    from tollkeeper.edge.heads import RequestHead
    from tollkeeper.gateway.calls import Asked
    from tollkeeper.gateway.unpaid import Unpaid


class Access(Shared):
    """Answers calls of PayGates (`edge.call.CallHandler`)."""

    again = staticmethod(CallAgain.of)
    tell: Tell | None = None

    def takes(self, target: bytes) -> bool:
        """The first path segment, as it was sent, is a slug or it is not (security A-18)."""
        slug = target[1:].partition(b"?")[0].partition(b"/")[0].decode("latin-1")
        return is_slug(slug) and slug.lower() not in RESERVED_SLUGS

    def at_once(self, head: RequestHead, peer: str) -> bytes | None:
        """The 402 to a head whose request got one before, while its gate is the very same; counted as any other.

        None, too, for a client over its limit: its refusal is made as any other. What most requests need stands in this
        one method, since each call of Python would cost about as much as all that it does (performance 17).
        """
        asked: Asked = head.notes
        ready = asked.ready_402
        if ready is None or self.gates.kept(ready.slug) is not ready.opened:
            return None
        standing = b""
        if peer is not self.limit.free_peer:
            admitted = self.limit.admits(peer, head.headers)
            if admitted is None:
                return None
            standing = admitted
        if not (ID_ENDS and ready.since <= time() < ready.until):
            ready.renew(self.traffic)
        ready.count += 1
        id_end = ID_ENDS.pop()
        if self.traffic.has_room or self.tell is not None:
            self._log(ready, head, ready.id_start + id_end.decode())
        if standing:
            id_end = b"%b\r\n%b" % (id_end, standing[:-2])
        return b"".join((ready.before, id_end, ready.after))

    def _log(self, ready: Unpaid, head: RequestHead, request_id: str) -> None:
        self.traffic.log_at_once(ready, request_id, head.method)
        if self.tell is not None:
            self.tell(head, ready.status, request_id)

    def counted_at_once(self) -> Mapping[int, int]:
        """See `CallHandler`."""
        return {402: self.traffic.counted_at_once}

    def begin(self, call: InboundCall) -> None:
        """Answers one request at a slug."""
        PaidCall(self, call).arrive()

    def ended(self, call: InboundCall) -> None:
        """See `CallHandler`; a call tells its own end."""

    def ended_together(self, calls: Sequence[InboundCall]) -> None:
        """See `CallHandler`."""

    async def aclose(self) -> None:
        """Gives up what still waits: the listener has waited as long as it may. A commit under way is waited for.

        What a call's commit has taken by then is given back. Behind this nothing asks for a credit or a payment.
        """
        self.is_stopping = True  # what stands behind a call that is cut begins now, and never the straight way
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
