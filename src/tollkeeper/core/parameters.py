"""The names of a query's parameters, as the most lenient of readers understands them (contract 3.4).

What an owner fixed in a target's own query is not for callers to override, and targets differ: some take the last of
two parameters with one name, split at ";", decode twice, read `plan[]`, `my.plan` or ` plan` as another name. Pure.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from tollkeeper.core.errors import invalid

_SEPARATORS: Final = re.compile(rb"[&;]")
_DECODED_MAX: Final = 8  # times; nobody honest needs more than two
_NAME_ENDS: Final = re.compile(r"[\[\x00]")
_READ_AS_UNDERSCORE: Final = str.maketrans(". ", "__")


def names_in(query: bytes) -> frozenset[str]:
    """Return the names of a query's parameters."""
    names = (name_of(part) for part in _SEPARATORS.split(query) if part)
    return frozenset(name for name in names if name is not None)


def without(query: bytes, names: frozenset[str]) -> bytes:
    """Return `query` without the parameters of these names, the rest as it was.

    Raises: INVALID_PARAMETER where a name is percent-encoded so often that nobody can say what it is.
    """
    kept, start = b"", 0
    for end in [*(match.start() for match in _SEPARATORS.finditer(query)), len(query)]:
        part = query[start:end]
        parameter = part.lstrip(b"&;")
        name = name_of(parameter) if parameter else ""
        if name is None:
            raise invalid("query", "the query has a parameter whose name is percent-encoded too many times")
        if not parameter or name not in names:
            kept += part
        start = end
    return kept.lstrip(b"&;") if len(kept) < len(query) else kept


def name_of(parameter: bytes) -> str | None:
    """Return the name of `name=value` in one spelling; None where it is percent-encoded too often."""
    text = decoded(parameter.partition(b"=")[0].replace(b"+", b" "))
    if text is None:
        return None
    name = text.decode("utf-8", "replace").casefold().strip()
    return _NAME_ENDS.split(name, maxsplit=1)[0].translate(_READ_AS_UNDERSCORE)


def decoded(text: bytes) -> bytes | None:
    """Return `text` decoded until that changes nothing any more; None where it goes on for too long."""
    for _ in range(_DECODED_MAX):
        once = unquote_to_bytes(text)
        if once == text:
            return text
        text = once
    return None
