"""The protocol class of one listener, made of what all its connections share."""

from __future__ import annotations

import resource
import sys

from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.shares import Shares
from tollkeeper.edge.server.call import CallHandler
from tollkeeper.edge.server.client_liveness import AHEAD_ALL_BYTES
from tollkeeper.edge.server.listener import Listener, Render
from tollkeeper.edge.server.protocol import StrictProtocol
from tollkeeper.edge.server.timeouts import Sweep


def strict_protocol(
    render: Render,
    patience: Patience | None = None,
    calls: CallHandler | None = None,
    *,
    descriptors_max: int | None = None,
) -> type[StrictProtocol]:
    """The protocol class of one listener, for `uvicorn.Config(http=...)`.

    `render` makes the answers to refusals; `calls` answers the paths that it takes, the ASGI application the others.
    `descriptors_max` is how many the process may have open, by default what the system allows it; callers get half.
    """
    chosen = patience or Patience()
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if descriptors_max is None else descriptors_max
    crowded_from = sys.maxsize if descriptors == resource.RLIM_INFINITY else descriptors // 2

    class ListenerProtocol(StrictProtocol):
        listener = Listener(
            render,
            chosen,
            Sweep(chosen.sweep_seconds),
            calls,
            Shares(AHEAD_ALL_BYTES),
            crowded_from,
        )

    return ListenerProtocol
