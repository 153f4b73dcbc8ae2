"""What a gateway's server does for an operator's commands: honour a payment, and the steps of a key rotation.

The commands give their orders over `control`; where no server runs, they carry them out by the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tollkeeper.api import clock_ms
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.keyring import parse_key_ring
from tollkeeper.core.sealing import KeyRing
from tollkeeper.serving.honouring import honouring_of
from tollkeeper.serving.keys import token_key
from tollkeeper.storage.resealing import SEALED_TABLES, Resealing, retire, revoke

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.serving.control import Carry
    from tollkeeper.serving.live_keys import LiveKeys
    from tollkeeper.settings import Settings
    from tollkeeper.storage.database import Database

    # Makes every process of the database take a ring; returns when none seals by a former one any more.
    Spread = Callable[[KeyRing], Awaitable[None]]


def taking_alone(keys: LiveKeys, database: Database) -> Spread:
    """For the only process of a database."""

    async def spread(ring: KeyRing) -> None:
        keys.take(ring)
        await keys.settle(database)

    return spread


def orders_of(settings: Settings, database: Database, keys: LiveKeys, spread: Spread | None = None) -> Carry:
    """What carries out an order on this database; `spread` None where this is its only process."""
    honour = honouring_of(settings, database, keys)
    rotation = _Rotation(database, keys, spread or taking_alone(keys, database))
    steps = {"use": rotation.use, "move": rotation.move, "retire": rotation.retire}

    async def carry(order: dict[str, Any]) -> dict[str, Any]:
        if "keys" not in order:
            return await honour(order)
        try:
            return await steps[order["keys"]](order)
        except (KeyError, ValueError, TypeError):
            raise ApiError(Code.INVALID_PARAMETER, "the order cannot be read") from None

    return carry


class _Rotation:
    """The steps of a rotation. Each may be ordered again."""

    def __init__(self, database: Database, keys: LiveKeys, spread: Spread) -> None:
        self._database = database
        self._keys = keys
        self._spread = spread
        self._resealing = Resealing(database, keys.sealing)

    async def use(self, order: dict[str, Any]) -> dict[str, Any]:
        """Every process opens with this ring, and when all do, every one seals with its first key."""
        ring, now = parse_key_ring(order["ring"]), self._keys.sealing.ring
        if ring.current != now.current:
            await self._spread(KeyRing(now.current, {**ring.keys, **now.keys}))
        await self._spread(ring)
        return {}

    async def move(self, order: dict[str, Any]) -> dict[str, Any]:
        """A page of a table is moved under the current key."""
        table = SEALED_TABLES[order["table"]]
        page = await self._resealing.page(table, table.first if order["after"] is None else order["after"])
        return {"moved": page.moved, "last": page.last}

    async def retire(self, order: dict[str, Any]) -> dict[str, Any]:
        """What made the tokens of these keys is kept, or forgotten; their ring is changed by `use`."""
        ring = self._keys.sealing.ring
        ids: list[str] = order["ids"]
        if ring.current in ids:
            raise ApiError(Code.CONFLICT, f"{ring.current} is the key in use")
        if order["revoke"]:
            await self._database.run(revoke(ids))
        else:
            made = {name: token_key(ring.keys[name]) for name in ids if name in ring.keys}
            await self._database.run(retire(self._keys.sealing, made, clock_ms()))
        return {}
