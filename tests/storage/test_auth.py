"""Users, login messages, sessions and refresh tokens in the database."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tollkeeper.storage import Statement, Unit, load_queries, open_database
from tollkeeper.storage import auth as store
from tollkeeper.storage.sqlite import SqliteDatabase

WALLET = "0x" + 40 * "a"
OTHER = "0x" + 40 * "b"
DAY_MS = 24 * 3600 * 1000


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    opened = open_database(str(tmp_path / "db"))
    yield opened
    await opened.close()


async def count(database: SqliteDatabase, table: str) -> int:
    rows = await database.read(Statement(f"SELECT count(*) AS n FROM {table}"))  # noqa: S608 - the test's own names
    n: int = rows[0]["n"]
    return n


async def log_in(database: SqliteDatabase, name: str, now_ms: int = 0) -> store.User:
    await database.run(store.issue_message(digest(name), WALLET, now_ms + 1, now_ms))
    user = await database.run(store.log_in(digest(name), WALLET, f"session {name}", digest(f"refresh {name}"), now_ms))
    assert user is not None
    return user


def issue_many(first: int, last: int, now_ms: int) -> Unit[None]:
    for number in range(first, last):
        yield from store.issue_message(digest(f"message {number}"), WALLET, now_ms + 300_000, now_ms)


async def test_every_query_is_sql_that_the_database_takes(database: SqliteDatabase) -> None:
    for file in ("auth.sql", "sequences.sql"):
        for query in load_queries(file):
            params: dict[str, int | str | bytes | None] = dict.fromkeys(query.parameters)
            await database.read(Statement(f"EXPLAIN {query.sql}", params))


@pytest.mark.parametrize(
    ("message", "wallet", "now_ms"),
    [("other", WALLET, 0), ("message", OTHER, 0), ("message", WALLET, 1000), ("message", WALLET, 1001)],
)
async def test_only_the_issued_message_of_that_wallet_logs_in_before_its_end(
    database: SqliteDatabase, message: str, wallet: str, now_ms: int
) -> None:
    await database.run(store.issue_message(digest("message"), WALLET, 1000, 0))
    assert await database.run(store.log_in(digest(message), wallet, "s", digest("r"), now_ms)) is None
    assert await count(database, "users") == await count(database, "sessions") == 0
    assert await database.run(store.log_in(digest("message"), WALLET, "s", digest("r"), 999)) is not None
    assert await database.run(store.log_in(digest("message"), WALLET, "s2", digest("r2"), 999)) is None


async def test_a_million_messages_would_leave_a_bounded_table(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap is a number of rows: a smaller one shows the same."""
    monkeypatch.setattr(store, "OUTSTANDING_MESSAGES_MAX", 1000)
    for first in range(0, 5000, 500):
        await database.run(issue_many(first, first + 500, now_ms=first))
        assert await count(database, "login_messages") <= 1000
    newest, oldest = digest("message 4999"), digest("message 0")
    assert await database.run(store.log_in(oldest, WALLET, "s", digest("r"), 5000)) is None
    assert await database.run(store.log_in(newest, WALLET, "s", digest("r"), 5000)) is not None


async def test_expired_messages_are_swept(database: SqliteDatabase) -> None:
    await database.run(issue_many(0, 300, now_ms=0))
    await database.run(issue_many(300, 310, now_ms=300_000))
    assert await count(database, "login_messages") == 10


async def test_a_rotated_token_belongs_to_the_same_login_and_works_once(database: SqliteDatabase) -> None:
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


async def test_an_unknown_or_expired_token_ends_nothing(database: SqliteDatabase) -> None:
    await log_in(database, "a")
    for token, now_ms in (("unknown", 1), ("refresh a", 7 * DAY_MS)):
        outcome, _ = await database.run(store.rotate_refresh_token(digest(token), digest("new"), now_ms))
        assert outcome is store.Refreshed.REFUSED
    assert await store.read_session(database, "session a") is not None


async def test_ending_a_session_twice_keeps_the_first_time(database: SqliteDatabase) -> None:
    await log_in(database, "a")
    await database.run(store.end_session("session a", 5))
    await database.run(store.end_session("session a", 9))
    assert await database.read(Statement("SELECT ended_ms FROM sessions")) == [{"ended_ms": 5}]


async def test_what_has_expired_is_swept_in_passing(database: SqliteDatabase) -> None:
    for number in range(40):
        await log_in(database, f"old {number}")
    for number in range(5):
        await log_in(database, f"new {number}", now_ms=8 * DAY_MS + number)
    assert await count(database, "sessions") == await count(database, "refresh_tokens") == 5
    assert await count(database, "users") == 1


async def test_tokens_and_messages_are_stored_as_hashes_only(database: SqliteDatabase) -> None:
    await log_in(database, "a")
    for table in ("login_messages", "refresh_tokens"):
        for row in await database.read(Statement(f"SELECT * FROM {table}")):  # noqa: S608 - the test's own names
            assert len(row["digest"]) == 32


async def test_an_unknown_user_or_session_is_none(database: SqliteDatabase) -> None:
    assert await store.read_user(database, 1) is None
    assert await store.read_session(database, "x") is None
