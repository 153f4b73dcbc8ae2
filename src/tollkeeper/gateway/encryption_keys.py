"""The encryption keys of a running gateway: what seals, what makes credit tokens and links (contract 3.1, 4.3).

A key is replaced by a restart: the new one is the first of the file, the former one stays behind it. From then on
everything is sealed under the new one, what the former one sealed opens and is moved in the background, and what made
its tokens is kept in the database. Once that is done the former key may be retired (`admin.rotation`): its tokens stay
good without it, until they are revoked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import clock_ms
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.gateway.reseals import Resealing, forget_retired, keep_retired, lost_gates, retired_token_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tollkeeper.storage.engine.database import Database

_TOKEN_KEY_PURPOSE: Final = b"tollkeeper credit tokens"
_AGAIN_SECONDS: Final = 60.0
_ADOPTED_SECONDS: Final = 10.0  # then every program that can write seals by the key that was agreed on
_LOG = structlog.get_logger("tollkeeper.serving")


def token_key(key: bytes) -> bytes:
    """Derive the key of credit tokens and links while `key` seals.

    It is a key of its own, so that no key has two uses.
    """
    return hmac.digest(key, _TOKEN_KEY_PURPOSE, hashlib.sha256)


class EncryptionKeys:
    """`sealing` is what the stores seal with; `tokens` makes credit tokens and links, by its first, and checks them.

    `revoked` are ids of keys whose tokens were ended: they open what they sealed, and make nothing good.
    """

    def __init__(self, ring: KeyRing, revoked: Collection[str] = frozenset()) -> None:
        self.sealing = Sealing(ring, os.urandom)
        self._wanted = ring.current
        self._seals = asyncio.Event()  # the wanted key does
        self._seals.set()
        self._adopted_seconds = 0.0
        self._revoked = set(revoked)
        self._former = {name: token_key(key) for name, key in ring.keys.items() if name != ring.current}
        self._retired: dict[str, bytes] = {}
        self.tokens = [token_key(ring.keys[ring.current]), *self._good(self._former)]
        self.has_lost_gates = False

    def _good(self, made: Mapping[str, bytes]) -> list[bytes]:
        return [key for name, key in made.items() if name not in self._revoked]

    async def open(self, database: Database) -> None:
        """Learn what retired keys made. Raises: StorageError.

        What the ring does not open is told, and everything else goes on: whoever put a backup in place may put its key
        back yet. A key that is in use again is retired no more.
        """
        self._retired, closed = await retired_token_keys(database, self.sealing)
        if closed:
            _LOG.error("retired_keys_do_not_open", retired=closed)
        current = self.sealing.ring.current
        if current in (*self._retired, *closed):
            await database.run(forget_retired(current))
        self.tokens += [key for key in self._good(self._retired) if key not in self.tokens]
        gates, names = await lost_gates(database, self.sealing.ring)
        self.has_lost_gates = gates > 0
        if gates:  # a backup from before a rotation: none of them sells, and nothing else shows it
            remedy = "put the lines of these keys back into the key file, below the first, and restart"
            _LOG.error("gates_do_not_open", gates=gates, missing=names, remedy=remedy)

    def seal_by(self, name: str) -> None:
        """Seal by this key of the ring, and make tokens by it: programs that share a database agree on one."""
        self._adopted_seconds = _ADOPTED_SECONDS
        ring = self.sealing.ring
        if name != ring.current:
            self.sealing.ring = KeyRing(current=name, keys=ring.keys)
            made = token_key(ring.keys[name])
            self.tokens[:] = [made, *(key for key in self.tokens if key != made)]
            _LOG.info("sealing_key", name=name)
        if name == self._wanted:
            self._seals.set()
        else:
            self._seals.clear()

    async def move_stored(self, database: Database) -> None:
        """Move what former keys sealed under the current one, and keep what made their tokens."""
        if not self._former:
            return
        resealing = Resealing(database, self.sealing)
        while True:
            await self._seals.wait()
            await asyncio.sleep(self._adopted_seconds)
            try:
                moved = await resealing.move_all()
                await database.run(keep_retired(self.sealing, self._former, clock_ms()))
            except StorageError as error:
                _LOG.warning("values_not_resealed", reason=error.message)
            except Exception:  # noqa: BLE001 - logged; the next round tries again
                _LOG.exception("values_not_resealed")
            else:
                _LOG.info("values_resealed", values=moved, former=[*self._former])
                if resealing.unopened:
                    _LOG.error("values_do_not_open", values=resealing.unopened)
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def revoke(self, key_id: str, database: Database) -> None:
        """End the tokens of a key that is retired. Raises: CONFLICT for the one in use; StorageError."""
        if key_id == self.sealing.ring.current:
            raise ApiError(Code.CONFLICT, f"{key_id} is the key in use")
        await database.run(forget_retired(key_id))
        self.end_tokens(key_id)

    def end_tokens(self, key_id: str) -> None:
        """Take no credit token and no link of this key any more."""
        self._revoked.add(key_id)
        made = self._retired.get(key_id) or self._former.get(key_id)
        if made in self.tokens:
            self.tokens.remove(made)
