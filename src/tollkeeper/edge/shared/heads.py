"""Heads of requests and of responses, as the parser read them and the rules of `core.http.framing` let them through.

Knows no connection.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.framing import (
    METHODS,
    FramingError,
    ResponseFraming,
    judge_request_head,
    judge_response_head,
    refused,
)
from tollkeeper.core.http.heads import ANSWER_RULES, REQUEST_RULES, HeaderError, read_headers


class RequestHead(msgspec.Struct):
    """A checked head, of whose parts nobody changes any; its headers are the caller's secret.

    `sent` are its headers as they came; `header` has each once, its name in lower case; `lines` are those that are
    passed on, as `core.http.heads.read_headers` has them. `content_length` None: a chunked body.
    """

    method: str
    target: bytes
    sent: list[Header]
    header: dict[bytes, bytes]
    lines: list[bytes]
    content_length: int | None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, {self.target!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("target", self.target)]

    @property
    def headers(self) -> list[Header]:
        """All headers, their names in lower case: for ASGI."""
        return [(name.lower(), value.rstrip(b" \t")) for name, value in self.sent]


def read_head(method: bytes, target: bytes, version: str, sent: list[Header]) -> RequestHead:
    """Judge and copy a caller's head, in one pass over its headers. Raises INVALID_PARAMETER."""
    try:
        header, lines = read_headers(sent, REQUEST_RULES)
    except HeaderError as error:
        raise refused(str(error)) from None
    length = judge_request_head(method, target, version, header)
    return RequestHead(METHODS[method], target, sent, header, lines, length)


class ResponseHead(msgspec.Struct):
    """The head of a target's answer, and how the body ends; nobody changes any of its parts. As `RequestHead`."""

    status: int
    sent: list[Header]
    header: dict[bytes, bytes]
    lines: list[bytes]
    framing: ResponseFraming

    @property
    def headers(self) -> list[Header]:
        """All headers, their names in lower case."""
        return [(name.lower(), value.rstrip(b" \t")) for name, value in self.sent]


def read_response_head(method: str, status: int, version: str, sent: list[Header]) -> ResponseHead:
    """Judge and copy a target's head, in one pass over its headers. Raises FramingError."""
    try:
        header, lines = read_headers(sent, ANSWER_RULES)
    except HeaderError as error:
        raise FramingError(str(error)) from None
    return ResponseHead(status, sent, header, lines, judge_response_head(method, status, version, header))


def keeps_alive(version: str, head: ResponseHead) -> bool:
    """Return True if an answer leaves its connection open (RFC 9112 9.3).

    The parser reads HTTP/1.0 otherwise: for it keep-alive beside close is enough, and one in `Proxy-Connection`.
    """
    if version == "1.1":
        return True  # as the parser has it
    options = {option.strip().lower() for option in head.header.get(b"connection", b"").split(b",")}
    return b"keep-alive" in options and b"close" not in options


def promised_seconds(head: ResponseHead) -> int | None:
    """How long a `Keep-Alive` says that its connection is kept."""
    for part in head.header.get(b"keep-alive", b"").split(b","):
        option, _, number = part.strip().partition(b"=")
        if option.lower() == b"timeout" and number.isdigit() and len(number) < 6:
            return int(number)
    return None
