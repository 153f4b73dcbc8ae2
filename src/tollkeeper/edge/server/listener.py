"""Parts that all connections of one listener share: writing refusals, times to wait, the handlers of calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.shares import Shares
from tollkeeper.edge.server.call import AnsweredAtOnce, CallHandler
from tollkeeper.edge.server.timeouts import Sweep

# Status, headers and body of a refusal; the edge adds `Content-Length` and `Connection: close`.
Render: TypeAlias = Callable[[ApiError], tuple[int, list[Header], bytes]]

log = structlog.get_logger("tollkeeper.edge")


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
    _answered: list[AnsweredAtOnce] = field(default_factory=list)  # in this turn of the loop, and not counted yet

    def count(self, answered: AnsweredAtOnce) -> None:
        """Count a request that was answered at once, with the others of this turn of the loop."""
        if not self._answered:
            asyncio.get_running_loop().call_soon(self._count_all)
        self._answered.append(answered)

    def _count_all(self) -> None:
        """Tell the handler of each."""
        assert self.calls is not None  # noqa: S101 - it has answered
        answered, now_ns = self._answered[:], time.perf_counter_ns()
        self._answered.clear()
        for one in answered:
            one.duration_us = (now_ns - one.started_ns) // 1000
            try:
                self.calls.ended(one)
            except Exception:  # a log line that fails is no reason to count no more
                log.exception("call_end_failed", request_id=one.request_id)

    def refusal_of(self, error: ApiError, *, has_body: bool) -> bytes:
        """The last answer on a connection, to what could not be read; to HEAD its head alone (RFC 9110 9.3.2)."""
        status, headers, body = self.render(error)
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        head = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (b"".join(lines), len(body))
        return head + body if has_body else head
