"""The names of a query's parameters, as the most lenient of readers understands them (contract 3.4).

What an owner fixed in a target's own query is not for callers to override, and targets differ: some take the last of
two parameters with one name, split at ";", decode twice, read `plan[]`, `[plan]`, `my.plan` or ` plan` as another name.
Pure.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from tollkeeper.core.api.errors import invalid

_SEPARATORS: Final = re.compile(rb"[&;]")
_DECODED_MAX: Final = 8  # times; nobody honest needs more than two
_BRACKETS: Final = re.compile(r"[\[\]]")
_READ_AS_UNDERSCORE: Final = str.maketrans(". ", "__")
_NOTHING: Final = frozenset[str]()


def names_in(query: bytes) -> frozenset[str]:
    """Return the names of a query's parameters."""
    return frozenset().union(*(_readings(part) or () for part in _SEPARATORS.split(query) if part))


def without(query: bytes, names: frozenset[str]) -> bytes:
    """Return `query` without the parameters of these names, the rest as it was.

    Raises: INVALID_PARAMETER where a name is percent-encoded so often that nobody can say what it is.
    """
    kept, start = b"", 0
    for end in [*(match.start() for match in _SEPARATORS.finditer(query)), len(query)]:
        part = query[start:end]
        parameter = part.lstrip(b"&;")
        readings = _readings(parameter) if parameter else _NOTHING
        if readings is None:
            raise invalid("query", "the query has a parameter whose name is percent-encoded too many times")
        if readings.isdisjoint(names):
            kept += part
        start = end
    return kept.lstrip(b"&;") if len(kept) < len(query) else kept


def name_of(parameter: bytes) -> str | None:
    """Return the name of `name=value` as most read it; None where it is percent-encoded too often."""
    name = _whole_name(parameter)
    return None if name is None else _without_brackets(name)


def _readings(parameter: bytes) -> frozenset[str] | None:
    """Return the names that somebody reads: PHP takes a bracket that is not closed for an underscore."""
    name = _whole_name(parameter)
    return None if name is None else frozenset({_without_brackets(name), name.replace("[", "_")})


def _whole_name(parameter: bytes) -> str | None:
    text = decoded(parameter.partition(b"=")[0].replace(b"+", b" "))
    if text is None:
        return None
    name = text.decode("utf-8", "replace").casefold().strip()
    return name.partition("\0")[0].translate(_READ_AS_UNDERSCORE)


def _without_brackets(name: str) -> str:
    """Return what stands before `[...]`, or in the first of them where nothing does."""
    return _BRACKETS.split(name.lstrip("[]"), maxsplit=1)[0]


def decoded(text: bytes) -> bytes | None:
    """Return `text` decoded until that changes nothing any more; None where it goes on for too long."""
    for _ in range(_DECODED_MAX):
        once = unquote_to_bytes(text)
        if once == text:
            return text
        text = once
    return None
