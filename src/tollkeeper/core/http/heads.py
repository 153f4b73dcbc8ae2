"""Heads of requests and of responses: one loop over the headers, then the rules beyond those of the parser.

The loop judges, notes and copies each header, for callers' heads and targets' alike. A rule is found by the name as it
was sent, and made once for each spelling, so that no pass goes by the head's bytes. Where two readers of one message
could disagree (about its length, its host, its payment, its path) the message is refused, never repaired (security
A-40, A-42): llhttp refuses bare line feeds, folded lines, both lengths at once and broken chunks, `judge_request_head`
and `judge_response_head` the rest. Pure: the parser has cut the head into pairs, and let no value pass that could break
out of its line.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import NAME_REMEMBERED_BYTES, Header, guards, name_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_NAMES_MAX: Final = 4096  # callers invent names
_LINE_END: Final = b"\r\n"
_ONCE: Final = frozenset({b"content-length", b"content-type", b"expect", b"host", b"transfer-encoding"})
_NAMES_NOTHING: Final = frozenset({b"", b"close", b"keep-alive"})  # of `Connection`: no other header
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
_LISTS: Final = frozenset({b"connection", b"upgrade", b"x-forwarded-for"})  # noted with all of their values
_LISTS_OF_ANSWERS: Final = frozenset({b"connection", b"content-type", b"keep-alive"})
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


class HeaderError(Exception):
    """A header that is there twice, or never may be there; the message says which it is."""


class HeaderRule:
    """The rule for a header of one spelling, which is noted under `name`.

    `start` begins its line where it `is_passed_on`. One that `is_free` may be there any number of times, and its last
    value is noted. Of the others one `is_never` there in this spelling, one `is_once`, and of any other the values are
    noted as one list.
    """

    __slots__ = ("is_free", "is_never", "is_once", "is_passed_on", "name", "start")

    def __init__(
        self,
        name: bytes,
        line_name: bytes,
        *,
        is_passed_on: bool,
        is_never: bool = False,
        is_once: bool = False,
        is_list: bool = False,
    ) -> None:
        self.name = name
        self.start = line_name + b": "
        self.is_passed_on = is_passed_on
        self.is_never, self.is_once = is_never, is_once
        self.is_free = not (is_never or is_once or is_list)


class HeaderRules(dict[bytes, HeaderRule]):
    """The rules by name, as names are sent."""

    def __init__(self, judge: Callable[[bytes], HeaderRule]) -> None:
        super().__init__()
        self._judge = judge

    def __missing__(self, name: bytes) -> HeaderRule:
        rule = self._judge(name)
        if len(name) <= NAME_REMEMBERED_BYTES:
            if len(self) >= _NAMES_MAX:
                self.clear()
            self[name] = rule
        return rule


def read_headers(sent: Iterable[Header], rules: HeaderRules) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return each header once by its name in lower case, and the lines that are passed on, in three parts each.

    What stands behind a value is no part of it (RFC 9110 5.5); what stands before it the parser leaves out. By a
    transfer encoding as it came goes the parser, and whoever judges it as well. Raises HeaderError.
    """
    header: dict[bytes, bytes] = {}
    lines: list[bytes] = []
    for name, value in sent:
        rule = rules[name]
        if rule.is_free:
            value = value.rstrip(b" \t")  # noqa: PLW2901 - the same one
            header[rule.name] = value
        else:
            value = _decisive(rule, value, header)  # noqa: PLW2901 - the same one
        if rule.is_passed_on:
            lines += rule.start, value, _LINE_END
    return header, lines


def _decisive(rule: HeaderRule, value: bytes, header: dict[bytes, bytes]) -> bytes:
    """Note what more hangs on than on others; returns its value."""
    key = rule.name
    if rule.is_never:
        raise HeaderError("a header has a name that some read as another one, by which much is decided")
    if key != b"transfer-encoding":
        value = value.rstrip(b" \t")
    if key not in header:
        header[key] = value
    elif rule.is_once:
        raise HeaderError(f"the header {key.decode('ascii')} is there twice")
    else:
        header[key] += b", " + value
    return value


def _request_rule(name: bytes) -> HeaderRule:
    rules, lower = name_rules(name), name.lower()
    if not rules.is_token:
        raise HeaderError("a header has a name that is none")
    if lower != rules.normal:
        return HeaderRule(lower, lower, is_passed_on=not rules.is_stripped, is_never=rules.is_stripped)
    is_once = lower in _ONCE or (rules.is_protected and lower != b"cookie")
    return HeaderRule(lower, lower, is_passed_on=not rules.is_stripped, is_once=is_once, is_list=lower in _LISTS)


def _answer_rule(name: bytes) -> HeaderRule:
    rules, lower = name_rules(name), name.lower()
    is_length = rules.normal in _LENGTHS
    return HeaderRule(
        rules.normal,
        lower,
        is_passed_on=not rules.is_dropped,
        is_never=is_length and lower != rules.normal,
        is_once=is_length,
        is_list=rules.normal in _LISTS_OF_ANSWERS,
    )


REQUEST_RULES: Final = HeaderRules(_request_rule)
ANSWER_RULES: Final = HeaderRules(_answer_rule)


def end_to_end(lines: list[bytes], connection: bytes, withheld: frozenset[bytes] = frozenset()) -> list[bytes]:
    """Return those of `lines`, as `read_headers` has them, that are end to end, and not `withheld`.

    What `connection` names is not end to end, wherever it stands. `withheld` are names in the one spelling.
    """
    if not withheld and connection.lower() in _NAMES_NOTHING:
        return lines
    named = withheld.union(name_rules(option.strip()).normal for option in connection.split(b","))
    kept: list[bytes] = []
    for at in range(0, len(lines), 3):
        if name_rules(lines[at][:-2]).normal not in named:
            kept += lines[at : at + 3]
    return kept


def answer_lines(header: Mapping[bytes, bytes], lines: list[bytes]) -> tuple[list[bytes], bool]:
    """Return what a caller gets of a target's head, without `Content-Length`, and whether a `Date` is among it.

    Nothing that speaks for the origin as a whole (cookies, service workers, HSTS), nor of payment, nor what lets a
    cache keep the answer (security A-38, A-39). Nor CORS: the gateway answers it, and to a browser two answers are
    none.
    """
    kept, content_type, has_date = lines, header.get(b"content-type"), b"date" in header
    if b"connection" in header:
        kept = end_to_end(lines, header[b"connection"])
        content_type = content_type if b"content-type: " in kept else None
        has_date = b"date: " in kept
    return [*kept, guards(content_type)], has_date


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
