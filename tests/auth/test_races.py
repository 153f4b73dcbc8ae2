"""Many callers at one moment: one message logs in once, one refresh token goes on once."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.auth.server import PUBLIC_URL, Client, Clock, Wallet, bearer, issuer
from tollkeeper.auth import Auth, Login, TokenPair
from tollkeeper.auth.bodies import Introspection
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.storage.engine.database import Database, Statement


async def test_a_hundred_logins_with_one_message_are_one_login(client: Client, database: Database) -> None:
    wallet = Wallet()
    _, body = await client.send("GET", "/api/v1/auth/message", params={"walletAddress": wallet.address})
    signed = {"message": body["message"], "signature": wallet.sign(body["message"])}
    answers = await asyncio.gather(*(client.send("POST", "/api/v1/auth/login", json=signed) for _ in range(100)))
    assert Counter(status for status, _ in answers) == {200: 1, 401: 99}
    assert {body["error"]["code"] for status, body in answers if status == 401} == {"INVALID_SIGNATURE"}
    assert await database.read(Statement("SELECT count(*) AS n FROM sessions")) == [{"n": 1}]


async def test_a_hundred_first_logins_of_one_wallet_make_one_user(auth: Auth) -> None:
    wallet = Wallet()
    messages = [auth.message(wallet.address) for _ in range(100)]
    logins = await asyncio.gather(*(auth.login(message, wallet.sign(message)) for message in messages))
    assert {login.user.id for login in logins} == {1}


async def test_fifty_refreshes_with_one_token_go_on_in_one_line(client: Client, database: Database) -> None:
    login = await client.login(Wallet())
    path, token = "/api/v1/auth/refresh", {"refreshToken": login["refreshToken"]}
    answers = await asyncio.gather(*(client.send("POST", path, json=token) for _ in range(50)))
    assert Counter(status for status, _ in answers) == {200: 50}
    (successor,) = {body["refreshToken"] for _, body in answers}
    for _, pair in answers:
        status, _ = await client.send("GET", "/api/v1/auth/me", headers=bearer(pair["accessToken"]))
        assert status == 200
    status, _ = await client.send("POST", path, json={"refreshToken": successor})
    assert status == 200
    rows = await database.read(Statement("SELECT count(*) AS n FROM refresh_tokens WHERE used_ms IS NULL"))
    assert rows == [{"n": 1}]


async def test_a_refresh_racing_a_logout_never_outlives_it(auth: Auth) -> None:
    for _ in range(20):
        wallet = Wallet()
        message = auth.message(wallet.address)
        login: Login = await auth.login(message, wallet.sign(message))
        session = await auth.authenticate(login.tokens.access_token)
        refreshing = asyncio.create_task(auth.refresh(login.tokens.refresh_token))
        await auth.logout(session)
        (outcome,) = await asyncio.gather(refreshing, return_exceptions=True)
        if isinstance(outcome, TokenPair):
            assert await auth.introspect(outcome.access_token) == Introspection(active=False)
        else:
            assert isinstance(outcome, ApiError)
            assert outcome.code is Code.INVALID_TOKEN


async def test_two_parts_with_issuers_of_their_own_do_not_take_each_others_tokens(
    database: Database, clock: Clock
) -> None:
    gateway = issuer(database, clock)
    hub = issuer(database, clock, public_url=PUBLIC_URL + "/hub")
    wallet = Wallet()
    message = gateway.message(wallet.address)
    login = await gateway.login(message, wallet.sign(message))
    assert await hub.introspect(login.tokens.access_token) == Introspection(active=False)
