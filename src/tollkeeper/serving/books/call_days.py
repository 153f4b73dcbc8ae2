"""Work at the days of calls, after each check of the books: count what it has looked at, and fold what is old.

What one check reads of the journal beyond the days is counted after it, so the next one finds by number what changed.
Old calls are folded with pauses as long as the work, and never so long that the next check waits for it: what is left
is folded after that one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

from tollkeeper.api import clock_ms
from tollkeeper.core.paygates.statistics import DAY_MS
from tollkeeper.storage.ledger.call_days import count_calls, fold_journal, fold_single_calls

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Database, Unit

T = TypeVar("T")

_FOLDING_SECONDS: Final = 30.0


async def keep_days(database: Database, journal_days: int) -> None:
    """Count the calls that no day counts yet; fold those of days that are older, 0 for none. Raises: StorageError."""
    while await _paced(database, count_calls(clock_ms())):
        pass
    if not journal_days:
        return
    end, before_ms = time.monotonic() + _FOLDING_SECONDS, (clock_ms() // DAY_MS - journal_days) * DAY_MS
    after: int | None = 0
    while after is not None and time.monotonic() < end:
        after = await _paced(database, fold_journal(after, before_ms))
    while time.monotonic() < end and await _paced(database, fold_single_calls(before_ms)):
        pass


async def _paced(database: Database, unit: Unit[T]) -> T:
    """Carry out a unit, and leave others the writer for as long."""
    begun = time.monotonic()
    result = await database.run(unit)
    await asyncio.sleep(time.monotonic() - begun)
    return result
