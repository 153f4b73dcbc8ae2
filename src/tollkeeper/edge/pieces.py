"""Cuts what a connection brings so that no piece holds the end of one request and the beginning of the next.

The parser says neither where a request begins nor how its first line was written (it takes any number of spaces), so
both are known here: a request ends behind an empty line or, where its length is declared, behind so many bytes.
"""

from __future__ import annotations

from typing import Final

_EMPTY_LINE: Final = b"\r\n\r\n"


class Pieces:
    """One connection's. `body_left_bytes` is what a declared length leaves of the body, None for any other."""

    __slots__ = ("_line", "_tail", "body_left_bytes")

    def __init__(self) -> None:
        self._tail = b""  # the last bytes, where an empty line may begin in them
        self._line = b""  # the newest request from its first byte, at least until its first line is complete
        self.body_left_bytes: int | None = None

    def cut(self, data: bytes) -> int:
        """Where the first piece of `data` ends."""
        left = self.body_left_bytes
        if left is not None:
            end = min(left, len(data))
            self.body_left_bytes = left - end
            return end
        tail = self._tail
        if tail:
            at = (tail + data[:3]).find(_EMPTY_LINE)
            if at >= 0:
                self._tail = b""
                return at + 4 - len(tail)
        at = data.find(_EMPTY_LINE)
        if at >= 0:
            self._tail = b""
            return at + 4
        self._tail = (tail + data[-3:])[-3:]
        return len(data)

    def begin(self, piece: bytes) -> None:
        """A piece between two requests: what stands before the next one, or its first bytes.

        Of what the parser skips there, an empty line is forgotten once it is whole, and of anything else so much is
        kept that the request behind it is refused.
        """
        self._line = _without_empty_lines(self._line)[:2] + piece

    def go_on(self, piece: bytes) -> None:
        """A further piece of a head."""
        if b"\r\n" not in _without_empty_lines(self._line):
            self._line += piece

    def is_first_line(self, method: bytes, target: bytes, version: str) -> bool:
        """Was the newest request's first line written with one space between its parts, as RFC 9112 3 has it?

        Asked once for each request; its bytes are forgotten.
        """
        line = b"%b %b HTTP/%b\r\n" % (method, target, version.encode("ascii"))
        read, self._line = self._line, b""
        return read.startswith(line) or _without_empty_lines(read).startswith(line)


def _without_empty_lines(text: bytes) -> bytes:
    while text.startswith(b"\r\n"):  # allowed before a request (RFC 9112 2.2)
        text = text[2:]
    return text
