"""Heads of requests and of responses: what their names say, then the rules beyond those of the parser.

A head's names, in their order, are its shape: what is noted, what is passed on, what may not be there. A shape is
judged once, for callers' heads and targets' alike, because each client sends its own again and again; values are put
into it, so that no pass goes over the headers of a call. Where two readers of one message
could disagree (about its length, its host, its payment, its path) the message is refused, never repaired (security
A-40, A-42): llhttp refuses bare line feeds, folded lines, both lengths at once and broken chunks, `judged_head`
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
    from collections.abc import Callable, Mapping, Sequence

_NAMES_MAX: Final = 4096  # callers invent names
_SHAPES_MAX: Final = 512  # of a few KiB
_SHAPE_NAMES_MAX: Final = 48  # of more, or longer ones, nothing is kept: anybody may invent them
_SHAPE_NAMES_BYTES: Final = 768
_ONCE: Final = frozenset({b"content-length", b"content-type", b"expect", b"host", b"transfer-encoding"})
_NAMES_NOTHING: Final = frozenset({b"", b"close", b"keep-alive"})  # of `Connection`: no other header
# Of a request: what follows it, or what becomes of its connection.
_NOT_PLAIN: Final = frozenset(
    {b"connection", b"content-length", b"expect", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
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

    `start` begins its line where it `is_passed_on`. One that `is_never` is refused in this spelling, one that
    `is_once` where it is there twice; of one that `is_list` all values are noted, of any other the last. `is_proof`:
    it shows a payment, a credit token or a login.
    """

    __slots__ = ("is_list", "is_never", "is_once", "is_passed_on", "is_proof", "name", "start")

    def __init__(
        self,
        name: bytes,
        line_name: bytes,
        *,
        is_passed_on: bool,
        is_never: bool = False,
        is_once: bool = False,
        is_list: bool = False,
        is_proof: bool = False,
    ) -> None:
        self.name = name
        self.start = line_name + b": "
        self.is_passed_on = is_passed_on
        self.is_never, self.is_once, self.is_list, self.is_proof = is_never, is_once, is_list, is_proof


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


