"""Heads that were read and judged before: the same bytes need no second reading (performance).

Reading a head is a function of its bytes, where a connection stands between two messages. A client that keeps its
connection sends the same head again and again, and a target's heads differ by their date only, so parsing, checking and
encoding are done once. Remembered are, in bounded tables, requests that arrived whole and alone, and heads of responses
of which the parser has shown where they end: those whose body has a length, or which have none. What is not found there
is read by the parser; a fault elsewhere can therefore cost time, never correctness. Knows no connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from tollkeeper.core.forwarding import Header
from tollkeeper.core.framing import BodyEnd, ResponseFraming
from tollkeeper.edge.joined_writes import JOINED_SIZE_BYTES

REMEMBERED_MAX: Final = 2048
REMEMBERED_SIZE_BYTES: Final = 4096
REMEMBERED_HEADERS_MAX: Final = 32
_END_OF_HEAD: Final = b"\r\n\r\n"
_END_SIZE_BYTES: Final = 4
_START_SIZE_BYTES: Final = 24  # of a head: its method, and of its path enough to tell most gates apart

Kept = TypeVar("Kept")


class Remembered(dict[bytes, Kept]):
    """A bounded table, the oldest forgotten first."""

    def keep(self, name: bytes, kept: Kept) -> None:
        """Remember `kept`."""
        if len(self) >= REMEMBERED_MAX and name not in self:
            del self[next(iter(self))]
        self[name] = kept


@dataclass(slots=True)
class RequestHead:
    """A checked head. `header` has each header once, names in lower case; nobody changes it.

    `content_length` None: a chunked body. `notes` is the handler's: what he made of this head, which is the same for
    every request with it. `may_be_ready`: he may have its answer ready (`CallHandler.at_once`). `is_again`: he
    makes the calls with it himself (`CallHandler.again`).
    """

    method: str
    target: bytes
    headers: list[Header] = field(repr=False)
    header: dict[bytes, bytes] = field(repr=False)
    content_length: int | None
    notes: Any = field(default=None, repr=False)
    may_be_ready: bool = False
    is_again: bool = False


def read_head(method: bytes, target: bytes, headers: list[Header], body_bytes: int | None) -> RequestHead:
    """The head in these parts, which `check_request_head` has let through."""
    return RequestHead(method.decode("ascii"), target, headers, dict(headers), body_bytes)


class RememberedHeads:
    """Heads by their bytes, the oldest forgotten first. One for all connections of a listener."""

    def __init__(self) -> None:
        self._alone: Remembered[RequestHead] = Remembered()
        self._before_body: Remembered[RequestHead] = Remembered()
        self._starts: Remembered[None] = Remembered()  # of the heads before bodies
        self.get = self._alone.get  # the head of these bytes, where they are one whole request without a body

    def with_body(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Head and body of these bytes where the head is known and they are one whole request.

        What begins as no such head does, as a request that is no call, is not searched for the end of its head.
        """
        if data[:_START_SIZE_BYTES] not in self._starts:
            return None
        size_bytes = data.find(_END_OF_HEAD) + _END_SIZE_BYTES
        head = self._before_body.get(data[:size_bytes])
        return (head, data[size_bytes:]) if head is not None and head.content_length == len(data) - size_bytes else None

    def remember(self, data: bytes, head: RequestHead) -> None:
        """`data` is the whole request whose head this is; nothing followed it."""
        size_bytes = data.find(_END_OF_HEAD) + _END_SIZE_BYTES
        is_large = size_bytes > REMEMBERED_SIZE_BYTES or len(head.headers) > REMEMBERED_HEADERS_MAX
        if is_large or head.content_length != len(data) - size_bytes:
            return
        if head.content_length:
            self._before_body.keep(data[:size_bytes], head)
            self._starts.keep(data[:_START_SIZE_BYTES], None)
        else:
            self._alone.keep(data, head)


class ResponseHead(msgspec.Struct):
    """Status and headers as the target sent them, and how the body ends; nobody changes them.

    `notes` is the caller's: what he made of this head, which is the same for every response with it. `is_joinable`: its
    responses have bodies of one length, short enough to be written together with a head.
    """

    status: int
    headers: list[Header]
    framing: ResponseFraming
    notes: Any = None
    is_joinable: bool = False


def response_head(status: int, headers: list[Header], framing: ResponseFraming) -> ResponseHead:
    """The head that a target sent."""
    is_short = framing.end is BodyEnd.LENGTH and (framing.declared_bytes or 0) <= JOINED_SIZE_BYTES
    return ResponseHead(status, headers, framing, is_joinable=is_short)


class AnsweredHead(msgspec.Struct):
    """A target's head that was judged, of a response to any method but HEAD behind which its connection may be kept.

    `keep_alive_seconds` is what its `Keep-Alive` promises; `start` are its bytes, which are `start_bytes`, and
    `whole_bytes` is how long it is with its body.
    """

    head: ResponseHead
    keep_alive_seconds: int | None
    start: bytes
    start_bytes: int
    whole_bytes: int


class RememberedAnswers:
    """Targets' heads by their bytes, the oldest forgotten first. One for all connections to targets."""

    def __init__(self) -> None:
        self._heads: Remembered[AnsweredHead] = Remembered()
        self.latest: AnsweredHead | None = None  # which the next one mostly is again

    def of(self, data: bytes) -> AnsweredHead | None:
        """The head of these bytes where it is known and they are one response, or how it begins."""
        head = self._heads.get(data[: data.find(_END_OF_HEAD) + _END_SIZE_BYTES])
        if head is None:
            return None
        self.latest = head
        return head if len(data) <= head.whole_bytes else None

    def remember(self, data: bytes, head: ResponseHead, left_bytes: int, keep_alive_seconds: int | None) -> None:
        """`data` is the response whose head this is, but for `left_bytes` of its body; nothing followed it.

        The parser has read it: what it took for the body shows where it saw the head's end.
        """
        framing = head.framing
        body_bytes = framing.declared_bytes if framing.end is BodyEnd.LENGTH else 0
        size_bytes = data.find(_END_OF_HEAD) + _END_SIZE_BYTES
        is_large = size_bytes > REMEMBERED_SIZE_BYTES or len(head.headers) > REMEMBERED_HEADERS_MAX
        if body_bytes is None or is_large or len(data) + left_bytes != size_bytes + body_bytes:
            return
        start = data[:size_bytes]
        known = AnsweredHead(head, keep_alive_seconds, start, size_bytes, size_bytes + body_bytes)
        self._heads.keep(start, known)


def keeps_alive(version: str, headers: list[Header]) -> bool:
    """Whether an answer leaves its connection open (RFC 9112 9.3).

    Of HTTP/1.0 the parser reads it otherwise: keep-alive beside close is enough, and one in `Proxy-Connection`.
    """
    if version == "1.1":
        return True  # as the parser has it
    options = {
        option.strip().lower() for name, value in headers if name == b"connection" for option in value.split(b",")
    }
    return b"keep-alive" in options and b"close" not in options


def promised_seconds(headers: list[Header]) -> int | None:
    """How long a `Keep-Alive` among them says that its connection is kept."""
    for name, value in headers:
        if name == b"keep-alive":
            for part in value.split(b","):
                option, _, number = part.strip().partition(b"=")
                if option.lower() == b"timeout" and number.isdigit() and len(number) < 6:
                    return int(number)
    return None
