"""The endpoints on a real socket: paths, fields, codes (specification 4.2, 5, 7; contract 2, 6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.auth.server import KEYRING, PUBLIC_URL, START_MS, Client, Clock, SolanaWallet, Wallet, bearer, issuer
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.keys.tokens import parse_jwks, read_access_token
from tollkeeper.storage.engine.database import Database

MESSAGE = "/api/v1/auth/message"
LOGIN = "/api/v1/auth/login"
REFRESH = "/api/v1/auth/refresh"
ME = "/api/v1/auth/me"
LOGOUT = "/api/v1/auth/logout"
INTROSPECT = "/api/v1/auth/introspect"


def assert_refused(answer: tuple[int, dict[str, Any]], status: int, code: str, kind: str = "authentication") -> None:
    assert answer[0] == status, answer
    error = answer[1]["error"]
    assert (error["code"], error["type"]) == (code, kind)
    assert error["message"]
    assert answer[1]["apiVersion"] == "v1"
    assert answer[1]["timestamp"].endswith("Z")


async def proof(client: Client, wallet: Wallet) -> dict[str, str]:
    """A login message for `wallet`, signed by it."""
    _, body = await client.send("GET", MESSAGE, params={"walletAddress": wallet.address})
    return {"message": body["message"], "signature": wallet.sign(body["message"])}


async def test_the_whole_sequence_of_a_login(client: Client) -> None:
    wallet = Wallet()
    status, body = await client.send("GET", MESSAGE, params={"walletAddress": wallet.address})
    assert status == 200
    assert body.keys() == {"message", "apiVersion", "timestamp"}
    lines = body["message"].split("\n")
    assert lines[0].startswith("gate.example:8402 wants you to sign in")
    assert lines[1] == wallet.address
    assert f"URI: {PUBLIC_URL}" in lines

    signed = {"message": body["message"], "signature": wallet.sign(body["message"])}
    status, login = await client.send("POST", LOGIN, json=signed)
    assert status == 200
    assert login.keys() == {"accessToken", "refreshToken", "user", "apiVersion", "timestamp"}
    user = login["user"]
    created = "2025-06-15T15:06:40.123Z"
    assert user == {"id": 1, "walletAddress": wallet.address, "createdAt": created, "updatedAt": created}

    status, me = await client.send("GET", ME, headers=bearer(login["accessToken"]))
    assert status == 200
    assert {key: me[key] for key in user} == me["user"] == user

    status, pair = await client.send("POST", REFRESH, json={"refreshToken": login["refreshToken"]})
    assert status == 200
    assert pair.keys() == {"accessToken", "refreshToken", "apiVersion", "timestamp"}
    assert pair["accessToken"] != login["accessToken"]
    assert pair["refreshToken"] != login["refreshToken"]

    status, body = await client.send("POST", LOGOUT, headers=bearer(pair["accessToken"]))
    assert (status, body["success"]) == (200, True)
    assert body["message"]
    for token in (login["accessToken"], pair["accessToken"]):
        assert_refused(await client.send("GET", ME, headers=bearer(token)), 401, "INVALID_TOKEN")
    refused = await client.send("POST", REFRESH, json={"refreshToken": pair["refreshToken"]})
    assert_refused(refused, 401, "INVALID_TOKEN")


async def test_a_solana_wallet_logs_in_as_every_other(client: Client) -> None:
    wallet = SolanaWallet()
    for sign in (wallet.sign, wallet.sign_base64):
        status, asked = await client.send("GET", MESSAGE, params={"walletAddress": wallet.address})
        assert status == 200
        assert asked["message"].split("\n")[1] == wallet.address
        signed = {"message": asked["message"], "signature": sign(asked["message"])}
        status, login = await client.send("POST", LOGIN, json=signed)
        assert status == 200
        assert login["user"]["id"] == 1
        assert login["user"]["walletAddress"] == wallet.address
        assert_refused(await client.send("POST", LOGIN, json=signed), 401, "INVALID_SIGNATURE")
        status, me = await client.send("GET", ME, headers=bearer(login["accessToken"]))
        assert (status, me["walletAddress"]) == (200, wallet.address)
        _, told = await client.send("POST", INTROSPECT, json={"token": login["accessToken"]})
        assert (told["active"], told["sub"]) == (True, wallet.address)


async def test_a_solana_wallet_logs_in_for_itself_only(client: Client) -> None:
    wallet, thief = SolanaWallet(), SolanaWallet()
    _, asked = await client.send("GET", MESSAGE, params={"walletAddress": wallet.address})
    for signature in (thief.sign(asked["message"]), Wallet().sign(asked["message"])):
        body = {"message": asked["message"], "signature": signature}
        assert_refused(await client.send("POST", LOGIN, json=body), 401, "INVALID_SIGNATURE")
    own = asked["message"].replace(wallet.address, thief.address)
    body = {"message": own, "signature": thief.sign(own)}
    assert_refused(await client.send("POST", LOGIN, json=body), 401, "INVALID_SIGNATURE")


async def test_a_wallet_is_one_user_in_whatever_case_it_asks(client: Client, clock: Clock) -> None:
    wallet = Wallet()
    first = await client.login(wallet)
    clock.advance(60)
    digits = wallet.address[2:]
    for spelling in (f"0x{digits.lower()}", f"0x{digits.upper()}"):
        _, body = await client.send("GET", MESSAGE, params={"walletAddress": spelling})
        assert wallet.address in body["message"]
        signed = {"message": body["message"], "signature": wallet.sign(body["message"])}
        _, again = await client.send("POST", LOGIN, json=signed)
        assert again["user"]["id"] == first["user"]["id"]
        assert again["user"]["createdAt"] == first["user"]["createdAt"]
        assert again["user"]["updatedAt"] > first["user"]["updatedAt"]
    assert (await client.login(Wallet()))["user"]["id"] == first["user"]["id"] + 1


@pytest.mark.parametrize(
    "address",
    [
        "x",
        "0x",
        "0x" + 39 * "a",
        "0x" + 41 * "a",
        "0x" + 39 * "a" + "g",
        40 * "a",
        "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaeD",
        "vitalik.eth",
        "0x" + 39 * "a" + "\u0661",
        "1111111111111111111111111111111",  # a digit short of a Solana address
    ],
)
async def test_what_is_no_address_gets_no_message(client: Client, address: str) -> None:
    answer = await client.send("GET", MESSAGE, params={"walletAddress": address})
    assert_refused(answer, 400, "INVALID_ADDRESS", "validation")


@pytest.mark.parametrize("query", [{}, {"walletAddress": ""}, {"wallet": "0x" + 40 * "a"}])
async def test_a_message_needs_a_wallet(client: Client, query: dict[str, str]) -> None:
    answer = await client.send("GET", MESSAGE, params=query)
    assert_refused(answer, 400, "MISSING_PARAMETER", "validation")
    assert answer[1]["error"]["details"] == {"field": "walletAddress"}


async def test_a_message_for_two_wallets_is_for_neither(client: Client) -> None:
    answer = await client.send("GET", f"{MESSAGE}?walletAddress={Wallet().address}&walletAddress={Wallet().address}")
    assert_refused(answer, 400, "INVALID_PARAMETER", "validation")
    assert answer[1]["error"]["details"] == {"field": "walletAddress"}


@pytest.mark.parametrize(
    "path_and_fields", [(LOGIN, ("message", "signature")), (REFRESH, ("refreshToken",)), (INTROSPECT, ("token",))]
)
async def test_a_missing_or_unreadable_field_is_named(
    client: Client, path_and_fields: tuple[str, tuple[str, ...]]
) -> None:
    path, fields = path_and_fields
    nothing, no_string = (None, ""), (1, True, ["x"], {"x": "x"})
    for field in fields:
        whole: dict[str, Any] = dict.fromkeys(fields, "x")
        for empty in nothing:
            answer = await client.send("POST", path, json={**whole, field: empty})
            assert_refused(answer, 400, "MISSING_PARAMETER", "validation")
            assert answer[1]["error"]["details"] == {"field": field}
        for value in no_string:
            answer = await client.send("POST", path, json={**whole, field: value})
            assert_refused(answer, 400, "INVALID_PARAMETER", "validation")
            assert answer[1]["error"]["details"] == {"field": field}


@pytest.mark.parametrize("path", [LOGIN, REFRESH, INTROSPECT])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff\xfe{\0}\0"])
async def test_a_body_that_is_no_json_object_is_refused(client: Client, path: str, body: bytes) -> None:
    answer = await client.send("POST", path, data=body)
    assert_refused(answer, 400, "INVALID_PARAMETER", "validation")
    assert answer[1]["error"]["details"] == {"field": "body"}


async def test_a_message_logs_in_once(client: Client) -> None:
    signed = await proof(client, Wallet())
    status, _ = await client.send("POST", LOGIN, json=signed)
    assert status == 200
    assert_refused(await client.send("POST", LOGIN, json=signed), 401, "INVALID_SIGNATURE")


async def test_a_message_logs_in_for_five_minutes(client: Client, clock: Clock) -> None:
    in_time, too_late = await proof(client, Wallet()), await proof(client, Wallet())
    clock.advance(299.999)
    status, _ = await client.send("POST", LOGIN, json=in_time)
    assert status == 200
    clock.advance(0.001)
    assert_refused(await client.send("POST", LOGIN, json=too_late), 401, "INVALID_SIGNATURE")


async def test_a_message_of_another_issuer_s_key_or_url_logs_nobody_in(
    database: Database, client: Client, clock: Clock
) -> None:
    wallet = Wallet()
    for other in (
        issuer(database, clock, keyring=[("key-1", bytes(32))]),
        issuer(database, clock, public_url="http://x"),
    ):
        message = other.message(wallet.address)
        proof = {"message": message, "signature": wallet.sign(message)}
        assert_refused(await client.send("POST", LOGIN, json=proof), 401, "INVALID_SIGNATURE")


async def test_a_message_logs_in_after_the_keys_were_rotated(database: Database, clock: Clock) -> None:
    wallet = Wallet()
    message = issuer(database, clock).message(wallet.address)
    rotated = issuer(database, clock, keyring=[("key-2", bytes(32)), *KEYRING])
    assert (await rotated.login(message, wallet.sign(message))).user.wallet == wallet.address.lower()


async def test_a_message_logs_in_once_at_all_nodes_whose_clocks_differ(database: Database, clock: Clock) -> None:
    """The used nonce is kept as long as the message could be good anywhere."""
    wallet, ahead = Wallet(), issuer(database, Clock(START_MS + 240_000))
    message = ahead.message(wallet.address)
    await ahead.login(message, wallet.sign(message))
    for seconds in (0, 240, 299, 239):
        clock.advance(seconds)
        with pytest.raises(ApiError):
            await issuer(database, clock).login(message, wallet.sign(message))


async def test_a_message_edited_in_any_line_logs_nobody_in(client: Client) -> None:
    wallet = Wallet()
    _, body = await client.send("GET", MESSAGE, params={"walletAddress": wallet.address})
    text: str = body["message"]
    lines = text.split("\n")
    edited = [text + "\n", text.replace("\n", "\r\n"), text.replace(wallet.address, wallet.address.lower())]
    edited += ["\n".join([*lines[:n], lines[n] + " ", *lines[n + 1 :]]) for n in range(len(lines))]
    edited += ["\n".join([*lines[:n], *lines[n + 1 :]]) for n in range(len(lines))]
    edited += [text.replace("gate.example", "evil.example"), text.replace("Chain ID: 8453", "Chain ID: 1")]
    edited += [text.replace("2025-", "2026-"), text.replace("Version: 1", "Version: 2")]
    for changed in edited:
        assert changed != text
        answer = await client.send("POST", LOGIN, json={"message": changed, "signature": wallet.sign(changed)})
        assert_refused(answer, 401, "INVALID_SIGNATURE")
    status, _ = await client.send("POST", LOGIN, json={"message": text, "signature": wallet.sign(text)})
    assert status == 200  # and no forgery used the message up


async def test_a_message_logs_in_its_own_wallet_only(client: Client) -> None:
    wallet, thief = Wallet(), Wallet()
    signed = await proof(client, wallet)
    stolen = {"message": signed["message"], "signature": thief.sign(signed["message"])}
    assert_refused(await client.send("POST", LOGIN, json=stolen), 401, "INVALID_SIGNATURE")
    own_words = signed["message"].replace(wallet.address, thief.address)
    answer = await client.send("POST", LOGIN, json={"message": own_words, "signature": thief.sign(own_words)})
    assert_refused(answer, 401, "INVALID_SIGNATURE")
    status, _ = await client.send("POST", LOGIN, json=signed)
    assert status == 200


@pytest.mark.parametrize("signature", ["x", "0x", "0x" + 130 * "0", "0x" + 130 * "f", 132 * "a", "\ud800"])
async def test_a_signature_that_is_none_is_refused(client: Client, signature: str) -> None:
    signed = await proof(client, Wallet())
    status, body = await client.send("POST", LOGIN, json={**signed, "signature": signature})
    assert (status, body["error"]["code"]) in {(401, "INVALID_SIGNATURE"), (400, "INVALID_PARAMETER")}


@pytest.mark.parametrize("path", [ME, LOGOUT])
async def test_without_a_bearer_authentication_is_required(client: Client, path: str) -> None:
    method = "GET" if path == ME else "POST"
    for headers in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}):
        answer = await client.send(method, path, headers=headers)
        assert_refused(answer, 401, "AUTH_REQUIRED")
        assert "requires user authentication" in answer[1]["error"]["message"]


async def test_an_access_token_lives_fifteen_minutes_and_a_refresh_token_seven_days(
    client: Client, clock: Clock
) -> None:
    login = await client.login(Wallet())
    clock.now_ms = START_MS // 1000 * 1000 + 15 * 60 * 1000 - 1
    status, _ = await client.send("GET", ME, headers=bearer(login["accessToken"]))
    assert status == 200
    clock.advance(0.001)
    assert_refused(await client.send("GET", ME, headers=bearer(login["accessToken"])), 401, "INVALID_TOKEN")
    clock.now_ms = START_MS + 7 * 24 * 3600 * 1000 - 1
    status, pair = await client.send("POST", REFRESH, json={"refreshToken": login["refreshToken"]})
    assert status == 200
    status, _ = await client.send("GET", ME, headers=bearer(pair["accessToken"]))
    assert status == 200
    clock.advance(7 * 24 * 3600)
    refused = await client.send("POST", REFRESH, json={"refreshToken": pair["refreshToken"]})
    assert_refused(refused, 401, "INVALID_TOKEN")


async def test_a_refresh_whose_answer_was_lost_gives_the_same_successor_again(client: Client, clock: Clock) -> None:
    login = await client.login(Wallet())
    token = {"refreshToken": login["refreshToken"]}
    _, lost = await client.send("POST", REFRESH, json=token)
    clock.advance(9.999)
    status, again = await client.send("POST", REFRESH, json=token)
    assert (status, again["refreshToken"]) == (200, lost["refreshToken"])
    for pair in (login, lost, again):
        status, _ = await client.send("GET", ME, headers=bearer(pair["accessToken"]))
        assert status == 200
    status, third = await client.send("POST", REFRESH, json={"refreshToken": again["refreshToken"]})
    assert status == 200
    assert third["refreshToken"] != again["refreshToken"]


@pytest.mark.parametrize("later", ["ten seconds", "its successor was used", "the login was ended"])
async def test_a_refresh_token_presented_again_too_late_ends_the_login(
    client: Client, clock: Clock, later: str
) -> None:
    login = await client.login(Wallet())
    token = {"refreshToken": login["refreshToken"]}
    _, newest = await client.send("POST", REFRESH, json=token)
    if later == "ten seconds":
        clock.advance(10)
    elif later == "its successor was used":
        _, newest = await client.send("POST", REFRESH, json={"refreshToken": newest["refreshToken"]})
    else:
        await client.send("POST", LOGOUT, headers=bearer(login["accessToken"]))
    assert_refused(await client.send("POST", REFRESH, json=token), 401, "INVALID_TOKEN")
    assert_refused(await client.send("GET", ME, headers=bearer(newest["accessToken"])), 401, "INVALID_TOKEN")
    refused = await client.send("POST", REFRESH, json={"refreshToken": newest["refreshToken"]})
    assert_refused(refused, 401, "INVALID_TOKEN")


async def test_another_issuer_s_keys_do_not_follow_a_refresh_token(database: Database, clock: Clock) -> None:
    """Who reads a used token in a log cannot tell which one follows: that takes the issuer's key."""
    wallet, ours = Wallet(), issuer(database, clock)
    message = ours.message(wallet.address)
    login = await ours.login(message, wallet.sign(message))
    pair = await ours.refresh(login.tokens.refresh_token)
    others = issuer(database, clock, keyring=[("key-1", bytes(32))])
    with pytest.raises(ApiError):
        await others.refresh(login.tokens.refresh_token)
    with pytest.raises(ApiError):
        await ours.refresh(pair.refresh_token)


