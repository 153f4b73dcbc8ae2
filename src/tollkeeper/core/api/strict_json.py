"""Strict reading of JSON that strangers sent (security A-33).

Python's reader takes UTF-16, NaN, duplicate keys, lone surrogates and integers of any length; this one does not.
A number with a fraction or an exponent stays text (`NumberText`), so that no float exists and money can be exact.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.limits import JSON_DEPTH, JSON_INTEGER_DIGITS, JSON_METADATA_DEPTH

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # also one without an end, so that it is linear
_BRACKET: Final = re.compile(rb"[{}\[\]]")
_SPACES: Final = b" \t\n\r"
_EVERY_DIGIT_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_ZEROS: Final = b"0" * JSON_INTEGER_DIGITS


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
    _require_depth(data, JSON_DEPTH)
    value = _read_plain(data)
    if value is not msgspec.UNSET:
        return value
    value = _DECODER.decode(data.decode("utf-8"))
    if b"\\u" in data:
        _refuse_surrogates(value)
    return value


def parse_json_around(data: bytes) -> Any:  # noqa: ANN401 - as parse_json
    """The value of a document of which only some members are ours; whatever the others hold is nobody's fault.

    The value of a key that came twice, and an integer that is too long, are a `NumberText`, which no reader takes.
    Lone surrogates are left to who reads a text. Raises: ValueError for what is no JSON, or deeper than
    JSON_METADATA_DEPTH.
    """
    _require_depth(data, JSON_METADATA_DEPTH)
    value = _read_plain(data)
    return _AROUND.decode(data.decode("utf-8")) if value is msgspec.UNSET else value


def _require_depth(data: bytes, depth: int) -> None:
    if data.count(b"{") + data.count(b"[") > depth and _is_too_deep(data, depth):
        raise ValueError("JSON is nested too deeply")


def _integer(digits: str) -> int:
    if len(digits) > JSON_INTEGER_DIGITS:
        raise ValueError("integer has too many digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has the same key twice")
    return members


def _integer_around(digits: str) -> int | NumberText:
    return NumberText(digits) if len(digits) > JSON_INTEGER_DIGITS else int(digits)


def _object_around(pairs: list[tuple[str, Any]]) -> JsonObject:
    members: JsonObject = {}
    for name, value in pairs:
        members[name] = NumberText("twice") if name in members else value
    return members


_AROUND: Final = json.JSONDecoder(
    object_pairs_hook=_object_around, parse_int=_integer_around, parse_float=NumberText, parse_constant=_constant
)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=NumberText, parse_constant=_constant
)


def _fraction(digits: str) -> NoReturn:
    raise ValueError(f"{digits} is not plain")


_READ: Final = msgspec.json.Decoder(float_hook=_fraction).decode
_WRITE: Final = msgspec.json.Encoder().encode


def _read_plain(data: bytes) -> Any:  # noqa: ANN401 - as parse_json
    """The value of a document in plain spelling, as programs write it; UNSET for any other, which is read slowly.

    This reader is several times faster but knows only half of our rules. So its value is written again: where that is
    the document, spaces aside, no key came twice, because what a repeated key drops is missing from what is written,
    and nothing that is read and written without a fraction becomes longer. Long integers are left to the other reader.
    """
    if _TOO_MANY_ZEROS in data.translate(_EVERY_DIGIT_ZERO):
        return msgspec.UNSET
    try:
        value = _READ(data)
    except (msgspec.DecodeError, ValueError):
        return msgspec.UNSET
    written = _WRITE(value)
    is_plain = written == data or written.translate(None, _SPACES) == data.translate(None, _SPACES)
    return value if is_plain else msgspec.UNSET


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_too_deep(data: bytes, most: int) -> bool:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"{[" else -1
        if depth > most:
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