class HeadShape:
    """Names of a head in the order in which they came, and what they say; of its values it knows nothing.

    `names` are those under which the values are noted; `passed` has the names that are passed on, `places` where they
    stand. `has_proof`: a payment, a token or a login is shown; `is_plain`: no header is about the connection or a body.
    """

    __slots__ = (
        "_lines",
        "_lists",
        "_place_of",
        "_starts",
        "_unstripped",
        "has_proof",
        "is_kept",
        "is_plain",
        "names",
        "passed",
        "places",
    )

    def __init__(self, sent: tuple[bytes, ...], rules: HeaderRules) -> None:
        """Judge the names. Raises HeaderError."""
        found = [rules[name] for name in sent]
        self.names = names = tuple(rule.name for rule in found)
        for rule in found:
            if rule.is_never:
                raise HeaderError("a header has a name that some read as another one, by which much is decided")
            if rule.is_once and names.count(rule.name) > 1:
                raise HeaderError(f"the header {rule.name.decode('ascii')} is there twice")
        self.places = tuple(place for place, rule in enumerate(found) if rule.is_passed_on)
        self.passed = tuple(names[place] for place in self.places)
        self._starts = tuple(rule.start for rule in found)
        # Of a value that is not passed on no byte is written.
        self._lines = b"".join(
            [rule.start.replace(b"%", b"%%") + b"%b\r\n" if rule.is_passed_on else b"%.0b" for rule in found]
        )
        self._lists = tuple({rule.name for rule in found if rule.is_list and names.count(rule.name) > 1})
        self._place_of = {name: place for place, name in enumerate(names)}
        self._unstripped = names.index(b"transfer-encoding") if b"transfer-encoding" in names else -1
        self.has_proof = any(rule.is_proof for rule in found)
        self.is_kept = False  # for the next head with these names
        self.is_plain = _NOT_PLAIN.isdisjoint(names)

    def counted(self, sent: Sequence[bytes]) -> list[bytes]:
        """Return the values as they count.

        What stands behind a value is no part of it (RFC 9110 5.5). By a transfer encoding as it came goes the parser,
        and whoever judges it as well.
        """
        values = [value.rstrip(b" \t") for value in sent]
        if self._unstripped >= 0:
            values[self._unstripped] = sent[self._unstripped]
        return values

    def header(self, values: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return each header once, by its name in lower case."""
        header = dict(zip(self.names, values))  # noqa: B905 - as many: the names are those of these values
        for name in self._lists:
            header[name] = b", ".join([value for one, value in zip(self.names, values, strict=True) if one == name])
        return header

    def place_of(self, name: bytes) -> int:
        """Return where a header stands that is no list, -1 where it does not; of several the last counts."""
        return self._place_of.get(name, -1)

    def lines(self, values: Sequence[bytes]) -> bytes:
        """Return the lines that are passed on."""
        return self._lines % (*values,)

    def line(self, place: int, value: bytes) -> bytes:
        """Return one line."""
        return b"%b%b\r\n" % (self._starts[place], value)


class HeadShapes(dict[tuple[bytes, ...], HeadShape]):
    """The shapes by all names of a head, as they were sent: what one client sends each time is judged once."""

    def __init__(self, rules: HeaderRules) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, sent: tuple[bytes, ...]) -> HeadShape:
        shape = HeadShape(sent, self._rules)
        if len(sent) <= _SHAPE_NAMES_MAX and sum(map(len, sent)) <= _SHAPE_NAMES_BYTES:
            if len(self) >= _SHAPES_MAX:
                self.clear()
            self[sent] = shape
            shape.is_kept = True
        return shape


def _request_rule(name: bytes) -> HeaderRule:
    rules, lower = name_rules(name), name.lower()
    if not rules.is_token:
        raise HeaderError("a header has a name that is none")
    if lower != rules.normal:
        return HeaderRule(lower, lower, is_passed_on=not rules.is_stripped, is_never=rules.is_stripped)
    is_once = lower in _ONCE or (rules.is_protected and lower != b"cookie")
    return HeaderRule(
        lower,
        lower,
        is_passed_on=not rules.is_stripped,
        is_once=is_once,
        is_list=lower in _LISTS,
        is_proof=rules.is_protected and lower != b"cookie",
    )


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


REQUEST_SHAPES: Final = HeadShapes(REQUEST_RULES)
ANSWER_SHAPES: Final = HeadShapes(ANSWER_RULES)


def passed_on(
    shape: HeadShape, values: Sequence[bytes], connection: bytes, withheld: frozenset[bytes] = frozenset()
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the lines of a head that are passed on, and their names in the one spelling.

    What `connection` names is not end to end, wherever it stands. `withheld` are names in the one spelling.
    """
    if not withheld and connection.lower() in _NAMES_NOTHING:
        return shape.lines(values), shape.passed
    named = withheld.union(name_rules(option.strip()).normal for option in connection.split(b","))
    kept = [place for place in shape.places if name_rules(shape.names[place]).normal not in named]
    lines = b"".join([shape.line(place, values[place]) for place in kept])
    return lines, tuple(shape.names[place] for place in kept)


def answer_lines(head: ResponseHead, values: Sequence[bytes]) -> tuple[bytes, tuple[bytes, ...]]:
    """Return what a caller gets of a target's head, without `Content-Length`, and the names of what it gets.

    Nothing that speaks for the origin as a whole (cookies, service workers, HSTS), nor of payment, nor what lets a
    cache keep the answer (security A-38, A-39). Nor CORS: the gateway answers it, and to a browser two answers are
    none.
    """
    header = head.header
    lines, names = passed_on(head.shape, values, header.get(b"connection", b""))
    return lines + guards(header.get(b"content-type") if b"content-type" in names else None), names


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


def _length_of_body(version: str, header: Mapping[bytes, bytes]) -> int | None:
    """Return how long the body is that follows; None where only its last chunk tells. Raises INVALID_PARAMETER."""
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
    declared, chunked = None, b"transfer-encoding" in header
    if chunked and header[b"transfer-encoding"].strip(b" \t").lower() != b"chunked":
        raise FramingError("the transfer encoding is not supported")
    if (length := header.get(b"content-length")) is not None:
        if not _LENGTH.fullmatch(length):
            raise FramingError("the length is unclear")
        declared = int(length)
    if chunked and (version == "1.0" or declared is not None):
        raise FramingError("a body has one length only")
    if method == "HEAD" or status in (204, 304):
        return ResponseFraming(BodyEnd.NONE, declared)
    if chunked:
        return ResponseFraming(BodyEnd.CHUNKED, None)
    return ResponseFraming(BodyEnd.CLOSE if declared is None else BodyEnd.LENGTH, declared)


def refused(message: str) -> ApiError:
    """The refusal of a request head."""
    return ApiError(Code.INVALID_PARAMETER, message, details={"field": "request"})


class RequestHead(msgspec.Struct):
    """A checked head, of whose parts nobody changes any; its headers are the caller's secret.

    `names` are those of its headers as they were sent, `values` their values as they count. `content_length` None: a
    chunked body. What few requests need is made when somebody asks for it.
    """

    method: str
    target: bytes
    names: tuple[bytes, ...]
    values: Sequence[bytes]
    shape: HeadShape
    content_length: int | None = 0
    _header: dict[bytes, bytes] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, {self.target!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("target", self.target)]

    @property
    def header(self) -> dict[bytes, bytes]:
        """Each header once, by its name in lower case."""
        if self._header is None:
            self._header = self.shape.header(self.values)
        return self._header

    @property
    def headers(self) -> list[Header]:
        """All headers, their names in lower case: for ASGI."""
        return _pairs(self.names, self.values)

    def value_of(self, name: bytes) -> bytes:
        """Return the value of a header that is no list, empty where it is not there; of several the last counts."""
        place = self.shape.place_of(name)
        return b"" if place < 0 else self.values[place]


def read_head(method: bytes, target: bytes, version: str, sent: Sequence[Header]) -> RequestHead:
    """Judge a caller's head. Raises INVALID_PARAMETER."""
    names = tuple([name for name, _ in sent])
    return judged_head(method, target, version, names, [value for _, value in sent])


def judged_head(
    method: bytes,
    target: bytes,
    version: str,
    names: tuple[bytes, ...],
    sent: Sequence[bytes],
) -> RequestHead:
    """Judge a caller's head. Raises INVALID_PARAMETER."""
    try:
        shape = REQUEST_SHAPES[names]
    except HeaderError as error:
        raise refused(str(error)) from None
    if version not in VERSIONS:
        raise refused("the HTTP version is not supported")
    if method not in METHODS:
        raise refused("the method is not supported")
    if not _TARGET.fullmatch(target):
        raise refused("the request target must be a path, without characters that must be percent-encoded")
    values = shape.counted(sent)
    place = shape.place_of(b"host")
    if place < 0:
        raise refused("the header host is missing")
    _check_host(values[place])
    head = RequestHead(METHODS[method], target, names, values, shape)
    if not shape.is_plain:
        head.content_length = _length_of_body(version, head.header)
    return head


class ResponseHead(msgspec.Struct):
    """The head of a target's answer, and how the body ends; nobody changes any of its parts. As `RequestHead`."""

    status: int
    names: tuple[bytes, ...]
    values: Sequence[bytes]
    shape: HeadShape
    header: dict[bytes, bytes]
    framing: ResponseFraming

    @property
    def headers(self) -> list[Header]:
        """All headers, their names in lower case."""
        return _pairs(self.names, self.values)


def read_response_head(method: str, status: int, version: str, sent: Sequence[Header]) -> ResponseHead:
    """Judge a target's head. Raises FramingError."""
    names = tuple([name for name, _ in sent])
    return judged_response_head(method, status, version, names, [value for _, value in sent])


def judged_response_head(
    method: str,
    status: int,
    version: str,
    names: tuple[bytes, ...],
    sent: Sequence[bytes],
) -> ResponseHead:
    """Judge a target's head. Raises FramingError."""
    try:
        shape = ANSWER_SHAPES[names]
    except HeaderError as error:
        raise FramingError(str(error)) from None
    values = shape.counted(sent)
    header = shape.header(values)
    return ResponseHead(status, names, values, shape, header, judge_response_head(method, status, version, header))


def _pairs(names: tuple[bytes, ...], values: Sequence[bytes]) -> list[Header]:
    return [(name.lower(), value) for name, value in zip(names, values, strict=True)]


def keeps_alive(version: str, head: ResponseHead) -> bool:
    """Return True if an answer leaves its connection open (RFC 9112 9.3).

    The parser reads HTTP/1.0 otherwise: for it keep-alive beside close is enough, and one in `Proxy-Connection`.
    """
    if version == "1.1":
        return True  # as the parser has it
    options = {option.strip().lower() for option in head.header.get(b"connection", b"").split(b",")}
    return b"keep-alive" in options and b"close" not in options


def promised_seconds(head: ResponseHead) -> int | None:
    """Return how long a `Keep-Alive` says that its connection is kept."""
    for part in head.header.get(b"keep-alive", b"").split(b","):
        option, _, number = part.strip().partition(b"=")
        if option.lower() == b"timeout" and number.isdigit() and len(number) < 6:
            return int(number)
    return None
