"""Header lines, taken apart again."""

from __future__ import annotations

from tollkeeper.core.http.forwarding import Header


def pairs_of(lines: bytes) -> list[Header]:
    """The headers that stand in these lines, each of which ends as in a head."""
    *whole, rest = lines.split(b"\r\n")
    assert rest == b""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in whole)]
