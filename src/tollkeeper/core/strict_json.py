"""Strict reading of JSON that strangers sent (security A-33).

Python's reader takes UTF-16, NaN, duplicate keys, lone surrogates and integers of any length; this one does not.
A number with a fraction or an exponent stays text (`NumberText`), so that no float exists and money can be exact.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tollkeeper.core.limits import JSON_DEPTH, JSON_INTEGER_DIGITS

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # also one without an end, so that it is linear
_BRACKET: Final = re.compile(rb"[{}\[\]]")


@dataclass(frozen=True, slots=True)
class NumberText:
    """A JSON number that is not an integer, as it was written."""

    text: str


def parse_json(data: bytes) -> Any:  # noqa: ANN401 - JSON is any of its types until a parser says which
    """The value that `data` (UTF-8) holds.

    Raises: ValueError for anything ambiguous or outside the limits: duplicate keys, NaN, surrogates, depth above
    JSON_DEPTH, an integer of more than JSON_INTEGER_DIGITS digits, another encoding, text after the value.
    """
    # Judged before parsing: the reader recurses on the C stack, which a raised recursion limit would let it overflow.
    # A document with few brackets cannot be deep, so that the common case pays for a count only.
    if data.count(b"{") + data.count(b"[") > JSON_DEPTH and _is_too_deep(data):
        msg = "JSON is nested too deeply"
        raise ValueError(msg)
    value = _DECODER.decode(data.decode("utf-8"))
    if b"\\u" in data:
        _refuse_surrogates(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > JSON_INTEGER_DIGITS:
        msg = "integer has too many digits"
        raise ValueError(msg)
    return int(digits)


def _constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        msg = "an object has the same key twice"
        raise ValueError(msg)
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=NumberText, parse_constant=_constant
)


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_too_deep(data: bytes) -> bool:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"{[" else -1
        if depth > JSON_DEPTH:
            return True
    return False


def _refuse_surrogates(value: object) -> None:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            item.encode("utf-8")  # UnicodeEncodeError is a ValueError
        elif isinstance(item, dict):
            pending.extend(item.keys())
        pending.extend(_children(item))
