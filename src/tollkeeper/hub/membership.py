"""This process among those that share the hub's database: is it alive, and what may it alone do (security F20)?

A process that shares its database says again and again that it lives. What it holds is another's to take once it was
silent for `shared_life_seconds`. It believes itself no longer than the database does, and begins anew under another
name when it was too late: what it held under the old one is fenced off. One that is alone has nobody to tell.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import new_request_id
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.engine.nodes import DatabaseClock
from tollkeeper.storage.hub.leases import Lease, join, leave, renew, take_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.engine.database import Database

_LOG = structlog.get_logger("tollkeeper.hub")
_FOREVER_MS: Final = 2**53
_BEATS_PER_LIFE: Final = 4


class Membership:
    """One process. `start` it before work is taken, `close` it before the database."""

    def __init__(self, database: Database, clock_ms: Callable[[], int], shared_life_seconds: float | None) -> None:
        """`shared_life_seconds`: None where no other hub process uses the database."""
        self._database = database
        self._clock = DatabaseClock(database, clock_ms)
        self._is_alone = shared_life_seconds is None
        self._life_seconds = shared_life_seconds or 0.0
        self.id = new_request_id()
        self._leases: dict[str, Lease] = {}
        self._believed_until = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Joins. Raises: StorageError."""
        await self._join()
        if not self._is_alone:
            self._task = asyncio.get_running_loop().create_task(self._beat())

    async def close(self) -> None:
        """Leave: what was held is free at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(StorageError):
            await self._database.run(leave(self.id))

    def is_current(self) -> bool:
        """Say whether the database still believes that this process lives. Asked before anything is sent."""
        return self._is_alone or asyncio.get_running_loop().time() < self._believed_until

    def now_ms(self) -> int:
        """The time by which processes live and die: the database's, which all of them share."""
        return self._clock.now_ms()

    async def lease(self, name: str) -> Lease | None:
        """Return the lease of that name; None where another process has it. Raises: StorageError.

        What was taken once is this process's for as long as it keeps its name.
        """
        if name not in self._leases:
            lease = await self._database.run(take_lease(name, self.id, self.now_ms()))
            if lease is None or lease.holder != self.id:
                return None
            self._leases[name] = lease
        return self._leases[name]

    async def _join(self) -> None:
        if not self._is_alone:
            await self._clock.read()
        began = asyncio.get_running_loop().time()
        now_ms = self.now_ms()
        until = _FOREVER_MS if self._is_alone else now_ms + int(self._life_seconds * 1000)
        await self._database.run(join(self.id, until, now_ms, is_alone=self._is_alone))
        self._believed_until = began + self._life_seconds

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._life_seconds / _BEATS_PER_LIFE)
            try:
                await self._renew()
            except StorageError as error:
                _LOG.warning("lease_not_renewed", reason=str(error))
            except Exception:  # noqa: BLE001 - without this task the process would work on, fenced off for ever
                _LOG.exception("lease_not_renewed")

    async def _renew(self) -> None:
        await self._clock.read()
        began = asyncio.get_running_loop().time()
        now_ms = self.now_ms()
        if await self._database.run(renew(self.id, now_ms + int(self._life_seconds * 1000), now_ms)):
            self._believed_until = began + self._life_seconds
            return
        _LOG.error("lease_lost", process=self.id)
        self.id, self._leases = new_request_id(), {}
        await self._join()
