"""Public numeric ids: one row per sequence, dense as far as units commit (contract 1: ids are per table).

A number that a unit took is given back when the unit is rolled back, so a refused request leaves no gap.
"""

from __future__ import annotations

from tollkeeper.storage.engine.database import Steps, unit_of_work
from tollkeeper.storage.engine.queries import load_queries


@unit_of_work
def next_id(name: str) -> Steps[int]:
    """Take the number after the last of a sequence, the first being 1.

    Inside a unit: `number = yield from next_id("paygates")`.
    """
    rows = yield load_queries("sequences.sql").next_value(name=name)
    value: int = rows[0]["value"]
    return value
