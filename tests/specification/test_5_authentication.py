"""Specification 5: who needs what to call what."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from eth_utils.crypto import keccak

from tests.specification.client import Answer, Wallet, header
from tests.specification.program import Program, bearer_header
from tests.specification.rows import row, row_on_both
from tests.specification.test_2_files import upload
from tests.specification.world import World
from tollkeeper.sandbox.wallets import PUBLIC_SEED

DAY_MS = 24 * 3600 * 1000


async def bearer_routes(program: Program, headers: dict[str, str]) -> list[Answer]:
    """What each route that needs a bearer answers; logout comes last."""
    gate = await program.gate(requireAuth=True)
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return [
        await upload(program, b"sold", token if scheme == "Bearer" else None),
        await program.hub("GET", "/api/v1/auth/me", headers=headers),
        await program.hub("GET", "/api/v1/history", params={"limit": "1"}, headers=headers),
        await program.call(gate, headers=headers),
        await program.hub("POST", "/api/v1/auth/logout", headers=headers),
    ]


@row("5.1")
async def test_protocol_endpoints_and_open_gates_need_no_authentication(world: World) -> None:
    for headers in ({}, {"Authorization": "Bearer of nothing"}):
        asking = world.asking()
        supported = await world.hub("GET", "/supported", headers=headers)
        verified = await world.hub("POST", "/verify", json=asking, headers=headers)
        settled = await world.hub("POST", "/settle", json=asking, headers=headers)
        assert [answer.status for answer in (supported, verified, settled)] == [200, 200, 200]
        assert (verified.body["isValid"], settled.body["status"]) == (True, "success")
        gate = await world.gate()
        assert (await world.call(gate, headers=headers)).status == 402
        assert (await world.call(gate, await world.payment(gate), headers=headers)).status == 200


@row("5.2")
async def test_bearer_routes_take_a_jwt(world: World) -> None:
    token = (await world.login(world.buyer))["accessToken"]
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["sub"] == world.buyer.address
    without = await bearer_routes(world, {})
    assert [answer.refusal for answer in without] == [(401, "AUTH_REQUIRED", "authentication")] * 5
    answers = await bearer_routes(world, bearer_header(token))
    assert [answer.status for answer in answers] == [201, 200, 200, 402, 200]


@row("5.3")
async def test_login_is_message_signature_tokens(world: World) -> None:
    wallet = Wallet()
    for base in (world.hub_url, world.gateway_url):
        query = {"walletAddress": wallet.address}
        asked = await world.http.send("GET", base + "/api/v1/auth/message", params=query)
        message = asked.body["message"]
        proof = {"message": message, "signature": wallet.sign_text(message)}
        answer = await world.http.send("POST", base + "/api/v1/auth/login", json=proof)
        assert answer.status == 200
        assert all(answer.body[name] for name in ("accessToken", "refreshToken"))
        me = await world.hub("GET", "/api/v1/auth/me", headers=bearer_header(answer.body["accessToken"]))
        assert me.body["walletAddress"] == wallet.address


def at_another_time(token: str, issued: int, expires: int) -> str:
    """The token as it would be at other times, signed by the sandbox's own key, which follows from public words."""
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    key = Ed25519PrivateKey.from_private_bytes(keccak(text=f"{PUBLIC_SEED}/auth key"))
    times = {"iat": issued, "exp": expires}
    return jwt.encode({**claims, **times}, key, algorithm="EdDSA", headers=jwt.get_unverified_header(token))


