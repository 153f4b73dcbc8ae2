"""How many faults came, by what they were: told at the end of a run of `tests/faults`."""

from __future__ import annotations

from collections import Counter
from typing import Final

# Of the test that runs now.
_COUNTS: Final[Counter[str]] = Counter()
PROPERTY: Final = "faults"


def came(fault: str, times: int = 1) -> None:
    """So many faults of that kind came in this test."""
    _COUNTS[fault] += times


def taken() -> dict[str, int]:
    """What came since this was last asked."""
    counts = dict(_COUNTS)
    _COUNTS.clear()
    return counts
