"""Header lines, taken apart again."""

from __future__ import annotations

from tollkeeper.core.http import heads
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.heads import (
    ANSWER_SHAPES,
    REQUEST_SHAPES,
    BodyEnd,
    ResponseFraming,
    ResponseHead,
    answer_lines,
)


def passed_on(headers: list[Header], withheld: frozenset[bytes] = frozenset()) -> list[Header]:
    """What a target is sent of a caller's headers. Raises: HeaderError."""
    shape = REQUEST_SHAPES[tuple(name for name, _ in headers)]
    values = shape.counted([value for _, value in headers])
    header = shape.header(values)
    return pairs_of(heads.passed_on(shape, values, header.get(b"connection", b""), withheld)[0])


def told(headers: list[Header]) -> tuple[list[Header], bool]:
    """What a caller is sent of a target's headers, and whether a `Date` is among it. Raises: HeaderError."""
    names = tuple(name for name, _ in headers)
    shape = ANSWER_SHAPES[names]
    values = shape.counted([value for _, value in headers])
    header = shape.header(values)
    whole = ResponseFraming(BodyEnd.LENGTH, 0)
    lines, names = answer_lines(ResponseHead(200, names, values, shape, header, whole), values)
    return pairs_of(lines), b"date" in names


def pairs_of(lines: bytes) -> list[Header]:
    """The headers that stand in these lines, each of which ends as in a head."""
    *whole, rest = lines.split(b"\r\n")
    assert rest == b""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in whole)]
