"""What strangers can make the database keep: nothing but logins, and of those so much that a bound says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.auth.server import Client, Wallet, bearer
from tests.engines import IS_POSTGRESQL, beside, tables_of
from tollkeeper.core.keys.tokens import format_refresh_token

REQUESTS = 1_000  # what leaves nothing after so many leaves nothing after 10,000
LOGINS = 250
AT_ONCE = 50
SIZE = "SELECT page_count * page_size AS n FROM pragma_page_count, pragma_page_size"
# What 10,000 logins may leave, each of a wallet of its own. They are swept a week later, but for the wallets.
LOGINS_SIZE_MAX_BYTES = 8_000_000

Call = tuple[str, str, dict[str, Any]]


def kept(path: Path) -> dict[str, int]:
    """How many rows each table has, and the size of SQLite's file."""
    found = {}
    with beside(path) as books:
        if not IS_POSTGRESQL:
            ((found["bytes"],),) = books.execute(SIZE)
        for table in tables_of(books):
            ((found[table],),) = books.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
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
async def test_no_refused_or_anonymous_request_leaves_anything(client: Client, tmp_path: Path, asked: str) -> None:
    wallet = Wallet()
    message = (await client.send("GET", "/api/v1/auth/message", params={"walletAddress": wallet.address}))[1]["message"]
    used = {"message": message, "signature": wallet.sign(message)}
    assert (await client.send("POST", "/api/v1/auth/login", json=used))[0] == 200
    before = kept(tmp_path / "auth.db")

    async def one(number: int) -> None:
        method, path, given = calls(number, used)[asked]
        status, _ = await client.send(method, f"/api/v1/auth/{path}", **given)
        assert status == {"message": 200, "introspect": 200}.get(asked, 401)

    await many(REQUESTS, one)
    assert kept(tmp_path / "auth.db") == before


@pytest.mark.sqlite_only("it measures its file")
async def test_logins_of_invented_wallets_leave_so_much_and_no_more(client: Client, tmp_path: Path) -> None:
    before = (kept(tmp_path / "auth.db"))["bytes"]
    await many(LOGINS, lambda _: client.login(Wallet()))
    grown = (kept(tmp_path / "auth.db"))["bytes"] - before
    assert grown * 10_000 // LOGINS <= LOGINS_SIZE_MAX_BYTES
