"""Whoever sends a body in chunks of two bytes makes nobody hold more than about its bytes (security A-42)."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from tollkeeper.core.http.heads import read_head
from tollkeeper.core.shares import Shares
from tollkeeper.edge.server.call import BodySink, Connection, InboundCall
from tollkeeper.edge.shared.deadlines import Deadlines
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.spool import Space, Spool, SpoolRoom
from tollkeeper.gateway.call.stream import PartsOwner, StreamedParts
from tollkeeper.gateway.call.target_signature import BodyAhead, BodyOwner

SIZE_BYTES = 60_000


class Collected:
    """Gives the body that it is, and takes one."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def body_to(self, sink: BodySink) -> None:
        del sink

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def on_request_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_request_end(self) -> None: ...

    def refuse(self, error: Exception) -> None: ...


def of_call() -> Callable[[bytes], None]:
    """A request's body that nobody has asked for yet."""
    head = read_head(b"POST", b"/a", "1.1", [(b"host", b"127.0.0.1"), (b"transfer-encoding", b"chunked")])
    return InboundCall.accepted(cast("Connection", None), cast("object", None), head, None).feed  # type: ignore[arg-type] # not asked


def of_spool() -> Callable[[bytes], None]:
    """A target's answer that is held."""
    return Spool(Space(SpoolRoom(), "owner"), SIZE_BYTES * 2, pause=print, resume=print, on_fault=print).append


def of_stream() -> Callable[[bytes], None]:
    """A target's answer that its caller does not read as fast as it comes."""
    return StreamedParts(cast("PartsOwner", None)).on_part


def of_signing() -> Callable[[bytes], None]:
    """A body that is read ahead to be signed."""
    return body_ahead().on_request_body


def body_ahead() -> BodyAhead:
    """One that was not started: it has no deadline."""
    forwarder = cast("Forwarder", SimpleNamespace(deadlines=Deadlines()))
    owner, shares = cast("BodyOwner", None), Shares(SIZE_BYTES * 4)
    return BodyAhead(Collected(), owner, lambda _signed, _body: None, forwarder, shares, "owner")


@pytest.mark.parametrize("made", [of_call, of_spool, of_stream, of_signing])
def test_tiny_parts_are_held_in_about_as_much_memory_as_they_have_bytes(
    made: Callable[[], Callable[[bytes], None]],
) -> None:
    take = made()
    tiny = itertools.islice((b"%02d" % (number % 100) for number in itertools.count()), SIZE_BYTES // 2)
    tracemalloc.start()
    try:
        for part in tiny:
            take(part)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * SIZE_BYTES


def test_parts_of_any_size_come_out_as_they_went_in() -> None:
    signing, collected = body_ahead(), Collected()
    parts = [bytes([size % 251]) * size for size in (1, 2, 3000, 1, 1023, 1024, 5, 5, 4096, 0, 7)]
    for part in parts:
        signing.on_request_body(part)
    signing.body_to(collected)
    assert b"".join(collected.parts) == b"".join(parts)
    assert {type(part) for part in collected.parts} == {bytes}
