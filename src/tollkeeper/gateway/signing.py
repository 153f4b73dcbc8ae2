"""Signing forwarded requests: reads a body that is to be signed before it is forwarded (contract 4.7).

Only calls of gates with `headerAuthMode: hmac` come here. What is signed, and how, is `core.target_signing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tollkeeper.core.limits import SIGNED_BODY_SIZE_BYTES
from tollkeeper.edge.parts import Part, add_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.edge.call import BodySink, BodySource

Ready: TypeAlias = "Callable[[bytes | None, bytes | BodySource], None]"


class BodyAhead:
    """Reads a body until it is whole, or until it is too long to be signed; then it is the source of what it read.

    `ready` is called once: with the body twice, or with None and this object.
    """

    __slots__ = ("_has_ended", "_is_told", "_parts", "_ready", "_sink", "_size_bytes", "_source")

    def __init__(self, source: BodySource, ready: Ready) -> None:
        self._source = source
        self._ready = ready
        self._parts: list[Part] = []
        self._size_bytes = 0
        self._sink: BodySink | None = None
        self._is_told = self._has_ended = False

    def start(self, declared_bytes: int | None) -> None:
        """Begin to read; a body that says that it is too long is not read ahead at all."""
        if declared_bytes is not None and declared_bytes > SIGNED_BODY_SIZE_BYTES:
            self._is_told = True
            self._ready(None, self._source)
        else:
            self._source.body_to(self)

    def on_request_body(self, data: bytes) -> None:
        """See `call.BodySink`."""
        if self._sink is not None:
            self._sink.on_request_body(data)
            return
        add_part(self._parts, data)
        self._size_bytes += len(data)
        if self._size_bytes > SIGNED_BODY_SIZE_BYTES and not self._is_told:
            self._is_told = True
            self._source.pause_body()
            self._ready(None, self)

    def on_request_end(self) -> None:
        """See `call.BodySink`."""
        self._has_ended = True
        if self._sink is not None:
            self._sink.on_request_end()
        elif not self._is_told:
            self._is_told = True
            body = b"".join(self._parts)
            self._ready(body, body)

    def body_to(self, sink: BodySink) -> None:
        """See `call.BodySource`."""
        self._sink = sink
        parts, self._parts = self._parts, []
        for part in parts:
            sink.on_request_body(bytes(part))
        if self._has_ended:
            sink.on_request_end()
        else:
            self._source.resume_body()

    def pause_body(self) -> None:
        """See `call.BodySource`."""
        self._source.pause_body()

    def resume_body(self) -> None:
        """See `call.BodySource`."""
        self._source.resume_body()
