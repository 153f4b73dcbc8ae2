"""What becomes of payments at a gateway whose facilitator is a stranger's, told from its database, on any family."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tollkeeper.sandbox.buyer import Answer


class SalesAbroad:
    """The gateway's sales; `database` is its file."""

    __slots__ = ()

    database: Path

    def purchase(self) -> tuple[Any, ...]:
        """State, failure, whether it is confirmed, and remaining credits of the newest purchase."""
        with closing(sqlite3.connect(self.database)) as connection:
            row: tuple[Any, ...] = connection.execute(
                "SELECT state, failure, confirmed, remaining FROM holdings ORDER BY claimed_ms DESC"
            ).fetchone()
            return row

    async def until(self, state: str) -> tuple[Any, ...]:
        """The purchase once it is in this state."""
        async with asyncio.timeout(30):
            while self.purchase()[0] != state:  # noqa: ASYNC110 - over the file there is nothing to wait on
                await asyncio.sleep(0.05)
        return self.purchase()

    async def until_told(self, present: Callable[[], Awaitable[Answer]], *, until: int = 200) -> Answer:
        """The same payment, again and again while the outcome is not known; never told to pay again meanwhile."""
        async with asyncio.timeout(60):
            while True:
                answer = await present()
                if answer.status == until or answer.status != 503:
                    return answer
                assert answer.error_code in {"SETTLEMENT_PENDING", "UNAVAILABLE"}
                assert "accepts" not in answer.json()
                await asyncio.sleep(0.2)
