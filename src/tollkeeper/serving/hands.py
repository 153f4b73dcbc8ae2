"""Who carries out the orders of an operator's command: the running server; where none runs, the command itself."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.serving import StartError
from tollkeeper.serving.control import answer_order, give_order
from tollkeeper.serving.live_keys import LiveKeys
from tollkeeper.serving.orders import orders_of
from tollkeeper.storage import StorageError, open_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.sealing import KeyRing
    from tollkeeper.settings import Settings
    from tollkeeper.storage.sqlite import SqliteDatabase

# A server that was killed is there again soon, or its database is free.
_SERVER_BACK_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.5


class Hands:
    """For one command; `close` it at the end. `ring` reads the keys where the command opens the database itself."""

    def __init__(self, settings: Settings, ring: Callable[[], KeyRing]) -> None:
        self._settings = settings
        self._ring = ring
        self._database: SqliteDatabase | None = None
        self._keys: LiveKeys | None = None

    async def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """What came of it: `done` or `error`. Raises: StorageError, OSError, TimeoutError."""
        if self._database is None:
            answer = await give_order(self._settings.database_url, order)
            if answer is not None:
                return answer
            self._database = open_database(self._settings.database_url, migrate=False)
            self._keys = LiveKeys(self._ring(), os.urandom)
        assert self._keys is not None  # noqa: S101 - it came with the database
        return await answer_order(orders_of(self._settings, self._database, self._keys), order)

    async def carry(self, **order: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """What was done; a server that dies is waited for, and asked again. For orders that may be given twice.

        Raises: StartError for one that is refused; StorageError, OSError, TimeoutError.
        """
        give_up = time.monotonic() + _SERVER_BACK_SECONDS
        while True:
            try:
                answer = await self.answer(order)
            except (StorageError, OSError, TimeoutError):
                if time.monotonic() > give_up:
                    raise
            else:
                if "done" in answer:
                    done: dict[str, Any] = answer["done"]
                    return done
                if time.monotonic() > give_up or not answer.get("again"):
                    raise StartError(answer["error"])
            await asyncio.sleep(_AGAIN_SECONDS)

    async def close(self) -> None:
        """Let the database go, where it was opened."""
        if self._database is not None:
            await self._database.close()


async def honour_payment(settings: Settings, order: dict[str, Any]) -> dict[str, Any]:
    """What came of it: `done` or `error`. Raises: StorageError."""
    ring = settings.encryption_keys
    assert ring is not None  # noqa: S101 - a gateway's settings have them
    hands = Hands(settings, lambda: ring)
    try:
        return await hands.answer(order)
    finally:
        await hands.close()
