"""Why bytes are refused, and a head without the upgrade that it asks for (security A-40).

Knows no connection.
"""

from __future__ import annotations

from typing import Final

import structlog
from httptools import HttpParserError

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.limits import HEADERS_MAX, REQUEST_HEAD_SIZE_BYTES

_UPGRADE_OPTIONS: Final = frozenset({b"http2-settings", b"upgrade"})
_WITH_OPTIONS: Final = frozenset({b"connection", b"proxy-connection"})  # the parser reads both alike

log = structlog.get_logger("tollkeeper.edge")


def without_upgrade(method: bytes, target: bytes, version: str, headers: list[Header]) -> bytes:
    """The head of these parts as if it asked for no upgrade.

    RFC 9110 7.8 lets a server ignore the request; clients that prefer HTTP/2 ask on every plain connection. `Upgrade`
    itself stays for who must say no; without its option of `Connection` it asks for nothing.
    """
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode("ascii"))]
    for name, value in headers:
        if name in _WITH_OPTIONS:
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in _UPGRADE_OPTIONS)  # noqa: PLW2901 - the same header
        if name != b"http2-settings":
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])


def check_trailer(name: bytes) -> None:
    """Raises: INVALID_PARAMETER for one by which the parser would end the connection, and read nothing that follows."""
    if name.lower() in _WITH_OPTIONS:
        raise malformed("a trailer says how the connection goes on")


def reason_of(error: HttpParserError) -> ApiError:
    """Return why the parser stopped: a callback of ours that refused, a fault in one, or bytes that are not HTTP."""
    cause = error.__context__
    if isinstance(cause, ApiError):
        return cause
    if cause is None or isinstance(cause, HttpParserError):
        return malformed(str(cause or error))
    log.error("request_callback_failed", exc_info=cause)
    return ApiError(Code.INTERNAL_ERROR, "the request could not be read")


def malformed(reason: str) -> ApiError:
    """The refusal of bytes that are not HTTP."""
    return ApiError(Code.INVALID_PARAMETER, f"the request is not valid HTTP: {reason}", details={"field": "request"})


def head_too_large(headers: int = 0) -> ApiError:
    """The refusal of a head over one of the limits; `headers` are those that were taken before the one too many."""
    if headers >= HEADERS_MAX:
        message = "the request has too many headers"
        return ApiError(Code.HEADERS_TOO_LARGE, message, details={"limitHeaders": HEADERS_MAX})
    details = {"limitBytes": REQUEST_HEAD_SIZE_BYTES}
    return ApiError(Code.HEADERS_TOO_LARGE, "the request head is too large", details=details)
