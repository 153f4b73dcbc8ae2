"""What strangers can make the database keep: nothing but logins, and of those so much that a bound says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.auth.server import Client, Wallet, bearer
from tollkeeper.core.keys.tokens import format_refresh_token
from tollkeeper.storage.engine.database import Statement
from tollkeeper.storage.sqlite.engine import SqliteDatabase

REQUESTS = 1_000  # what leaves nothing after so many leaves nothing after 10,000
LOGINS = 250
AT_ONCE = 50
SIZE = "SELECT page_count * page_size AS n FROM pragma_page_count, pragma_page_size"
# What 10,000 logins may leave, each of a wallet of its own. They are swept a week later, but for the wallets.
LOGINS_SIZE_MAX_BYTES = 8_000_000

Call = tuple[str, str, dict[str, Any]]


async def kept(database: SqliteDatabase) -> dict[str, int]:
    """How many rows each table has, and the size of the file."""
    (size,) = await database.read(Statement(SIZE))
    found = {"bytes": size["n"]}
    for table in await database.read(Statement("SELECT name FROM sqlite_master WHERE type = 'table'")):
        (counted,) = await database.read(Statement(f"SELECT count(*) AS n FROM {table['name']}"))  # noqa: S608
        found[table["name"]] = counted["n"]
    return found


async def many(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(first, first + AT_ONCE)))


def calls(number: int, used: dict[str, str]) -> dict[str, Call]:
    """What a stranger sends: no two of them alike where that makes a difference."""
    forged = {**used, "message": used["message"].replace("Nonce: ", f"Nonce: {number}")}
    token = format_refresh_token(number.to_bytes(32))
    return {
        "message": ("GET", "message", {"params": {"walletAddress": f"0x{number:040x}"}}),
        "login": ("POST", "login", {"json": forged}),
        "login again": ("POST", "login", {"json": used}),
        "refresh": ("POST", "refresh", {"json": {"refreshToken": token}}),
        "introspect": ("POST", "introspect", {"json": {"token": f"token {number}"}}),
        "me": ("GET", "me", {"headers": bearer(f"token-{number}")}),
        "logout": ("POST", "logout", {"headers": bearer(f"token-{number}")}),
    }


@pytest.mark.parametrize("asked", ["message", "login", "login again", "refresh", "introspect", "me", "logout"])
async def test_no_refused_or_anonymous_request_leaves_anything(
    client: Client, database: SqliteDatabase, asked: str
) -> None:
    wallet = Wallet()
    message = (await client.send("GET", "/api/v1/auth/message", params={"walletAddress": wallet.address}))[1]["message"]
    used = {"message": message, "signature": wallet.sign(message)}
    assert (await client.send("POST", "/api/v1/auth/login", json=used))[0] == 200
    before = await kept(database)

    async def one(number: int) -> None:
        method, path, given = calls(number, used)[asked]
        status, _ = await client.send(method, f"/api/v1/auth/{path}", **given)
        assert status == {"message": 200, "introspect": 200}.get(asked, 401)

    await many(REQUESTS, one)
    assert await kept(database) == before


async def test_logins_of_invented_wallets_leave_so_much_and_no_more(client: Client, database: SqliteDatabase) -> None:
    before = (await kept(database))["bytes"]
    await many(LOGINS, lambda _: client.login(Wallet()))
    grown = (await kept(database))["bytes"] - before
    assert grown * 10_000 // LOGINS <= LOGINS_SIZE_MAX_BYTES
