"""How many faults came, by what they were, which a run of `tests/faults` tells at its end; and how many shall come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
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


def rounds(most: int, *, seconds: float) -> Iterator[int]:
    """The numbers of the rounds of a long form: one at least, none begun once its time is over."""
    over = time.monotonic() + seconds
    for number in range(most):
        yield number
        if time.monotonic() > over:
            return
