"""Messages that come in one piece, with nothing before them and nothing behind: most are no more than that.

One parser for each direction reads them for all connections: between two of them it knows nothing. It calls no Python.
Whatever is not plain (a request's body, an upgrade, a connection that is to end, a header that is there twice, an
answer whose length is not told, what breaks a rule) is not read here: the connection's own parser reads it piece by
piece, and says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.heads import (
    BodyEnd,
    FramingError,
    RequestHead,
    ResponseHead,
    judged_head,
    judged_response_head,
)
from tollkeeper.core.limits import HEADERS_MAX, REQUEST_HEAD_SIZE_BYTES

_END: Final = b"\r\n\r\n"
_MESSAGE: Final = "a message"
_FIRST: Final = 0x21  # a head begins with no space and no line's end
_KEEPING: Final = frozenset({b"keep-alive", b"Keep-Alive"})
_TURNING: Final = frozenset({b"expect", b"proxy-connection", b"upgrade"})


class _Told:
    """Record of one message: parts of its target, headers by their names as they were sent, and its end."""

    __slots__ = ("headers", "left", "on_header", "on_message_complete", "on_url", "target")

    def __init__(self) -> None:
        self.target: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.left = {_MESSAGE}  # empty once it is complete
        self.on_url = self.target.append
        self.on_header = self.headers.__setitem__
        self.on_message_complete: Callable[[], None] = self.left.clear


class WholeRequests:
    """The reader of requests that are no more than a head."""

    def __init__(self) -> None:
        self._told = _Told()
        self._parser = HttpRequestParser(self._told)

    def read(self, data: bytes) -> RequestHead | None:
        """Return the head that `data` is; None where it is anything else, or anything but plain."""
        if not data.endswith(_END) or data[0] < _FIRST or len(data) > REQUEST_HEAD_SIZE_BYTES:
            return None
        parser, target, headers = self._parser, self._told.target, self._told.headers
        try:
            parser.feed_data(data)
            method = parser.get_method()
            if (
                len(target) == 1
                and data.startswith(b"%b %b HTTP/1.1\r\n" % (method, target[0]))
                and data.count(b"\n") == len(headers) + 2  # each name is there once
                and len(headers) <= HEADERS_MAX
            ):
                head = judged_head(method, target[0], "1.1", (*headers,), [*headers.values()])
                target.clear()
                headers.clear()  # nothing of a caller's is kept
                if head.shape.is_plain or (head.content_length == 0 and _keeps_connection(head.header)):
                    return head
        except (HttpParserError, HttpParserUpgrade, ApiError):
            pass
        self.__init__()  # type: ignore[misc]  # that parser may wait for a body, or for nothing any more
        return None


class WholeAnswers:
    """The reader of answers whose body has a length, and is there."""

    def __init__(self) -> None:
        self._told = _Told()
        self._parser = HttpResponseParser(self._told)

    def read(self, data: bytes, method: str) -> tuple[ResponseHead, bytes] | None:
        """Return head and body that `data` is; None where it is anything else, or anything but plain."""
        end = data.find(_END) + 4
        is_answer = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1")
        if not is_answer or not 4 < end <= REQUEST_HEAD_SIZE_BYTES or method == "HEAD":
            return None
        told, parser, headers = self._told, self._parser, self._told.headers
        told.left.add(_MESSAGE)
        try:
            parser.feed_data(data)
            if not told.left and data.count(b"\n", 0, end) == len(headers) + 2 and len(headers) <= HEADERS_MAX:
                status = parser.get_status_code()
                head = judged_response_head(method, status, "1.1", (*headers,), [*headers.values()])
                headers.clear()
                framing = head.framing
                is_whole = framing.end is BodyEnd.LENGTH and framing.declared_bytes == len(data) - end
                if is_whole and _keeps_connection(head.header):
                    return head, data[end:]
        except (HttpParserError, HttpParserUpgrade, FramingError):
            pass
        self.__init__()  # type: ignore[misc]  # as above
        return None


def _keeps_connection(header: Mapping[bytes, bytes]) -> bool:
    """Return True if nothing is said of the connection but what holds anyway."""
    return header.get(b"connection", b"keep-alive") in _KEEPING and _TURNING.isdisjoint(header)


whole_requests: Final = WholeRequests()
whole_answers: Final = WholeAnswers()
