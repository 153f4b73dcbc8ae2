"""Text of others reaches a terminal as text alone."""

from __future__ import annotations

import pytest

from tollkeeper.core.printable import printable


@pytest.mark.parametrize(
    ("text", "kept", "shown"),
    [
        ("a name, é 🌍", "", "a name, é 🌍"),
        ("red \x1b[31m", "", "red \\x1b[31m"),
        ("one\ntwo\r", "\n", "one\ntwo\\r"),
        ("\u202eback", "", "\\u202eback"),
    ],
)
def test_what_is_not_shown_as_itself_is_escaped(text: str, kept: str, shown: str) -> None:
    assert printable(text, kept) == shown
