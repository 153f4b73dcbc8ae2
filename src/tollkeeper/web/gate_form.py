"""The form of a PayGate: the texts that it shows, and the API's fields that they stand for (contract 3.1).

The names in the form are the API's (`core.paygates.fields`). Only what a text field cannot hold has a name of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import invalid
from tollkeeper.core.paygates.fields import METHODS, OF_TARGETS, SETTABLE, FormText

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonMapping, JsonObject

_TEXTS: Final = tuple(name for name, field in SETTABLE.items() if field.text is FormText.STRING)
_FLAGS: Final = tuple(name for name, field in SETTABLE.items() if field.text is FormText.BOOLEAN)
_EMPTY_IS_DEFAULT: Final = ("paymentAddress", "network", "mimeType", "slug")
_FRESH: Final[JsonObject] = {
    **dict.fromkeys((*_TEXTS, "slug", "acceptsLines", "headerLines", "expireAfter"), ""),
    **{name: SETTABLE[name].default for name in _FLAGS},
    **{name: field.default.value for name, field in SETTABLE.items() if isinstance(field.default, Enum)},
    "price": "0.01",
    "credits": "1",
    "method": "GET",
    "headerNames": [],
}
METHOD_NAMES: Final = METHODS


def fresh_values(network: str) -> JsonObject:
    """Return what the form of a new PayGate shows."""
    return {**_FRESH, "network": network}


def values_of(gate: JsonMapping) -> JsonObject:
    """Return what the form of this PayGate shows; `gate` as the API reads it."""
    lines = [f"{one['network']} {one['paymentAddress']}" for one in gate["accepts"]]
    expire = gate["creditsExpireAfter"]
    return {
        **_FRESH,
        **{name: gate[name] for name in (*_TEXTS, *_FLAGS, "slug")},
        "credits": str(gate["credits"]),
        "acceptsLines": "\n".join(lines),
        "expireAfter": "" if expire is None else str(expire),
        "headerNames": gate["targetHeaders"],
    }


def values_sent(fields: JsonMapping, shown: JsonMapping) -> JsonObject:
    """Return what the form shows again after it was refused: what was sent, and of `shown` what is no field."""
    flags = {name: bool(fields.get(name)) for name in _FLAGS}
    return {**shown, **{name: str(text) for name, text in fields.items() if name in _FRESH}, **flags}


def create_body(fields: JsonMapping, *, is_file: bool) -> JsonObject:
    """Return the body of the create that a form asks for. Raises: INVALID_PARAMETER."""
    body = _body(fields, is_file=is_file)
    if is_file:
        body["resourceType"] = "file"
    return {name: value for name, value in body.items() if value not in (None, [], {})}


def update_body(fields: JsonMapping, gate: JsonMapping) -> JsonObject:
    """Return what a form changes of a PayGate as the API reads it. Raises: INVALID_PARAMETER.

    A field that says what is so already is left out: somebody else may have changed another one meanwhile.
    """
    body = _body(fields, is_file=gate["resourceType"] == "file")
    body.pop("slug", None)
    headers = body.pop("targetHeaders", None)
    changed = {name: value for name, value in body.items() if value != gate.get(name)}
    if headers or "dropHeaders" in fields:
        changed["targetHeaders"] = headers or {}
    return changed


def target_body(fields: JsonMapping) -> JsonObject:
    """Return what a test of the target is told of it. Raises: INVALID_PARAMETER."""
    body: JsonObject = {name: fields[name] for name in ("targetUrl", "method") if fields.get(name)}
    headers = _header_lines(str(fields.get("headerLines", "")))
    return {**body, "targetHeaders": headers} if headers else body


def _body(fields: JsonMapping, *, is_file: bool) -> JsonObject:
    body = {name: fields[name] for name in (*_TEXTS, "slug", "credits") if name in fields}
    body |= {name: bool(fields.get(name)) for name in _FLAGS}
    body["accepts"] = _accepts(str(fields.get("acceptsLines", "")))
    body["creditsExpireAfter"] = _seconds(str(fields.get("expireAfter", "")))
    if is_file:
        return {name: value for name, value in body.items() if name not in OF_TARGETS and not _is_empty(name, value)}
    body["targetHeaders"] = _header_lines(str(fields.get("headerLines", "")))
    return {name: value for name, value in body.items() if not _is_empty(name, value)}


def _is_empty(name: str, value: object) -> bool:
    return name in _EMPTY_IS_DEFAULT and value == ""


def _accepts(text: str) -> list[dict[str, str]]:
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        network, _, address = line.partition(" ")
        if not address.strip():
            raise invalid("accepts", f"in each line stands a network, a space and an address, but not in: {line}")
        found.append({"network": network, "paymentAddress": address.strip()})
    return found


def _header_lines(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon or name.strip() in found:
            raise invalid("targetHeaders", "in each line stands a name, a colon and a value, and each name once")
        found[name.strip()] = value.strip()
    return found


def _seconds(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise invalid("creditsExpireAfter", "creditsExpireAfter must be a whole number of seconds, or empty")
    return int(text)
