"""The encryption keys of one running process, which learn of another ring without a restart (contract 3.1, 4.3).

A ring is taken in steps that somebody else orders (`rotating`): first every process of a database opens with the new
key, then every one seals with it, then what is stored is moved, and only then is the former key let go. Credit tokens
and links that a retired key made stay good: what made them is kept in the database.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.serving.keys import token_keys
from tollkeeper.storage.resealing import retired_token_keys, units_before
from tollkeeper.storage.sealing import Sealing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.sealing import KeyRing
    from tollkeeper.storage.database import Database

_LOG = structlog.get_logger("tollkeeper.serving")


class LiveKeys:
    """`sealing` is what the stores seal with; `tokens` makes credit tokens and links, by its first, and checks them."""

    def __init__(self, ring: KeyRing, random_bytes: Callable[[int], bytes]) -> None:
        self.sealing = Sealing(ring, random_bytes)
        self.tokens: list[bytes] = list(token_keys(ring))
        self._settling = asyncio.Lock()

    def take(self, ring: KeyRing) -> None:
        """Seal and open by this ring from now on. Raises: CONFLICT where it lacks the key that seals now."""
        now = self.sealing.ring
        is_same = all(ring.keys.get(name, key) == key for name, key in now.keys.items())
        if now.current not in ring.keys or not is_same:
            message = f"the running server seals with a key that the ring lacks ({now.current}): is this its key file?"
            raise ApiError(Code.CONFLICT, message)
        self.sealing.ring = ring
        made = token_keys(ring)
        self.tokens[:] = [*made, *(key for key in self.tokens if key not in made)]

    async def settle(self, database: Database) -> None:
        """Returns when nothing that this process seals by a former ring can come any more. Raises: StorageError.

        What retired keys made counts from then on, but for what the ring does not open: whoever put a backup in place
        may put its key back yet, and everything else goes on.
        """
        async with self._settling:
            await database.run(units_before())
            retired, closed = await retired_token_keys(database, self.sealing)
            if closed:
                _LOG.error("retired_keys_do_not_open", retired=closed)
            made = token_keys(self.sealing.ring)
            self.tokens[:] = [*made, *(key for key in retired if key not in made)]
