"""Signing forwarded requests: reads a body that is to be signed before it is forwarded (contract 4.7).

Only calls of gates with `headerAuthMode: hmac` come here. What is signed, and how, is `core.target_signing`.
"""

from __future__ import annotations

import time
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.limits import SIGNED_BODY_SIZE_BYTES
from tollkeeper.edge.parts import Part, add_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.addresses import TargetUrl
    from tollkeeper.edge.call import BodySink, BodySource
    from tollkeeper.edge.forwarding import Forwarder


Ready: TypeAlias = "Callable[[bytes | None, bytes | BodySource], None]"


AHEAD_SIZE_BYTES: Final = 256 * 1024 * 1024
_SLOW_SECONDS: Final = 5.0


class BodyOwner(Protocol):
    """Whose call it is."""

    def on_refusal(self, error: BaseException) -> None:
        """The body does not come, and the call ends so."""


class AheadRoom:
    """What the bodies of all calls may take that are read to be signed, until their calls end.

    No target's have more than is left to all others (decision 0062): one that hangs holds up its own callers only.
    """

    def __init__(self) -> None:
        self._left_bytes = AHEAD_SIZE_BYTES
        self._held_bytes: Counter[str] = Counter()  # by neighbourhood
        self._coming: dict[BodyAhead, float] = {}  # those that are not whole yet, by when they began; the oldest first

    def begin(self, body: BodyAhead) -> None:
        """`body` is coming."""
        self._coming[body] = time.monotonic()

    def has_come(self, body: BodyAhead) -> None:
        """As much of `body` as is read ahead is there, or no more of it will be."""
        self._coming.pop(body, None)

    def take(self, body: BodyAhead, size_bytes: int) -> bool:
        """Take so much more for `body`; where there is no room, those who are slower give way; was there any?"""
        while self._held_bytes[body.near] + size_bytes > self._left_bytes:
            slower = self._slower_than(body)
            if slower is None:
                return False
            slower.refuse(crowded())
        self.hold(body, size_bytes)
        return True

    def _slower_than(self, body: BodyAhead) -> BodyAhead | None:
        """Who gives way to `body`; nobody whose target has less than its own."""
        now, own_bytes = time.monotonic(), self._held_bytes[body.near]
        for other, began_seconds in self._coming.items():
            if other is body or now - began_seconds < _SLOW_SECONDS:
                break
            if self._held_bytes[other.near] >= own_bytes:
                return other
        return None

    def hold(self, body: BodyAhead, size_bytes: int) -> None:
        """Take so much more for `body` whether there is room or not; less than nothing is given back."""
        self._left_bytes -= size_bytes
        self._held_bytes[body.near] += size_bytes
        if not self._held_bytes[body.near]:
            del self._held_bytes[body.near]


def crowded() -> ApiError:
    """503 for a body that finds no room; what was charged is given back."""
    return ApiError(Code.UNAVAILABLE, "too many requests are being read: send the same request again")


class BodyAhead:
    """Reads a body until it is whole, or until it is too long to be signed; then it is the source of what it read.

    `ready` is called once: with the body twice, or with None and what gives it (this object, or the source where
    nothing was read of it); or `owner` is told why not, unless this is closed first. Until then it is among the
    forwarder's calls that give up at a stop (`deadlines.Bound`).
    """

    __slots__ = (
        "_forwarder",
        "_has_ended",
        "_is_paused",
        "_is_told",
        "_owner",
        "_parts",
        "_ready",
        "_room",
        "_sink",
        "_size_bytes",
        "_source",
        "near",
    )

    def __init__(
        self, source: BodySource, owner: BodyOwner, ready: Ready, forwarder: Forwarder, room: AheadRoom
    ) -> None:
        self._source = source
        self._owner = owner
        self._ready = ready
        self._forwarder = forwarder
        self._room = room
        self._parts: list[Part] = []
        self._size_bytes = 0
        self.near = ""  # its target's neighbourhood
        self._sink: BodySink | None = None
        self._is_told = self._has_ended = self._is_paused = False

    def start(self, declared_bytes: int | None, target: TargetUrl | None) -> None:
        """Begin to read what goes to `target`; a body that says that it is too long is not read ahead at all."""
        if declared_bytes is not None and declared_bytes > SIGNED_BODY_SIZE_BYTES:
            self._tell(None, self._source)
        else:
            if target is not None:
                self.near = self._forwarder.near(target)
            self._room.begin(self)
            loop = self._forwarder.loop
            self._forwarder.deadlines.set(self, inf, loop)
            self._source.body_to(self)

    def close(self) -> None:
        """Tell nobody anything more, and hold nothing: this and its source name each other, in a circle."""
        self._say_no_more()
        self._room.hold(self, -self._size_bytes)
        self._size_bytes = 0
        self._parts = []

    def refuse(self, error: BaseException) -> None:
        """Tell the owner why it is not ready, and nobody anything more."""
        if not self._is_told:
            self.close()
            self._owner.on_refusal(error)

    def time_out(self) -> None:
        """See `deadlines.Bound`: never, for a caller who is too slow is closed (`edge.patience`)."""

    def give_up(self) -> None:
        """See `deadlines.Bound`."""
        self.refuse(ApiError(Code.UNAVAILABLE, "the gateway stopped before the request had come"))

    def _tell(self, signed: bytes | None, body: bytes | BodySource) -> None:
        self._say_no_more()
        self._ready(signed, body)

    def _say_no_more(self) -> None:
        self._is_told = True
        self._forwarder.deadlines.clear(self)
        self._room.has_come(self)

    def on_request_body(self, data: bytes) -> None:
        """See `call.BodySink`."""
        if self._sink is not None:
            self._sink.on_request_body(data)
        elif self._is_told:
            if self._size_bytes:  # a little still comes where it is too long and its target is connected to
                self._room.hold(self, len(data))
                self._add(data)
        elif self._room.take(self, len(data)):
            self._add(data)
            if self._size_bytes > SIGNED_BODY_SIZE_BYTES:
                self._source.pause_body()
                self._tell(None, self)
        else:
            self.refuse(crowded())

    def _add(self, data: bytes) -> None:
        add_part(self._parts, data)
        self._size_bytes += len(data)

    def on_request_end(self) -> None:
        """See `call.BodySink`."""
        self._has_ended = True
        if self._sink is not None:
            self._sink.on_request_end()
        elif not self._is_told:
            parts, self._parts = self._parts, []
            body = b"".join(parts)
            self._tell(body, body)

    def body_to(self, sink: BodySink) -> None:
        """See `call.BodySource`."""
        self._sink = sink
        parts, self._parts = self._parts, []
        for part in parts:
            sink.on_request_body(bytes(part))
        if self._has_ended:
            sink.on_request_end()
        elif not self._is_paused:  # by a target that does not take as much at once
            self._source.resume_body()

    def pause_body(self) -> None:
        """See `call.BodySource`."""
        self._is_paused = True
        self._source.pause_body()

    def resume_body(self) -> None:
        """See `call.BodySource`."""
        self._is_paused = False
        self._source.resume_body()
