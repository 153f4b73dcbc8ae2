"""Creates with an Idempotency-Key: the first one's answer, kept for a day and sealed, in the gate's own commit.

A key is its caller's own (`scope`): a wallet, or nobody in particular. What is compared and who may ask is decided by
whoever creates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import place
from tollkeeper.core.limits import IDEMPOTENCY_KEPT_SECONDS
from tollkeeper.storage.engine.database import counted_together, load_queries, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.core.keys.sealing import Sealing
    from tollkeeper.storage.engine.database import Database, Row, Steps

_Q: Final = load_queries("gateway.sql")


@dataclass(frozen=True, slots=True)
class CreationKey:
    """A caller's key, and a digest of the request that it stands for."""

    scope: str
    key: str
    fingerprint: str

    @property
    def place(self) -> bytes:
        """Place that the answer is sealed to."""
        return place("creations", creation_row(self.scope, self.key), "answer")


def creation_row(scope: str, key: str) -> str:
    """The name of a row, from which its place is made: scope and key may be any text."""
    return hashlib.sha256(f"{scope}|{key}".encode()).hexdigest()


class CreatedBeforeError(Exception):
    """The request was carried out; `answer` is what it was answered."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("this was created before")
        self.answer = answer


class Creations:
    """Answers of creates in one database."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    async def find(self, database: Database, key: CreationKey, now_ms: int) -> bytes | None:
        """The answer of an earlier request with this key. Raises: CONFLICT where that was another request."""
        rows = await database.read(_Q.find_creation(scope=key.scope, key=key.key, since_ms=_since(now_ms)))
        return self._answer(key, rows[0]) if rows else None

    @unit_of_work
    def check(self, key: CreationKey, now_ms: int) -> Steps[None]:
        """Go before the create, in its unit; another one with this key waits for it.

        Raises: CreatedBeforeError, CONFLICT as `find`.
        """
        yield counted_together(f"creation:{key.scope}:{key.key}")
        yield _Q.forget_creation(scope=key.scope, key=key.key, since_ms=_since(now_ms))
        yield _Q.forget_creations(since_ms=_since(now_ms))
        rows = yield _Q.find_creation(scope=key.scope, key=key.key, since_ms=_since(now_ms))
        if rows:
            raise CreatedBeforeError(self._answer(key, rows[0]))

    @unit_of_work
    def keep(self, key: CreationKey, answer: bytes, now_ms: int) -> Steps[None]:
        """Go behind the create, in its unit."""
        sealed = self._sealing.seal(answer, key.place)
        yield _Q.insert_creation(
            scope=key.scope, key=key.key, fingerprint=key.fingerprint, answer=sealed, now_ms=now_ms
        )

    def _answer(self, key: CreationKey, row: Row) -> bytes:
        if row["fingerprint"] != key.fingerprint:
            raise ApiError(Code.CONFLICT, "this Idempotency-Key came with another request before")
        return self._sealing.unseal(row["answer"], key.place)


def _since(now_ms: int) -> int:
    return now_ms - IDEMPOTENCY_KEPT_SECONDS * 1000
