"""What all connections of one listener share: how refusals are written, how long is waited, whose the calls are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tollkeeper.core.errors import ApiError
from tollkeeper.core.forwarding import Header
from tollkeeper.core.patience import Patience
from tollkeeper.edge.call import CallHandler
from tollkeeper.edge.heads import RememberedHeads, RequestHead
from tollkeeper.edge.patience import Sweep
from tollkeeper.edge.presence import ReadAhead

log = structlog.get_logger("tollkeeper.edge")

# Status, headers and body of a refusal; the edge adds `Content-Length` and `Connection: close`.
Render: TypeAlias = Callable[[ApiError], tuple[int, list[Header], bytes]]


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener's. `calls` None: everything goes to the ASGI application."""

    render: Render
    patience: Patience
    sweep: Sweep
    calls: CallHandler | None
    heads: RememberedHeads
    ahead: ReadAhead

    def refusal_of(self, error: ApiError) -> bytes:
        """The last answer on a connection, to what could not be read."""
        status, headers, body = self.render(error)
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        return b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (b"".join(lines), len(body), body)

    def ready_for(self, head: RequestHead, client: tuple[str, int] | None) -> bytes | None:
        """The answer to a request with this head, where its handler has one ready."""
        if self.calls is None:
            return None
        try:
            answered = self.calls.at_once(head, client[0] if client else "")
        except Exception:  # as a call it gets an answer, whatever happens
            log.exception("answer_at_once_failed")
            return None
        return None if answered is None else answered[1]
