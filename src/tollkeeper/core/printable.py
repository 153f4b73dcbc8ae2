"""Text of others as a terminal may get it: nothing in it moves the cursor, hides a line or talks to the terminal."""

from __future__ import annotations


def printable(text: str, kept: str = "") -> str:
    """Escape every character that is not shown as itself, but those in `kept` (line ends, say)."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in kept else one.encode("unicode_escape").decode("ascii") for one in text
    )
