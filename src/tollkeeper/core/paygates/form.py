"""The fields of a PayGate as a form sends them, which knows only text (contract 3.1, specification 2.1 rule 5).

A form's fields become the JSON values that `fields` reads; what a text cannot be is refused there or here by
the field's name. The file itself is not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tollkeeper.core.api.errors import invalid
from tollkeeper.core.api.strict_json import parse_json
from tollkeeper.core.paygates.fields import SETTABLE, FormText

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.json_types import JsonObject


def form_fields(pairs: Iterable[tuple[str, str]]) -> JsonObject:
    """The fields with their values as JSON has them. Raises: INVALID_PARAMETER; also for one that came twice."""
    fields: dict[str, Any] = {}
    for name, text in pairs:
        if name in fields:
            raise invalid(name, f"{name} came twice")
        fields[name] = _value(name, text)
    return fields


def _value(name: str, text: str) -> Any:  # noqa: ANN401 - JSON
    kind = SETTABLE[name].text if name in SETTABLE else FormText.STRING
    if kind is FormText.BOOLEAN:
        if text not in {"true", "false"}:
            raise invalid(name, f"{name} must be true or false")
        return text == "true"
    if kind is FormText.NUMBER:
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise invalid(name, f"{name} must be a whole number")
        return int(text)
    if kind is FormText.JSON:
        try:
            return parse_json(text.encode())
        except ValueError:
            raise invalid(name, f"{name} must be JSON") from None
    return text
