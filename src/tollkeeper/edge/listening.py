"""The protocol class of one listener, made of what all its connections share."""

from __future__ import annotations

from tollkeeper.core.patience import Patience
from tollkeeper.edge.call import CallHandler
from tollkeeper.edge.heads import RememberedHeads, RequestHead
from tollkeeper.edge.inbound import StrictProtocol
from tollkeeper.edge.listener import Listener, Render
from tollkeeper.edge.patience import Sweep
from tollkeeper.edge.presence import ReadAhead


def strict_protocol(
    render: Render, patience: Patience | None = None, calls: CallHandler | None = None
) -> type[StrictProtocol]:
    """The protocol class of one listener, for `uvicorn.Config(http=...)`.

    `render` makes the answers to refusals; `calls` answers the paths that it takes, the ASGI application the others.
    """
    chosen = patience or Patience()

    class ListenerProtocol(StrictProtocol):
        listener = Listener(
            render,
            chosen,
            Sweep(chosen.sweep_seconds),
            calls,
            _never if calls is None else calls.at_once,
            RememberedHeads(),
            ReadAhead(),
        )

    return ListenerProtocol


def _never(_head: RequestHead, _peer: str) -> None:
    """No answer is ready where nobody answers calls."""
