"""The one loop over a head's headers: judged, noted and copied in one pass, for callers' heads and targets' alike.

A rule is found by the name as it was sent, and made once for each spelling, so that no pass goes by the head's bytes.
Pure: the parser has cut the head into pairs, and let no value pass that could break out of its line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
