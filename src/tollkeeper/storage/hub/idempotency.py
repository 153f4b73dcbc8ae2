"""Callers' idempotency keys as rows (contract 5.2): a key belongs to its owner, and to one request.

So nobody can take another's key. It shows the outcome of an attempt, for ever, or the refusal that was recorded with
it, for a day: nothing was started for that one. Who an owner is, and what a caller is told, is decided in `hub`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import REFUSALS_KEPT_SECONDS
from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.storage.engine.database import Database, Statement, Steps

_QUERIES: Final = load_queries("idempotency.sql")
_FORGOTTEN_AT_ONCE: Final = 500  # a few milliseconds of the writer's time


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key of that owner's and the request that it belongs to (`fingerprint`). None holds a space.

    `other`: whose key the very same request had where its signature was judged otherwise. It has one outcome.
    """

    owner: str
    key: str
    fingerprint: str
    other: str = ""

    @property
    def names(self) -> JsonObject:
        """Names of the key as it is stored, by the owner and by the other."""
        return {"key": f"{self.owner} {self.key}", "other": f"{self.other} {self.key}"}


@dataclass(frozen=True, slots=True)
class KnownKey:
    """Record of a key: the outcome of an attempt, or the answer recorded with it."""

    fingerprint: str
    settlement_id: str | None
    attempt: int | None
    answer: JsonObject | None


async def find_key(database: Database, key: IdempotencyKey) -> KnownKey | None:
    """Find the record that an idempotency key is bound to."""
    rows = await database.read(_QUERIES.find_key(**key.names, fingerprint=key.fingerprint), is_short=True)
    if not rows:
        return None
    row = rows[0]
    answer = None if row["answer"] is None else json.loads(row["answer"])
    return KnownKey(row["fingerprint"], row["settlement_id"], row["attempt"], answer)


@unit_of_work
def record_answer(
    key: IdempotencyKey, answer: JsonObject, now_ms: int, failed: tuple[str, int] | None = None
) -> Steps[bool]:
    """Remember what the request of this key was answered; False where it is bound already, and stays as it is.

    `failed`: the settlement and attempt that had failed by then; were that taken back, the key shows what came of it.
    """
    settlement_id, attempt = failed or (None, None)
    return bool((yield bind_key(key, settlement_id, attempt, now_ms, json.dumps(answer))))


async def forget_old_refusals(database: Database, now_ms: int) -> int:
    """Forget every refusal whose time is over, in short units; how many there were. Raises: StorageError.

    An attempt's outcome stays, whatever it is: the key of what was signed never starts anything again.
    """
    before_ms, forgotten = now_ms - REFUSALS_KEPT_SECONDS * 1000, 0
    while count := await database.run(forget_refusals(before_ms)):
        forgotten += count
        if count < _FORGOTTEN_AT_ONCE:
            break
    return forgotten


@unit_of_work
def forget_refusals(before_ms: int) -> Steps[int]:
    """Some of those that were recorded at this time or before; how many."""
    rows = yield _QUERIES.forget_refusals(before_ms=before_ms, limit=_FORGOTTEN_AT_ONCE)
    return len(rows)


def bind_key(
    key: IdempotencyKey, settlement_id: str | None, attempt: int | None, now_ms: int, answer: str | None = None
) -> Statement:
    """Let the key show that attempt's outcome, or this answer; return a row where it was free."""
    return _QUERIES.add_key(
        **key.names,
        fingerprint=key.fingerprint,
        settlement_id=settlement_id,
        attempt=attempt,
        answer=answer,
        now_ms=now_ms,
    )


def free_key(key: IdempotencyKey) -> Statement:
    """Take back what `bind_key` did in the same unit."""
    return _QUERIES.drop_key(key=key.names["key"])


def keep_failure(settlement_id: str, attempt: int, answer: str) -> Statement:
    """Keep a failed attempt's outcome with its keys: the row will show the next attempt's."""
    return _QUERIES.settle_keys(settlement_id=settlement_id, attempt=attempt, answer=answer)


def forget_failure(settlement_id: str, attempt: int) -> Statement:
    """Lets the keys show the row again."""
    return _QUERIES.reopen_keys(settlement_id=settlement_id, attempt=attempt)
