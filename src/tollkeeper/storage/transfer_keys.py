"""Rows of direct transfers' keys.

The next key of a request that was refused, what a caller's key came with first, of whom and when a transfer was asked.

They are kept for thirty days. What a key is made of, and when it is renewed, is decided in `gateway.transfer_keys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import TRANSFER_KEYS_KEPT_SECONDS
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from tollkeeper.storage.database import Database, Statement, Unit

_Q: Final = load_queries("transfer_keys.sql")


async def key_of(database: Database, name: str) -> str | None:
    """The key that is kept under a name."""
    rows = await database.read(_Q.find_key(name=name))
    return rows[0]["key"] if rows else None


def renew_key(name: str, former: str, key: str, now_ms: int) -> Unit[str]:
    """Let `key` follow on `former`; the key that holds from now on, which is another's where that one was faster."""
    return _held(name, _Q.renew_key(name=name, former=former, key=key, now_ms=now_ms), now_ms)


def bind_key(name: str, key: str, now_ms: int) -> Unit[str]:
    """Keep `key` under a name that has none; the key that is there."""
    return _held(name, _Q.bind_key(name=name, key=key, now_ms=now_ms), now_ms)


def is_kept(name: str, key: str) -> Unit[bool]:
    """Is it this key that is kept under the name?"""
    rows = yield _Q.find_key(name=name)
    return bool(rows) and rows[0]["key"] == key


def keep_key(name: str, key: str, now_ms: int) -> Unit[None]:
    """Keep `key` under a name that has none."""
    yield from _forget(name, now_ms)
    yield _Q.keep_key(name=name, key=key, now_ms=now_ms)


def drop_key(name: str, key: str) -> Unit[None]:
    """Keep this key under the name no more."""
    yield _Q.drop_key(name=name, key=key)


def _held(name: str, change: Statement, now_ms: int) -> Unit[str]:
    yield from _forget(name, now_ms)
    rows = yield change
    if not rows:
        rows = yield _Q.find_key(name=name)
    held: str = rows[0]["key"]
    return held


def _forget(name: str, now_ms: int) -> Unit[None]:
    since_ms = now_ms - TRANSFER_KEYS_KEPT_SECONDS * 1000
    yield _Q.forget_key(name=name, since_ms=since_ms)
    yield _Q.forget_keys(since_ms=since_ms)
