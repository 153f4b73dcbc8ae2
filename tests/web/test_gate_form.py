"""The dashboard's form of a PayGate has every field that an owner sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import tollkeeper.web
from tollkeeper.core.paygates.fields import OF_TARGETS, SETTABLE, FormText
from tollkeeper.web.gate_form import create_body

TEMPLATE: Final = Path(tollkeeper.web.__file__).parent / "templates/gate_form.html"
# What a text field cannot hold has a name of its own in the form, and a text for it.
OTHERWISE: Final = {
    "accepts": ("acceptsLines", "solana-devnet EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"),
    "creditsExpireAfter": ("expireAfter", "60"),
    "targetHeaders": ("headerLines", "Authorization: Bearer x"),
}


def test_the_page_asks_for_every_field() -> None:
    asked = set(re.findall(r'parts\.\w+\("(\w+)"', TEMPLATE.read_text()))
    assert {OTHERWISE.get(name, (name, ""))[0] for name in SETTABLE} - asked == set()


def test_every_field_that_is_filled_in_is_part_of_the_create() -> None:
    filled = dict(
        OTHERWISE.get(name, (name, "on" if field.text is FormText.BOOLEAN else "7")) for name, field in SETTABLE.items()
    )
    assert set(create_body(filled, is_file=False)) == set(SETTABLE)
    assert set(create_body(filled, is_file=True)) == set(SETTABLE) - OF_TARGETS | {"resourceType"}