@row("5.4")
async def test_access_tokens_expire_after_15_minutes_and_refresh_tokens_after_7_days(world: World) -> None:
    now = int(time.time())
    pair = await world.login(world.buyer)
    claims = jwt.decode(pair["accessToken"], options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 15 * 60
    assert now - 2 <= claims["iat"] <= now + 2

    async def me(token: str) -> Answer:
        return await world.hub("GET", "/api/v1/auth/me", headers=bearer_header(token))

    old = at_another_time(pair["accessToken"], now - 15 * 60 + 60, now + 60)
    expired = at_another_time(pair["accessToken"], now - 15 * 60 - 1, now - 1)
    assert (await me(old)).status == 200
    assert (await me(expired)).refusal == (401, "INVALID_TOKEN", "authentication")

    refreshed = await world.hub("POST", "/api/v1/auth/refresh", json={"refreshToken": pair["refreshToken"]})
    assert all(refreshed.body[name] != pair[name] for name in ("accessToken", "refreshToken"))
    again = jwt.decode(refreshed.body["accessToken"], options={"verify_signature": False})
    assert again["exp"] - again["iat"] == 15 * 60
    tokens = world.dump()["refresh_tokens"]
    expiries = [expires_ms for _, session, expires_ms, _ in tokens if session == claims["sid"]]
    assert len(expiries) == 2
    for expires_ms in expiries:
        assert abs(expires_ms - now * 1000 - 7 * DAY_MS) < 10_000


@row_on_both("5.5")
async def test_missing_invalid_and_forged_have_their_codes(program: Program) -> None:
    for headers, code in (
        ({}, "AUTH_REQUIRED"),
        ({"Authorization": "Basic eDp5"}, "AUTH_REQUIRED"),
        ({"Authorization": "Bearer no.such.token"}, "INVALID_TOKEN"),
        (
            bearer_header(jwt.encode({"sub": program.new_wallet().address}, "k" * 32, algorithm="HS256")),
            "INVALID_TOKEN",
        ),
    ):
        for answer in await bearer_routes(program, headers):
            assert answer.refusal == (401, code, "authentication")
    wallet, thief = program.new_wallet(), program.new_wallet()
    for base in (program.hub_url, program.gateway_url):
        query = {"walletAddress": wallet.address}
        asked = await program.http.send("GET", base + "/api/v1/auth/message", params=query)
        message = asked.body["message"]
        for signature in (thief.sign_text(message), wallet.sign_text(message + " "), "0x" + "00" * 65):
            proof = {"message": message, "signature": signature}
            answer = await program.http.send("POST", base + "/api/v1/auth/login", json=proof)
            assert answer.refusal == (401, "INVALID_SIGNATURE", "authentication")


@row("5.6")
async def test_the_payment_is_the_signers_transfer_to_the_gates_address(world: World) -> None:
    recipient = Wallet().address
    payer = await world.funded(30_000)
    asked = await world.gate(paymentAddress=recipient, price="0.03")
    body = world.asking(30_000, payer=payer, recipient=recipient)["paymentPayload"]
    from_the_buyer = await world.payment(asked)
    assert (await world.call(asked, from_the_buyer)).status == 200
    assert (await world.call(asked, header(body))).status == 200
    assert (await world.balance(payer.address), await world.balance(recipient)) == (0, 60_000)


@row("5.7")
async def test_hmac_signs_what_is_forwarded_by_rfc_9421(world: World) -> None:
    gate = await world.gate(headerAuthMode="hmac", targetUrl=world.target.url + "/a?own=1")
    assert (await world.call(gate, await world.payment(gate), params={"city": "Athens"})).status == 200
    (request,) = world.target.requests
    digest = base64.b64encode(hashlib.sha256(b"").digest()).decode()
    assert request.header("content-digest") == f"sha-256=:{digest}:"
    parameters = (request.header("signature-input") or "").removeprefix("paygate=")
    covered = '("@method" "@target-uri" "content-digest" "x-payer" "x-purchase-id" "x-paygate-slug")'
    assert parameters.startswith(covered)
    assert parameters.endswith(f';keyid="{gate["keyId"]}";alg="hmac-sha256"')
    lines = [
        '"@method": GET',
        f'"@target-uri": {world.target.url}/a?own=1&city=Athens',
        f'"content-digest": sha-256=:{digest}:',
        f'"x-payer": {world.buyer.address}',
        f'"x-purchase-id": {request.header("x-purchase-id")}',
        f'"x-paygate-slug": {gate["slug"]}',
        f'"@signature-params": {parameters}',
    ]
    tag = hmac.digest(gate["secret"].encode(), "\n".join(lines).encode(), "sha256")
    assert request.header("signature") == f"paygate=:{base64.b64encode(tag).decode()}:"
