"""The database's clock: where many programs share a database, what ends by time ends by one clock.

A database of one program has no clock of its own: there the program's counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import Statement, StorageError, unit_of_work
from tollkeeper.storage.engine.locks import nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.engine.database import Database, Row, Steps

_OFF_MAX_MS: Final = 5_000


class DatabaseClock:
    """The database's clock, `read` now and then and kept by elapsed time until then: no change of ours moves it."""

    def __init__(self, database: Database, own_ms: Callable[[], int]) -> None:
        self._database = database
        self._own_ms = own_ms
        self._read: tuple[int, float] | None = None

    async def read(self) -> None:
        """Read it anew. Raises: StorageError."""
        if rows := await self._database.run(_clock()):
            self._read = rows[0]["ms"], time.monotonic()

    def now_ms(self) -> int:
        """The time, as late as it is at most; by our own clock where the database has none."""
        if self._read is None:
            return self._own_ms()
        ms, at = self._read
        return ms + int((time.monotonic() - at) * 1000)


async def require_same_clock(database: Database, own_ms: Callable[[], int]) -> None:
    """Refuse a machine whose clock is more than 5 s off the database's. Raises: StorageError.

    Credits and payments end by the clock of whoever serves them.
    """
    clock = DatabaseClock(database, own_ms)
    began_ms = own_ms()
    await clock.read()
    there_ms = clock.now_ms()
    off_ms = max(there_ms - own_ms(), began_ms - there_ms)  # it was read in between
    if off_ms > _OFF_MAX_MS:
        raise StorageError(
            f"this machine's clock is {off_ms / 1000:.0f} s off the database's, and at most 5 s will do: "
            "set both by NTP, then start again"
        )


@unit_of_work
def _clock() -> Steps[list[Row]]:
    return (yield Statement("SELECT database_ms() AS ms", instead=nothing, is_whole=True))
