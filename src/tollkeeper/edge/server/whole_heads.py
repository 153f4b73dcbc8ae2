"""Heads that come in one piece, with nothing before them and nothing behind: most requests are no more than that.

One parser reads them for all connections: between two such heads it knows nothing. It calls no Python. Whatever is not
plain (a body, an upgrade, a connection that is to end, a header that is there twice, what breaks a rule) is not read
here: the connection's own parser reads it piece by piece, and says what is wrong with it.
"""

from __future__ import annotations

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.heads import RequestHead, judged_head
from tollkeeper.core.limits import HEADERS_MAX, REQUEST_HEAD_SIZE_BYTES

_END: Final = b"\r\n\r\n"
_FIRST: Final = 0x21  # a head begins with no space and no line's end
_KEEPING: Final = frozenset({b"keep-alive", b"Keep-Alive"})


class _Reader:
    """The parser, and what it tells: parts of the target, and headers by their names as they were sent."""

    __slots__ = ("headers", "on_header", "on_url", "parser", "target")

    def __init__(self) -> None:
        self.target: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.on_url = self.target.append
        self.on_header = self.headers.__setitem__
        self.parser = HttpRequestParser(self)


class WholeHeads:
    """The reader of whole heads."""

    def __init__(self) -> None:
        self._reader = _Reader()

    def read(self, data: bytes) -> RequestHead | None:
        """Return the head that `data` is; None where it is anything else, or anything but plain."""
        is_whole = data.endswith(_END) and data.find(_END) + 4 == len(data)
        if not is_whole or data[0] < _FIRST or len(data) > REQUEST_HEAD_SIZE_BYTES:
            return None
        reader = self._reader
        target, headers, parser = reader.target, reader.headers, reader.parser
        target.clear()
        headers.clear()
        try:
            parser.feed_data(data)
            method = parser.get_method()
            if (
                data.startswith(b"%b %b HTTP/1.1\r\n" % (method, target[0]))
                and data.count(b"\r\n") == len(headers) + 2  # each name is there once
                and len(headers) <= HEADERS_MAX
                and b" \r" not in data
                and b"\t\r" not in data
            ):
                head = judged_head(method, target[0], "1.1", (*headers,), [*headers.values()])
                if head.shape.is_plain or _asks_for_nothing(head):
                    return head
        except (HttpParserError, HttpParserUpgrade, ApiError):
            pass
        self._reader = _Reader()  # that one may wait for a body, or for nothing any more
        return None


def _asks_for_nothing(head: RequestHead) -> bool:
    """Return True if what is said of connection and body is what holds anyway."""
    return (
        head.header.get(b"connection", b"keep-alive") in _KEEPING
        and head.content_length == 0
        and b"proxy-connection" not in head.header
        and b"upgrade" not in head.header
        and b"expect" not in head.header
    )


whole_heads: Final = WholeHeads()
