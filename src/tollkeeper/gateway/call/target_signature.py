"""Signing forwarded requests: reads a body that is to be signed before it is forwarded (contract 4.7).

Only calls of gates with `headerAuthMode: hmac` come here. What is signed, and how, is `core.paygates.target_signing`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.limits import SIGNED_BODY_SIZE_BYTES
from tollkeeper.edge.shared.body_chunks import Part, add_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.shares import Shares
    from tollkeeper.edge.server.call import BodySink, BodySource
    from tollkeeper.edge.target.forwarder import Forwarder


Ready: TypeAlias = "Callable[[bytes | None, bytes | BodySource], None]"


AHEAD_SIZE_BYTES: Final = 384 * 1024 * 1024  # of all bodies that are read to be signed, until their calls end


class BodyOwner(Protocol):
    """The owner of a call whose body is read ahead."""

    def on_refusal(self, error: BaseException) -> None:
        """The body does not come, and the call ends so."""


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
        "_shares",
        "_sink",
        "_size_bytes",
        "_source",
        "_taken_bytes",
        "_tenant",
    )

    def __init__(
        self, source: BodySource, owner: BodyOwner, ready: Ready, forwarder: Forwarder, shares: Shares, tenant: str
    ) -> None:
        """`shares`: what the bodies of all tenants may take."""
        self._source = source
        self._owner = owner
        self._ready = ready
        self._forwarder = forwarder
        self._shares = shares
        self._tenant = tenant
        self._parts: list[Part] = []
        self._size_bytes = self._taken_bytes = 0
        self._sink: BodySink | None = None
        self._is_told = self._has_ended = self._is_paused = False

    def start(self, declared_bytes: int | None) -> None:
        """Begin to read; a body that says that it is too long is not read ahead at all."""
        if declared_bytes is not None and declared_bytes > SIGNED_BODY_SIZE_BYTES:
            self._tell(None, self._source)
        else:
            self._forwarder.deadlines.set(self, inf, self._forwarder.loop)
            self._source.body_to(self)

    def close(self) -> None:
        """Tell nobody anything more, and hold nothing: this and its source name each other, in a circle."""
        self._say_no_more()
        self._shares.give_back(self._tenant, self._taken_bytes)
        self._size_bytes = self._taken_bytes = 0
        self._parts = []

    def refuse(self, error: BaseException) -> None:
        """Tell the owner why it is not ready, and nobody anything more."""
        if not self._is_told:
            self.close()
            self._owner.on_refusal(error)

    def time_out(self) -> None:
        """Do nothing: a caller who is too slow is closed (`edge.server.timeouts`)."""

    def give_up(self) -> None:
        """Give the body up."""
        self.refuse(ApiError(Code.UNAVAILABLE, "the gateway stopped before the request had come"))

    def _tell(self, signed: bytes | None, body: bytes | BodySource) -> None:
        self._say_no_more()
        self._ready(signed, body)

    def _say_no_more(self) -> None:
        self._is_told = True
        self._forwarder.deadlines.clear(self)

    def on_request_body(self, data: bytes) -> None:
        """Take a part."""
        if self._sink is not None:
            self._sink.on_request_body(data)
        elif self._is_told:
            if self._size_bytes:  # a little still comes where it is too long and its target is connected to
                self._add(data)
        elif self._shares.take(self._tenant, len(data)):
            self._taken_bytes += len(data)
            self._add(data)
            if self._size_bytes > SIGNED_BODY_SIZE_BYTES:
                self._source.pause_body()
                self._tell(None, self)
        else:
            self.refuse(self._forwarder.crowding.refusal("requests to be signed", self._tenant))

    def _add(self, data: bytes) -> None:
        add_part(self._parts, data)
        self._size_bytes += len(data)

    def on_request_end(self) -> None:
        """Take the end."""
        self._has_ended = True
        if self._sink is not None:
            self._sink.on_request_end()
        elif not self._is_told:
            parts, self._parts = self._parts, []
            body = b"".join(parts)
            self._tell(body, body)

    def body_to(self, sink: BodySink) -> None:
        """Hand the body to `sink`."""
        self._sink = sink
        parts, self._parts = self._parts, []
        for part in parts:
            sink.on_request_body(bytes(part))
        if self._has_ended:
            sink.on_request_end()
        elif not self._is_paused:  # by a target that does not take as much at once
            self._source.resume_body()

    def pause_body(self) -> None:
        """Pause the reading."""
        self._is_paused = True
        self._source.pause_body()

    def resume_body(self) -> None:
        """Resume the reading."""
        self._is_paused = False
        self._source.resume_body()
