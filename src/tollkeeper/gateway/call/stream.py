"""An answer that is passed on as it comes, between the target's pace and the caller's (contract 4.7, `stream: true`).

Holds what the caller has not taken, and stops the target beyond STREAM_AHEAD_BYTES. What fails before the target's head
is refused as everywhere; what fails afterwards ends the parts. Sends nothing itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol
from weakref import ref

from tollkeeper.core.http.heads import BodyEnd
from tollkeeper.edge.shared.body_chunks import Part, add_part
from tollkeeper.edge.target.relay import AnswerOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tollkeeper.core.http.heads import ResponseHead
    from tollkeeper.edge.target.stream import StreamedRelay

STREAM_AHEAD_BYTES: Final = 64 * 1024


class PartsOwner(AnswerOwner, Protocol):
    """The owner of a call. `on_stream` is called in place of `on_answer` where there is a body."""

    def on_stream(self, head: ResponseHead, parts: AsyncIterator[bytes]) -> None:
        """The head; the parts come as the target sends them and may end in UPSTREAM_*. They are to be iterated."""


class StreamedParts:
    """One answer on its way (`edge.target.stream.StreamOwner`), brought by the relay of `follow`.

    That names this, and has the request: held from here, both would lie in a circle until the collector comes.
    """

    __slots__ = (
        "_ahead_bytes",
        "_arrived",
        "_fault",
        "_head",
        "_is_complete",
        "_is_streaming",
        "_owner",
        "_parts",
        "_relay",
    )

    def __init__(self, owner: PartsOwner) -> None:
        self._relay: ref[StreamedRelay]
        self._owner = owner
        self._head: ResponseHead
        self._parts: deque[Part] = deque()
        self._ahead_bytes = 0
        self._arrived = asyncio.Event()
        self._fault: BaseException | None = None
        self._is_streaming = self._is_complete = False

    def follow(self, relay: StreamedRelay) -> None:
        """Be brought by `relay`, as long as its call has it."""
        self._relay = ref(relay)

    def on_head(self, head: ResponseHead) -> None:
        """Take the head."""
        self._head = head
        if head.framing.end is not BodyEnd.NONE:
            self._is_streaming = True
            self._owner.on_stream(head, self._iterate())

    async def _iterate(self) -> AsyncIterator[bytes]:
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._ahead_bytes -= len(part)
                yield bytes(part)
            if self._fault is not None:
                try:
                    raise self._fault
                finally:  # it names this frame from now on, and so would hold the parts
                    self._fault = None
            if self._is_complete:
                return
            self._arrived.clear()
            if (relay := self._relay()) is not None:
                relay.resume()
            await self._arrived.wait()

    def on_part(self, data: bytes) -> None:
        """Take a part."""
        add_part(self._parts, data)
        self._ahead_bytes += len(data)
        self._arrived.set()
        if self._ahead_bytes > STREAM_AHEAD_BYTES and (relay := self._relay()) is not None:
            relay.pause()

    def on_end(self) -> None:
        """Take the end."""
        if self._is_streaming:
            self._is_complete = True
            self._arrived.set()
        else:
            self._owner.on_answer(self._head, [], 0)

    def on_refusal(self, error: BaseException) -> None:
        """Take the refusal."""
        if self._is_streaming:
            self._fault = error
            self._arrived.set()
        else:
            self._owner.on_refusal(error)
