"""Rules for HTTP/1.1 heads beyond those of the parser (security A-40, A-42).

Where two readers of one message could disagree (about its length, its host, its payment, its path) the message is
refused, never repaired. llhttp refuses bare line feeds, folded lines, both lengths at once and broken chunks; this
module refuses the rest. Pure: reads parsed heads, no bytes of a connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from tollkeeper.core.api.errors import ApiError, Code

VERSIONS: Final = frozenset({"1.0", "1.1"})
# Registered methods of HTTP, without CONNECT and what the parser knows of other protocols (RTSP, ICE). Which of them a
# path takes is the router's to say (405).
_METHODS: Final = (
    "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE ACL BIND CHECKOUT COPY LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL "
    "MOVE PROPFIND PROPPATCH QUERY REBIND REPORT SEARCH UNBIND UNLINK UNLOCK NOTIFY PURGE SUBSCRIBE UNSUBSCRIBE"
)
METHODS: Final = {name.encode(): name for name in _METHODS.split()}

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
# Printable, without "#"; in the path no backslash and no half escape. In a query both stay as they are: clients of the
# URL standard send them so.
_TARGET = re.compile(rb"/(?:[\x21\x22\x24\x26-\x3e\x40-\x5b\x5d-\x7e]++|%[0-9A-Fa-f]{2})*+(?:\?[\x21\x22\x24-\x7e]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class FramingError(Exception):
    """A target's response head that is refused; the message says why."""


class BodyEnd(Enum):
    """Ways in which the body of a response ends."""

    NONE = "there is none"
    LENGTH = "Content-Length"
    CHUNKED = "the last chunk"
    CLOSE = "the end of the connection"


class ResponseFraming(msgspec.Struct, frozen=True):
    """How the body of a response ends. `declared_bytes` is its `Content-Length`, also where no body follows."""

    end: BodyEnd
    declared_bytes: int | None


def judge_request_head(method: bytes, target: bytes, version: str, header: Mapping[bytes, bytes]) -> int | None:
    """Refuse a request head that is ambiguous. `header` as `heads.read_headers` has it. Raises INVALID_PARAMETER.

    Returns how long the body is that follows; None where only its last chunk tells.
    """
    if version not in VERSIONS:
        raise refused("the HTTP version is not supported")
    if method not in METHODS:
        raise refused("the method is not supported")
    if not _TARGET.fullmatch(target):
        raise refused("the request target must be a path, without characters that must be percent-encoded")
    try:
        _check_host(header[b"host"])
    except KeyError:
        raise refused("the header host is missing") from None
    length, encoding = header.get(b"content-length"), header.get(b"transfer-encoding")
    if encoding is not None:
        if length is not None:
            raise refused("a body has one length only")
        if encoding.lower() != b"chunked" or version == "1.0":
            raise refused("the transfer encoding is not supported")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise refused("the header content-length is not a length")
    return int(length)


@lru_cache(maxsize=1024)
def _check_host(host: bytes) -> None:
    if not _HOST.fullmatch(host):
        raise refused("the header host is not a host")


def judge_response_head(method: str, status: int, version: str, header: Mapping[bytes, bytes]) -> ResponseFraming:
    """Return how the body of a target's response to `method` ends; informational ones are skipped before.

    Raises FramingError for a head that is refused.
    """
    if version not in VERSIONS:
        raise FramingError("the HTTP version is not supported")
    if not 100 <= status <= 599:
        raise FramingError("the status is not one of HTTP's")
    if status < 200:
        raise FramingError("an informational response is not written as one")
    declared, chunked = _response_lengths(header)
    if chunked and (version == "1.0" or declared is not None):
        raise FramingError("a body has one length only")
    if method == "HEAD" or status in (204, 304):
        return ResponseFraming(BodyEnd.NONE, declared)
    if chunked:
        return ResponseFraming(BodyEnd.CHUNKED, None)
    return ResponseFraming(BodyEnd.CLOSE if declared is None else BodyEnd.LENGTH, declared)


def _response_lengths(header: Mapping[bytes, bytes]) -> tuple[int | None, bool]:
    """Declared length, and whether the body is chunked. Raises FramingError."""
    length, encoding = header.get(b"content-length"), header.get(b"transfer-encoding")
    if encoding is not None and encoding.strip(b" \t").lower() != b"chunked":
        raise FramingError("the transfer encoding is not supported")
    if length is None:
        return None, encoding is not None
    text = length.strip(b" \t")
    if not _LENGTH.fullmatch(text):
        raise FramingError("the length is unclear")
    return int(text), encoding is not None


def refused(message: str) -> ApiError:
    """The refusal of a request head."""
    return ApiError(Code.INVALID_PARAMETER, message, details={"field": "request"})
