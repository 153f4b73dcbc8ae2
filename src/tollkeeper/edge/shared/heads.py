"""Heads of requests and of responses, as the parser read them and the rules of `core.http.framing` let them through.

Knows no connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.framing import ResponseFraming


@dataclass(slots=True)
class RequestHead:
    """A checked head. `header` has each header once, names in lower case; nobody changes it.

    `content_length` None: a chunked body.
    """

    method: str
    target: bytes
    headers: list[Header] = field(repr=False)
    header: dict[bytes, bytes] = field(repr=False)
    content_length: int | None


def read_head(method: bytes, target: bytes, headers: list[Header], body_bytes: int | None) -> RequestHead:
    """The head in these parts, which `check_request_head` has let through."""
    return RequestHead(method.decode("ascii"), target, headers, dict(headers), body_bytes)


@dataclass(slots=True)
class ResponseHead:
    """Status and headers as the target sent them, and how the body ends; nobody changes them."""

    status: int
    headers: list[Header]
    framing: ResponseFraming


def keeps_alive(version: str, headers: list[Header]) -> bool:
    """Return True if an answer leaves its connection open (RFC 9112 9.3).

    The parser reads HTTP/1.0 otherwise: for it keep-alive beside close is enough, and one in `Proxy-Connection`.
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
