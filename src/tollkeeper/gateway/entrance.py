"""What is a PayGate's call, and those of them that are answered before they become one (contract 4.1, 4.2).

`Access` is the listener's handler. A request whose head got a 402 before, at the very same gate, gets it again at once
(`unpaid`), counted and limited as any other; every other becomes an `access.PaidCall`. Decides nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.api import clock_ms
from tollkeeper.core.paygate_fields import RESERVED_SLUGS, is_slug
from tollkeeper.gateway.access import PaidCall
from tollkeeper.gateway.crediting import Parts

if TYPE_CHECKING:
    from tollkeeper.edge.call import InboundCall
    from tollkeeper.edge.heads import RequestHead
    from tollkeeper.gateway.calls import Asked


class Access(Parts):
    """Answers calls of PayGates (`edge.call.CallHandler`)."""

    def takes(self, target: bytes) -> bool:
        """The first path segment, as it was sent, is a slug or it is not (security A-18)."""
        slug = target[1:].partition(b"?")[0].partition(b"/")[0].decode("latin-1")
        return is_slug(slug) and slug.lower() not in RESERVED_SLUGS

    def at_once(self, head: RequestHead, peer: str) -> tuple[str, bytes] | None:
        """The 402 to a head whose request got one before, while its gate is the very same; counted as any other.

        None, too, for a client over its limit: its refusal is made as any other.
        """
        asked: Asked | None = head.notes
        ready = None if asked is None else asked.ready_402
        if ready is None or self.gates.kept(ready.slug) is not ready.opened:
            return None
        lines = self.limit.admits(peer, head.headers)
        if lines is None:
            return None
        now_ms = clock_ms()
        answered = ready.answer.at(now_ms, lines)
        self.traffic.challenged_at_once(ready.gate_id, answered[0], head.method, now_ms)
        return answered

    def begin(self, call: InboundCall) -> None:
        """Answers one request at a slug."""
        PaidCall(self, call).arrive()

    def ended(self, call: InboundCall) -> None:
        """See `CallHandler`; a call tells its own end."""

    async def aclose(self) -> None:
        """Gives up what still waits: the listener has waited as long as it may. A commit under way is waited for."""
        for task in self.tasks:
            task.cancel()
        while waiting := self.tasks | self.charging:
            await asyncio.wait(waiting)
