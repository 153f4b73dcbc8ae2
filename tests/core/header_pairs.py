"""Header lines, taken apart again."""

from __future__ import annotations

from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.heads import ANSWER_RULES, REQUEST_RULES, answer_lines, end_to_end, read_headers


def passed_on(headers: list[Header], withheld: frozenset[bytes] = frozenset()) -> list[Header]:
    """What a target is sent of a caller's headers. Raises: HeaderError."""
    header, lines = read_headers(headers, REQUEST_RULES)
    return pairs_of(b"".join(end_to_end(lines, header.get(b"connection", b""), withheld)))


def told(headers: list[Header]) -> tuple[list[Header], bool]:
    """What a caller is sent of a target's headers, and whether a `Date` is among it. Raises: HeaderError."""
    lines, has_date = answer_lines(*read_headers(headers, ANSWER_RULES))
    return pairs_of(b"".join(lines)), has_date


def pairs_of(lines: bytes) -> list[Header]:
    """The headers that stand in these lines, each of which ends as in a head."""
    *whole, rest = lines.split(b"\r\n")
    assert rest == b""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in whole)]
