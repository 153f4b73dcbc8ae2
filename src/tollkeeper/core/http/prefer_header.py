"""Preferences of a caller about its answer (RFC 7240): `Prefer: wait=N`, how many seconds it cares to wait.

Anything else in the header, and what cannot be read, counts as no preference. What to wait for is decided elsewhere.
"""

from __future__ import annotations

import re
from typing import Final

_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?:$|[,;])", re.ASCII | re.IGNORECASE)


def preferred_wait_seconds(prefer: str) -> int | None:
    """`wait` of a `Prefer` header, in any of its spellings; None where it has none."""
    found = _WAIT.search(prefer)
    return int(found[1]) if found else None
