"""A call whose answer is passed on as it comes: head first, then every part, with the size kept by breaking off.

The rest is as in `relay`: deadlines, one more attempt, who may be told what. Nothing of the answer is held but what its
owner has not taken: `pause` stops the target. Contract 4.7.
"""

from __future__ import annotations

from typing import Protocol, cast

from tollkeeper.core.http.heads import ResponseHead
from tollkeeper.edge.target.exchange import Exchange
from tollkeeper.edge.target.relay import AnswerOwner, ForwardLimits, Relay, RelayRequest, TargetConnections


class StreamOwner(Protocol):
    """Owner of the answer. The last call is `on_end` or `on_refusal`, once, unless the relay is closed first."""

    def on_head(self, head: ResponseHead) -> None:
        """The answer begins."""

    def on_part(self, data: bytes) -> None:
        """A part of its body, as the target encoded it."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_refusal(self, error: BaseException) -> None:
        """There is none, or it broke off: an ApiError, or a fault of ours."""


class StreamedRelay(Relay):
    """One call on its way. `start` it once; `close` it where nobody wants the answer any more."""

    def __init__(
        self, connections: TargetConnections, request: RelayRequest, owner: StreamOwner, limits: ForwardLimits
    ) -> None:
        super().__init__(connections, request, cast("AnswerOwner", owner), limits)  # it is refused, never answered
        self._stream = owner

    def pause(self) -> None:
        """Take no more of the answer for now; a little may still come."""
        self._pause_reading()

    def resume(self) -> None:
        """Take more of it."""
        self._resume_reading()

    def on_head(self, head: ResponseHead) -> None:
        """Pass the head of the answer on."""
        super().on_head(head)
        if not self._is_over:
            self._stream.on_head(head)

    def _take_part(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > self._limits.response_size_bytes:
            self._too_large(self._size_bytes)
        else:
            self._stream.on_part(data)

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Pass an answer on that came in one piece."""
        Exchange.on_whole(self, head, body)

    def on_end(self) -> None:
        """End the answer."""
        if self._is_over:
            return
        self._connections.deadlines.clear(self)
        self._connection = None
        self._let_body_go()
        self._is_over = True
        self._stream.on_end()
