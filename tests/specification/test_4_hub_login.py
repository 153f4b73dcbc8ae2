"""Specification 4.2: the hub's authentication operations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tests.specification.client import Answer, Json, Wallet
from tests.specification.program import bearer_header
from tests.specification.rows import row
from tests.specification.world import World

AUTH = "/api/v1/auth"


async def message_of(world: World, address: str) -> Answer:
    return await world.hub("GET", f"{AUTH}/message", params={"walletAddress": address})


async def me(world: World, token: str | None) -> Answer:
    return await world.hub("GET", f"{AUTH}/me", headers=bearer_header(token))


@row("4.2-message")
async def test_message_is_for_the_wallet_address_of_the_query(world: World) -> None:
    wallet = Wallet()
    answer = await message_of(world, wallet.address)
    assert answer.status == 200
    assert answer.body.keys() == {"message", "apiVersion", "timestamp"}
    for spelling in (wallet.address, wallet.address.lower(), "0x" + wallet.address[2:].upper()):
        assert wallet.address in (await message_of(world, spelling)).body["message"]
    for query in ({}, {"walletAddress": ""}):
        refused = await world.hub("GET", f"{AUTH}/message", params=query)
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")
    for wrong in ("0x12", "me", wallet.address[2:]):
        assert (await message_of(world, wrong)).refusal == (400, "INVALID_ADDRESS", "validation")


@row("4.2-message-text")
async def test_the_text_is_that_of_eip_4361(world: World) -> None:
    wallet = Wallet()
    text = (await message_of(world, wallet.address)).body["message"]
    host = world.gateway_url.removeprefix("http://")
    found = re.fullmatch(
        rf"{re.escape(host)} wants you to sign in with your Ethereum account:\n"
        rf"{wallet.address}\n\n[^\n]+\n\n"
        rf"URI: {re.escape(world.gateway_url)}\n"
        r"Version: 1\n"
        r"Chain ID: (?P<chain>[0-9]+)\n"
        r"Nonce: (?P<nonce>[A-Za-z0-9]{8,})\n"
        r"Issued At: (?P<issued>[^\n]+)\n"
        r"Expiration Time: (?P<expires>[^\n]+)",
        text,
    )
    assert found, text
    assert found["chain"] == "84532"
    issued, expires = (datetime.fromisoformat(found[name]) for name in ("issued", "expires"))
    assert abs(datetime.now(UTC) - issued) < timedelta(seconds=10)
    assert expires - issued == timedelta(minutes=5)
    assert f"Nonce: {found['nonce']}" not in (await message_of(world, wallet.address)).body["message"]


@row("4.2-login")
async def test_login_takes_message_and_signature(world: World) -> None:
    wallet, thief = Wallet(), Wallet()
    message = (await message_of(world, wallet.address)).body["message"]
    proof = {"message": message, "signature": wallet.sign_text(message)}
    for name in proof:
        refused = await world.hub("POST", f"{AUTH}/login", json={**proof, name: None})
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")
    stolen = {**proof, "signature": thief.sign_text(message)}
    assert (await world.hub("POST", f"{AUTH}/login", json=stolen)).status == 401
    answer = await world.hub("POST", f"{AUTH}/login", json=proof)
    assert answer.status == 200
    assert answer.body.keys() == {"accessToken", "refreshToken", "user", "apiVersion", "timestamp"}
    assert all(isinstance(answer.body[name], str) for name in ("accessToken", "refreshToken"))
    assert answer.body["user"]["walletAddress"] == wallet.address


async def refreshed(world: World, body: Json) -> Answer:
    return await world.hub("POST", f"{AUTH}/refresh", json=body)


@row("4.2-refresh")
async def test_refresh_gives_a_new_pair(world: World) -> None:
    pair = await world.login(Wallet())
    answer = await refreshed(world, {"refreshToken": pair["refreshToken"]})
    assert answer.status == 200
    assert answer.body.keys() == {"accessToken", "refreshToken", "apiVersion", "timestamp"}
    for name in ("accessToken", "refreshToken"):
        assert isinstance(answer.body[name], str)
        assert answer.body[name] != pair[name]
    assert (await me(world, answer.body["accessToken"])).status == 200
    assert (await refreshed(world, {})).refusal == (400, "MISSING_PARAMETER", "validation")
    assert (await refreshed(world, {"refreshToken": "x"})).refusal == (401, "INVALID_TOKEN", "authentication")


@row("4.2-current-user")
async def test_current_user_is_the_bearers(world: World) -> None:
    pair = await world.login(Wallet())
    answer = await me(world, pair["accessToken"])
    assert (answer.status, answer.body["user"]) == (200, pair["user"])
    assert {name: answer.body[name] for name in pair["user"]} == pair["user"]
    assert (await me(world, None)).refusal == (401, "AUTH_REQUIRED", "authentication")
    assert (await me(world, "x")).refusal == (401, "INVALID_TOKEN", "authentication")


@row("4.2-logout")
async def test_logout_ends_the_bearers_login(world: World) -> None:
    pair = await world.login(Wallet())
    assert (await world.hub("POST", f"{AUTH}/logout")).refusal == (401, "AUTH_REQUIRED", "authentication")
    answer = await world.hub("POST", f"{AUTH}/logout", headers=bearer_header(pair["accessToken"]))
    assert (answer.status, answer.body["success"]) == (200, True)
    assert answer.body["message"]
    assert (await me(world, pair["accessToken"])).refusal == (401, "INVALID_TOKEN", "authentication")
    dead = await refreshed(world, {"refreshToken": pair["refreshToken"]})
    assert dead.refusal == (401, "INVALID_TOKEN", "authentication")