async def test_a_refresh_token_presented_again_ends_the_family_and_no_other_login(client: Client) -> None:
    wallet = Wallet()
    login, elsewhere = await client.login(wallet), await client.login(wallet)
    _, second = await client.send("POST", REFRESH, json={"refreshToken": login["refreshToken"]})
    _, third = await client.send("POST", REFRESH, json={"refreshToken": second["refreshToken"]})
    reused = await client.send("POST", REFRESH, json={"refreshToken": login["refreshToken"]})
    assert_refused(reused, 401, "INVALID_TOKEN")
    for pair in (login, second, third):
        assert_refused(await client.send("GET", ME, headers=bearer(pair["accessToken"])), 401, "INVALID_TOKEN")
        refused = await client.send("POST", REFRESH, json={"refreshToken": pair["refreshToken"]})
        assert_refused(refused, 401, "INVALID_TOKEN")
    status, _ = await client.send("GET", ME, headers=bearer(elsewhere["accessToken"]))
    assert status == 200
    status, _ = await client.send("POST", REFRESH, json={"refreshToken": elsewhere["refreshToken"]})
    assert status == 200


async def test_logout_ends_that_login_only(client: Client) -> None:
    wallet = Wallet()
    here, there = await client.login(wallet), await client.login(wallet)
    await client.send("POST", LOGOUT, headers=bearer(here["accessToken"]))
    again = await client.send("POST", LOGOUT, headers=bearer(here["accessToken"]))
    assert_refused(again, 401, "INVALID_TOKEN")
    status, _ = await client.send("GET", ME, headers=bearer(there["accessToken"]))
    assert status == 200


