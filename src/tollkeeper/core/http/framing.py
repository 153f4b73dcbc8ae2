"""Rules for HTTP/1.1 heads beyond those of the parser (security A-40, A-42).

Where two readers of one message could disagree (about its length, its host, its payment, its path) the message is
refused, never repaired. llhttp refuses bare line feeds, folded lines, both lengths at once and broken chunks; this
module refuses the rest. Pure: reads parsed heads, no bytes of a connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import NAME_REMEMBERED_BYTES, Header, name_rules

VERSIONS: Final = frozenset({"1.0", "1.1"})
# Registered methods of HTTP, without CONNECT and what the parser knows of other protocols (RTSP, ICE). Which of them a
# path takes is the router's to say (405).
METHODS: Final = frozenset(
    b"GET HEAD POST PUT PATCH DELETE OPTIONS TRACE ACL BIND CHECKOUT COPY LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL "
    b"MOVE PROPFIND PROPPATCH QUERY REBIND REPORT SEARCH UNBIND UNLINK UNLOCK NOTIFY PURGE SUBSCRIBE "
    b"UNSUBSCRIBE".split()
)

_ONCE: Final = frozenset({b"content-length", b"content-type", b"expect", b"host", b"transfer-encoding"})
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_BAD_TARGET = re.compile(rb"[^\x21\x22\x24-\x7e]")  # controls, space, "#", non-ASCII
# A backslash, half an escape. In a query both stay as they are: clients of the URL standard send them so.
_BAD_PATH = re.compile(rb"\\|%(?![0-9A-Fa-f]{2})")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class FramingError(Exception):
    """A target's response head that is refused; the message says why."""


class BodyEnd(Enum):
    """Ways in which the body of a response ends."""

    NONE = "there is none"
    LENGTH = "Content-Length"
    CHUNKED = "the last chunk"
    CLOSE = "the end of the connection"


@dataclass(frozen=True, slots=True)
class ResponseFraming:
    """How the body of a response ends. `declared_bytes` is its `Content-Length`, also where no body follows."""

    end: BodyEnd
    declared_bytes: int | None


class _HeaderRule(Enum):
    """How often a header may stand in a request's head."""

    FREE = "any number of times"
    ONCE = "once"
    NEVER = "never in this spelling"


def check_request_head(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> None:
    """Refuse a request head that is ambiguous. Header names are in lower case. Raises INVALID_PARAMETER."""
    _check_request_line(method, target, version)
    seen: set[bytes] = set()
    for name, value in headers:
        standing = _remembered_standing(name) if len(name) <= NAME_REMEMBERED_BYTES else _standing(name)
        if standing is _HeaderRule.FREE:
            continue
        if standing is _HeaderRule.NEVER:
            raise _refused("a header has a name that some servers read as another one, which is the gateway's")
        if name in seen:
            raise _refused(f"the header {name.decode('ascii')} is there twice")
        seen.add(name)
        _check_request_value(name, value, version)
    if b"host" not in seen:
        raise _refused("the header host is missing")
    if b"content-length" in seen and b"transfer-encoding" in seen:
        raise _refused("a body has one length only")


def request_body_bytes(headers: Sequence[Header]) -> int | None:
    """How long the body is that follows a request's head that was checked; None where only its last chunk tells."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


def judge_response_head(method: str, status: int, version: str, headers: Sequence[Header]) -> ResponseFraming:
    """Return how the body of a target's response to `method` ends; informational ones are skipped before.

    Raises FramingError for a head that is refused.
    """
    if version not in VERSIONS:
        raise FramingError("the HTTP version is not supported")
    if not 100 <= status <= 599:
        raise FramingError("the status is not one of HTTP's")
    if status < 200:
        raise FramingError("an informational response is not written as one")
    declared, chunked = _response_lengths(headers)
    if chunked and (version == "1.0" or declared is not None):
        raise FramingError("a body has one length only")
    if method == "HEAD" or status in (204, 304):
        return ResponseFraming(BodyEnd.NONE, declared)
    if chunked:
        return ResponseFraming(BodyEnd.CHUNKED, None)
    return ResponseFraming(BodyEnd.CLOSE if declared is None else BodyEnd.LENGTH, declared)


def _standing(name: bytes) -> _HeaderRule:
    rules = name_rules(name)
    if name != rules.normal:
        return _HeaderRule.NEVER if rules.is_stripped else _HeaderRule.FREE
    decides = name in _ONCE or (rules.is_protected and name != b"cookie")
    return _HeaderRule.ONCE if decides else _HeaderRule.FREE


_remembered_standing = lru_cache(maxsize=4096)(_standing)


def _check_request_line(method: bytes, target: bytes, version: str) -> None:
    if version not in VERSIONS:
        raise _refused("the HTTP version is not supported")
    if method not in METHODS:
        raise _refused("the method is not supported")
    if not target.startswith(b"/"):
        raise _refused("the request target must be a path")
    if _BAD_TARGET.search(target) or _BAD_PATH.search(target.partition(b"?")[0]):
        raise _refused("the request target contains characters that must be percent-encoded")


def _check_request_value(name: bytes, value: bytes, version: str) -> None:
    if name == b"host" and not _HOST.fullmatch(value):
        raise _refused("the header host is not a host")
    if name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
        raise _refused("the transfer encoding is not supported")
    if name == b"content-length" and not _LENGTH.fullmatch(value.strip(b" \t")):
        raise _refused("the header content-length is not a length")


_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


def _response_lengths(headers: Sequence[Header]) -> tuple[int | None, bool]:
    """Declared length, and whether the body is chunked. Raises FramingError."""
    declared: int | None = None
    chunked = False
    for name, value in headers:
        normal = name_rules(name).normal
        if normal in _LENGTHS and name.lower() != normal:
            raise FramingError("the length is spelt in a way that some take for one")
        if normal == b"content-length":
            text = value.strip(b" \t")
            if declared is not None or not _LENGTH.fullmatch(text):
                raise FramingError("the length is unclear")
            declared = int(text)
        elif normal == b"transfer-encoding":
            if chunked or value.strip(b" \t").lower() != b"chunked":
                raise FramingError("the transfer encoding is not supported")
            chunked = True
    return declared, chunked


def _refused(message: str) -> ApiError:
    return ApiError(Code.INVALID_PARAMETER, message, details={"field": "request"})
