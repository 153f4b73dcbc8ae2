"""Cuts what a connection brings so that no piece holds the end of one request and the beginning of the next.

The parser says neither where a request begins nor how its first line was written (it takes any number of spaces), so
both are known here: a request ends behind an empty line or, where its length is declared, behind so many bytes. A body
in chunks is followed from size to size, for it may be full of empty lines; what is odd in it is the parser's to refuse.
"""

from __future__ import annotations

import re
from typing import Final

_EMPTY_LINE: Final = b"\r\n\r\n"
_SPACE: Final = 0x20
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]+)(?:;[^\r\n]*)?\r\n")
_SIZE_LINE_BEGUN: Final = re.compile(rb"([0-9A-Fa-f]+)(;[^\r\n]*)?(\r?)")
_LINE_ENDS: Final = re.compile(rb"[\r\n]+")
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*")


class Pieces:
    """One connection's. `body_left_bytes` is what a declared length leaves of the body, None for any other.

    `is_in_chunks`: what comes next is of a body in chunks, and not its last chunk.
    """

    __slots__ = ("_chunk_left_bytes", "_size_line", "_tail", "body_left_bytes", "is_in_chunks", "line")

    def __init__(self) -> None:
        self._tail = b""  # the last bytes, where an empty line may begin in them
        self.line = b""  # the newest request from its first byte, at least until its first line is complete
        self.body_left_bytes: int | None = None
        self.is_in_chunks = False
        self._chunk_left_bytes = 0  # with the line's end behind it
        self._size_line = b""  # a chunk's, as far as it has come and counts

    def begin_body(self, length_bytes: int | None) -> None:
        """A head was read; `length_bytes` as `RequestHead` has it."""
        self.body_left_bytes = length_bytes or None
        self.is_in_chunks = length_bytes is None
        self._chunk_left_bytes, self._size_line = 0, b""

    def end_body(self) -> None:
        """The last byte of a request was read."""
        self.body_left_bytes = None
        self.is_in_chunks = False

    def begin(self, data: bytes) -> int:
        """Return the end of the first piece of `data`, where no request has begun.

        Line ends before a request are one piece, however many they are. Of what the parser skips there, an empty line
        is forgotten once it is whole, and of anything else so much is kept that the request behind it is refused.
        """
        if data[0] > _SPACE and not self.line:  # as most requests begin
            end = data.find(_EMPTY_LINE) + 4
            self._tail = data[-3:] if end < 4 else b""
            end = len(data) if end < 4 else end
            self.line = data[:end]
            return end
        ends = _LINE_ENDS.match(data)
        if ends is None:
            end = self.cut(data)
        else:
            self._tail, end = b"", ends.end()
        self.line = _without_empty_lines(self.line[:2] + data[:end])
        return end

    def cut(self, data: bytes) -> int:
        """Return the end of the first piece of `data`."""
        left = self.body_left_bytes
        if left is not None:
            end = min(left, len(data))
            self.body_left_bytes = left - end
            return end
        if self.is_in_chunks and (end := self._chunks_in(data)):
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

    def _chunks_in(self, data: bytes) -> int:
        """Return how far `data` is chunks before the last one, and lines that are not all there.

        From the last one on, or a size that is none, an empty line is looked for. Of a size's line that is not all
        there only the size is kept, however long its extension is.
        """
        carried, self._size_line = self._size_line, b""
        text = carried + data if carried else data
        end, at = len(text), self._chunk_left_bytes
        while at < end:
            line = _SIZE_LINE.match(text, at)
            if line is not None and (size_bytes := int(line[1], 16)):
                at = line.end() + size_bytes + 2  # and its line's end
                continue
            begun = _SIZE_LINE_BEGUN.fullmatch(text, at) if line is None else None
            if begun is not None:
                self._size_line = b"%x%b%b" % (int(begun[1], 16), b";" if begun[2] else b"", begun[3])
                at = end
            else:
                self.is_in_chunks = False
                self._tail = b"" if at else carried[-3:]
            break
        self._chunk_left_bytes = max(0, at - end)
        return max(0, min(at, end) - len(carried))

    def go_on(self, piece: bytes) -> None:
        """A further piece of a head."""
        if b"\r\n" not in _without_empty_lines(self.line):
            self.line += piece

    def take_line(self) -> bytes:
        """Return the newest request from its first byte, at least its first line, and forget it."""
        line, self.line = self.line, b""
        return line


def is_first_line(read: bytes, method: bytes, target: bytes, version: str) -> bool:
    """Return True if a request was begun with one space between method, target and version, as RFC 9112 3 has it."""
    return _without_empty_lines(read).startswith(b"%b %b HTTP/%b\r\n" % (method, target, version.encode("ascii")))


def _without_empty_lines(text: bytes) -> bytes:
    """Those before a request are allowed (RFC 9112 2.2)."""
    return text[_EMPTY_LINES.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing, too