async def test_a_refresh_token_is_no_access_token_nor_the_other_way_round(client: Client) -> None:
    login = await client.login(Wallet())
    assert_refused(await client.send("GET", ME, headers=bearer(login["refreshToken"])), 401, "INVALID_TOKEN")
    refused = await client.send("POST", REFRESH, json={"refreshToken": login["accessToken"]})
    assert_refused(refused, 401, "INVALID_TOKEN")


async def test_introspection_tells_what_is_in_force_and_nothing_about_the_rest(client: Client, clock: Clock) -> None:
    wallet = Wallet()
    login = await client.login(wallet)
    expires = START_MS // 1000 + 15 * 60
    for form in (
        {"json": {"token": login["accessToken"]}},
        {"data": {"token": login["accessToken"], "token_type_hint": "access_token"}},
    ):
        status, body = await client.send("POST", INTROSPECT, **form)
        assert status == 200
        assert {key: body[key] for key in ("active", "sub", "exp")} == {
            "active": True,
            "sub": wallet.address,
            "exp": expires,
        }
    inactive = [login["refreshToken"], "x", login["accessToken"][:-4] + "AAAA"]
    await client.send("POST", LOGOUT, headers=bearer(login["accessToken"]))
    old = (await client.login(wallet))["accessToken"]
    clock.advance(15 * 60)
    for token in [*inactive, login["accessToken"], old]:
        status, body = await client.send("POST", INTROSPECT, json={"token": token})
        assert status == 200
        assert body.keys() == {"active", "apiVersion", "timestamp"}
        assert body["active"] is False


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("", "MISSING_PARAMETER"),
        ("token=", "MISSING_PARAMETER"),
        ("token=a&token=b", "INVALID_PARAMETER"),
        ("token=&token=a", "INVALID_PARAMETER"),
        ("token=a&" + "&".join(f"other{number}=1" for number in range(20)), "INVALID_PARAMETER"),
        ("other=x", "MISSING_PARAMETER"),
    ],
)
async def test_a_form_without_one_token_is_refused(client: Client, form: str, code: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    answer = await client.send("POST", INTROSPECT, data=form, headers=headers)
    assert_refused(answer, 400, code, "validation")


async def test_the_key_set_verifies_the_tokens(client: Client) -> None:
    login = await client.login(Wallet())
    status, document = await client.send("GET", "/.well-known/jwks.json")
    assert status == 200
    claims = read_access_token(login["accessToken"], parse_jwks(document), issuer=PUBLIC_URL, now_ms=START_MS)
    assert claims.subject == login["user"]["walletAddress"]


async def test_answers_with_tokens_are_not_stored_by_caches(client: Client) -> None:
    login = await client.login(Wallet())
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", REFRESH, {"json": {"refreshToken": login["refreshToken"]}}),
        ("GET", ME, {"headers": bearer(login["accessToken"])}),
        ("POST", INTROSPECT, {"json": {"token": "x"}}),
        ("POST", LOGIN, {"json": await proof(client, Wallet())}),
    ]
    for method, path, options in calls:
        async with client.http.request(method, client.base + path, **options) as response:
            assert response.status == 200
            assert response.headers["Cache-Control"] == "no-store"
