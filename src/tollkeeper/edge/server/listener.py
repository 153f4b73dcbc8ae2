"""Parts that all connections of one listener share: writing refusals, times to wait, the handlers of calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.shares import Shares
from tollkeeper.edge.server.call import AnsweredAtOnce, CallHandler
from tollkeeper.edge.server.timeouts import Sweep
from tollkeeper.edge.shared.turns import TurnEnd

# Status, headers and body of a refusal; the edge adds `Content-Length` and `Connection: close`.
Render: TypeAlias = Callable[[ApiError], tuple[int, list[Header], bytes]]


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener's. `calls` None: everything goes to the ASGI application.

    `crowded_from` is the first descriptor that is one too many for a caller: the system gives the lowest that is free.
    """

    render: Render
    patience: Patience
    sweep: Sweep
    calls: CallHandler | None
    ahead: Shares  # of what is read of uploads beyond what their targets take, by the caller's address
    crowded_from: int
    _answered: TurnEnd = field(default_factory=TurnEnd)

    def count(self, answered: AnsweredAtOnce) -> None:
        """Count a request that was answered at once, with the others of this turn of the loop."""
        self._answered.add(self._count, answered)

    def _count(self, answered: AnsweredAtOnce) -> None:
        answered.duration_us = (time.perf_counter_ns() - answered.started_ns) // 1000
        assert self.calls is not None  # noqa: S101 - it has answered
        self.calls.ended(answered)

    def refusal_of(self, error: ApiError, *, has_body: bool) -> bytes:
        """The last answer on a connection, to what could not be read; to HEAD its head alone (RFC 9110 9.3.2)."""
        status, headers, body = self.render(error)
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        head = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (b"".join(lines), len(body))
        return head + body if has_body else head
