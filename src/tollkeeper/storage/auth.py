"""Users, used login messages, sessions and refresh tokens as units of work (contract 6; security A-47 to A-52).

Each race is decided by one statement: a login message's nonce is inserted by the login that uses it, a refresh token is
marked by the refresh that uses it. Tokens are stored as hashes. The rules of texts and tokens are in `core`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import (
    ACCESS_TOKEN_LIFETIME_SECONDS,
    LOGIN_MESSAGE_LIFETIME_SECONDS,
    REFRESH_TOKEN_LIFETIME_SECONDS,
)
from tollkeeper.storage.engine.database import counted_together, load_queries, login_as_it_is, next_id, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.core.keys.siwe import LoginMessage
    from tollkeeper.storage.engine.database import Database, Row, Steps

# Twice as long as a message logs in: nodes' clocks may differ.
_USED_NONCE_KEPT_MS: Final = 2 * LOGIN_MESSAGE_LIFETIME_SECONDS * 1000
# For so long after its use an answer counts as lost, and a second presentation of a refresh token as honest.
_REFRESH_AGAIN_MS: Final = 10_000

_QUERIES: Final = load_queries("auth.sql")


@dataclass(frozen=True, slots=True)
class User:
    """A wallet that has logged in. `wallet` is as it is kept."""

    id: int
    wallet: str
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class Session:
    """A login in force. `wallet` is as it is kept; `issuer` is where it began, None where that was here."""

    user_id: int
    wallet: str
    session_id: str
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A login in force as its user sees it in a list."""

    session_id: str
    created_ms: int
    expires_ms: int


class Refreshed(Enum):
    """Outcomes of presenting a refresh token."""

    ROTATED = auto()
    REPEATED = auto()  # just now, and its successor is still unused
    REUSED = auto()  # its family has been ended
    REFUSED = auto()  # unknown, expired, or of a login that has ended


@unit_of_work
def log_in(message: LoginMessage, session_id: str, refresh_digest: bytes, now_ms: int) -> Steps[User | None]:
    """Use up a signed message of ours and begin a session of the wallet's user, who is made where there is none.

    None where the message has logged somebody in before.
    """
    yield _QUERIES.sweep_nonces(now_ms=now_ms)
    kept_until_ms = message.issued_ms + _USED_NONCE_KEPT_MS
    if not (yield _QUERIES.use_nonce(nonce=message.nonce, expires_ms=kept_until_ms)):
        return None
    yield from _sweep(now_ms)
    yield counted_together(f"wallet:{message.wallet}")
    rows = yield _QUERIES.touch_user(wallet=message.wallet, now_ms=now_ms)
    user = _user(rows[0]) if rows else (yield from _add_user(message.wallet, now_ms))
    expires_ms = now_ms + REFRESH_TOKEN_LIFETIME_SECONDS * 1000
    yield _QUERIES.add_session(id=session_id, user_id=user.id, now_ms=now_ms, expires_ms=expires_ms)
    yield _QUERIES.add_refresh_token(digest=refresh_digest, session_id=session_id, expires_ms=expires_ms)
    return user


@unit_of_work
def admit(wallet: str, now_ms: int) -> Steps[User]:
    """The user of a wallet that logged in elsewhere, who is made where there is none."""
    yield counted_together(f"wallet:{wallet}")
    rows = yield _QUERIES.read_user_of(wallet=wallet)
    return _user(rows[0]) if rows else (yield from _add_user(wallet, now_ms))


@unit_of_work
def rotate_refresh_token(digest: bytes, new_digest: bytes, now_ms: int) -> Steps[tuple[Refreshed, Session | None]]:
    """Use up one refresh token and give its session another; the session is returned where it goes on.

    A token that was used before ends its session, with everything that descends from that login, unless that was just
    now and the successor was not used yet: then an answer was lost, and the session goes on by that successor.
    """
    yield from _sweep(now_ms)
    used = yield _QUERIES.use_refresh_token(digest=digest, now_ms=now_ms)
    if not used:
        known = yield _QUERIES.read_used_refresh_token(digest=digest)
        if not known:
            return Refreshed.REFUSED, None
        since_ms = now_ms - _REFRESH_AGAIN_MS
        rows = yield _QUERIES.read_session_again(digest=digest, successor=new_digest, since_ms=since_ms)
        if rows:
            return Refreshed.REPEATED, _session(rows[0])
        yield _QUERIES.end_session(id=known[0]["session_id"], now_ms=now_ms)
        return Refreshed.REUSED, None
    session_id = used[0]["session_id"]
    expires_ms = now_ms + REFRESH_TOKEN_LIFETIME_SECONDS * 1000
    if not (yield _QUERIES.extend_session(id=session_id, expires_ms=expires_ms)):
        return Refreshed.REFUSED, None
    yield _QUERIES.add_refresh_token(digest=new_digest, session_id=session_id, expires_ms=expires_ms)
    rows = yield _QUERIES.read_session(id=session_id)
    return Refreshed.ROTATED, _session(rows[0])


@unit_of_work
def end_session(session_id: str, now_ms: int) -> Steps[None]:
    """End a login; ending it again does nothing."""
    yield _QUERIES.end_session(id=session_id, now_ms=now_ms)


async def read_session(database: Database, session_id: str) -> Session | None:
    """The login of that id while it is in force."""
    rows = await database.read(_QUERIES.read_session(id=session_id))
    return _session(rows[0]) if rows else None


@unit_of_work
def is_in_force(session_id: str) -> Steps[bool]:
    """Say within a unit whether that login was not ended; from then on it is not until the unit ends."""
    yield login_as_it_is(session_id)
    return bool((yield _QUERIES.read_session(id=session_id)))


async def read_sessions(database: Database, user_id: int, now_ms: int) -> list[ListedSession]:
    """Return a user's logins in force, newest first."""
    rows = await database.read(_QUERIES.sessions_of_user(user_id=user_id, now_ms=now_ms))
    return [ListedSession(row["id"], row["created_ms"], row["expires_ms"]) for row in rows]


async def read_user(database: Database, user_id: int) -> User | None:
    """The user of that id."""
    rows = await database.read(_QUERIES.read_user(id=user_id))
    return _user(rows[0]) if rows else None


async def read_user_of(database: Database, wallet: str) -> User | None:
    """The user of that wallet."""
    rows = await database.read(_QUERIES.read_user_of(wallet=wallet))
    return _user(rows[0]) if rows else None


@unit_of_work
def _add_user(wallet: str, now_ms: int) -> Steps[User]:
    user_id = yield from next_id("users")
    rows = yield _QUERIES.add_user(id=user_id, wallet=wallet, now_ms=now_ms)
    return _user(rows[0])


@unit_of_work
def _sweep(now_ms: int) -> Steps[None]:
    yield _QUERIES.sweep_refresh_tokens(now_ms=now_ms)
    yield _QUERIES.sweep_sessions(now_ms=now_ms - ACCESS_TOKEN_LIFETIME_SECONDS * 1000)


def _session(row: Row) -> Session:
    return Session(row["user_id"], row["wallet"], row["id"])


def _user(row: Row) -> User:
    return User(row["id"], row["wallet"], row["created_ms"], row["updated_ms"])
