"""Users, used login messages, sessions and refresh tokens in the database."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tollkeeper.core.keys.siwe import LoginMessage
from tollkeeper.storage import auth as store
from tollkeeper.storage.engine.database import Database, Statement, load_queries
from tollkeeper.storage.urls import open_database

WALLET = "0x" + 40 * "a"
DAY_MS = 24 * 3600 * 1000


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = open_database(str(tmp_path / "db"))
    yield opened
    await opened.close()


async def count(database: Database, table: str) -> int:
    rows = await database.read(Statement(f"SELECT count(*) AS n FROM {table}"))  # noqa: S608 - the test's own names
    n: int = rows[0]["n"]
    return n


def message(nonce: str, issued_ms: int = 0, wallet: str = WALLET) -> LoginMessage:
    return LoginMessage("http://gate.example", wallet, "8453", nonce, issued_ms)


async def log_in(database: Database, name: str, now_ms: int = 0) -> store.User:
    refresh = digest(f"refresh {name}")
    user = await database.run(store.log_in(message(name, now_ms), f"session {name}", refresh, now_ms))
    assert user is not None
    return user


async def test_every_query_is_sql_that_the_database_takes(database: Database) -> None:
    for file in ("auth.sql", "sequences.sql"):
        for query in load_queries(file):
            params: dict[str, int | str | bytes | None] = dict.fromkeys(query.parameters)
            await database.read(Statement(f"EXPLAIN {query.sql}", params))


async def test_a_message_logs_in_once_as_long_as_it_could_log_in(database: Database) -> None:
    assert await database.run(store.log_in(message("nonce"), "s", digest("r"), 1)) is not None
    for now_ms in (1, 300_000, 599_999):
        await log_in(database, f"other {now_ms}", now_ms)
        assert await database.run(store.log_in(message("nonce"), "s2", digest("r2"), now_ms)) is None
    assert await count(database, "sessions") == 4


async def test_used_nonces_are_swept(database: Database) -> None:
    for number in range(70):
        await log_in(database, f"old {number}")
    for number in range(3):
        await log_in(database, f"new {number}", now_ms=600_000)
    assert await count(database, "used_login_nonces") == 3


async def test_a_rotated_token_belongs_to_the_same_login_and_works_once(database: Database) -> None:
    user = await log_in(database, "a")
    outcome, session = await database.run(store.rotate_refresh_token(digest("refresh a"), digest("second"), 1))
    assert (outcome, session) == (store.Refreshed.ROTATED, store.Session(user.id, WALLET, "session a"))
    outcome, session = await database.run(store.rotate_refresh_token(digest("second"), digest("third"), 2))
    assert outcome is store.Refreshed.ROTATED
    outcome, session = await database.run(store.rotate_refresh_token(digest("second"), digest("fourth"), 3))
    assert (outcome, session) == (store.Refreshed.REUSED, None)
    assert await store.read_session(database, "session a") is None
    outcome, session = await database.run(store.rotate_refresh_token(digest("third"), digest("fifth"), 4))
    assert (outcome, session) == (store.Refreshed.REFUSED, None)


async def test_a_token_used_just_now_goes_on_by_the_successor_that_it_was_given(database: Database) -> None:
    user = await log_in(database, "a")
    await database.run(store.rotate_refresh_token(digest("refresh a"), digest("second"), 1))
    again = await database.run(store.rotate_refresh_token(digest("refresh a"), digest("second"), 10_000))
    assert again == (store.Refreshed.REPEATED, store.Session(user.id, WALLET, "session a"))
    late = await database.run(store.rotate_refresh_token(digest("refresh a"), digest("second"), 10_001))
    assert late == (store.Refreshed.REUSED, None)


async def test_an_unknown_or_expired_token_ends_nothing(database: Database) -> None:
    await log_in(database, "a")
    for token, now_ms in (("unknown", 1), ("refresh a", 7 * DAY_MS)):
        outcome, _ = await database.run(store.rotate_refresh_token(digest(token), digest("new"), now_ms))
        assert outcome is store.Refreshed.REFUSED
    assert await store.read_session(database, "session a") is not None


async def test_ending_a_session_twice_keeps_the_first_time(database: Database) -> None:
    await log_in(database, "a")
    await database.run(store.end_session("session a", 5))
    await database.run(store.end_session("session a", 9))
    assert await database.read(Statement("SELECT ended_ms FROM sessions")) == [{"ended_ms": 5}]


async def test_what_has_expired_is_swept_in_passing(database: Database) -> None:
    for number in range(40):
        await log_in(database, f"old {number}")
    for number in range(5):
        await log_in(database, f"new {number}", now_ms=8 * DAY_MS + number)
    assert await count(database, "sessions") == await count(database, "refresh_tokens") == 5
    assert await count(database, "users") == 1


async def test_tokens_are_stored_as_hashes_only(database: Database) -> None:
    await log_in(database, "a")
    for row in await database.read(Statement("SELECT * FROM refresh_tokens")):
        assert len(row["digest"]) == 32


async def test_an_unknown_user_or_session_is_none(database: Database) -> None:
    assert await store.read_user(database, 1) is None
    assert await store.read_session(database, "x") is None
