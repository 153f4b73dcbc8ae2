"""Specification 4.2 and 5 with a Solana wallet: login, and who needs what to call what."""

from __future__ import annotations

import re

import jwt
import pytest
from solders.keypair import Keypair

from tests.specification.client import Json, Wallet
from tests.specification.program import PAYGATES, bearer_header
from tests.specification.rows import row
from tests.specification.solana_world import SolanaWorld
from tests.specification.test_2_files import upload
from tests.specification.world import World

AUTH = "/api/v1/auth"


async def message_of(world: World, wallet: Keypair, base_url: str | None = None) -> Json:
    query = {"walletAddress": str(wallet.pubkey())}
    answer = await world.http.send("GET", f"{base_url or world.hub_url}{AUTH}/message", params=query)
    assert answer.status == 200, answer.content
    return answer.body


@row("4.1-auth-message-solana", "4.2-message-solana")
async def test_message_is_for_the_wallet_address_of_the_query(solana: SolanaWorld, row_id: str) -> None:
    world, wallet = solana.world, Keypair()
    base = world.gateway_url if row_id.startswith("4.1") else world.hub_url
    body = await message_of(world, wallet, base)
    assert body.keys() == {"message", "apiVersion", "timestamp"}
    assert body["message"].split("\n")[1] == str(wallet.pubkey())
    for wrong in (str(wallet.pubkey())[:20], "1" + str(wallet.pubkey()), "0OIl"):  # 15 bytes, 33, no base58
        refused = await world.http.send("GET", f"{base}{AUTH}/message", params={"walletAddress": wrong})
        assert refused.refusal == (400, "INVALID_ADDRESS", "validation")


@row("4.2-message-text-solana")
async def test_the_text_is_that_of_eip_4361_for_a_solana_account(solana: SolanaWorld) -> None:
    world, wallet = solana.world, Keypair()
    text = (await message_of(world, wallet))["message"]
    host = re.escape(world.gateway_url.removeprefix("http://"))
    assert re.fullmatch(
        rf"{host} wants you to sign in with your Solana account:\n{wallet.pubkey()}\n\n[^\n]+\n\n"
        rf"URI: {re.escape(world.gateway_url)}\nVersion: 1\nChain ID: devnet\nNonce: [A-Za-z0-9]{{8,}}\n"
        r"Issued At: [^\n]+\nExpiration Time: [^\n]+",
        text,
    ), text


@row("4.1-login-solana", "4.2-login-solana")
async def test_login_takes_message_and_signature_once(solana: SolanaWorld, row_id: str) -> None:
    world, wallet = solana.world, Keypair()
    base = world.gateway_url if row_id.startswith("4.1") else world.hub_url
    message = (await message_of(world, wallet, base))["message"]
    proof = {"message": message, "signature": str(wallet.sign_message(message.encode()))}
    for name in proof:
        refused = await world.http.send("POST", f"{base}{AUTH}/login", json={**proof, name: None})
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")
    answer = await world.http.send("POST", f"{base}{AUTH}/login", json=proof)
    assert answer.status == 200
    assert answer.body.keys() == {"accessToken", "refreshToken", "user", "apiVersion", "timestamp"}
    assert answer.body["user"]["walletAddress"] == str(wallet.pubkey())
    again = await world.http.send("POST", f"{base}{AUTH}/login", json=proof)
    assert again.refusal == (401, "INVALID_SIGNATURE", "authentication")


@row("2.6-user-solana")
async def test_the_login_response_contains_the_user(solana: SolanaWorld) -> None:
    wallet = Keypair()
    user = (await solana.login(wallet))["user"]
    assert user.keys() == {"id", "walletAddress", "createdAt", "updatedAt"}
    assert (type(user["id"]), user["walletAddress"]) == (int, str(wallet.pubkey()))
    again = (await solana.login(wallet, solana.world.gateway_url))["user"]
    assert (again["id"], again["createdAt"]) == (user["id"], user["createdAt"])


@row("4.2-refresh-solana")
async def test_refresh_gives_a_new_pair(solana: SolanaWorld) -> None:
    world = solana.world
    pair = await solana.login(Keypair())
    answer = await world.hub("POST", f"{AUTH}/refresh", json={"refreshToken": pair["refreshToken"]})
    assert answer.body.keys() == {"accessToken", "refreshToken", "apiVersion", "timestamp"}
    assert all(answer.body[name] != pair[name] for name in ("accessToken", "refreshToken"))
    assert (await world.hub("GET", f"{AUTH}/me", headers=bearer_header(answer.body["accessToken"]))).status == 200


@row("4.2-current-user-solana")
async def test_current_user_is_the_bearers(solana: SolanaWorld) -> None:
    pair = await solana.login(Keypair())
    answer = await solana.world.hub("GET", f"{AUTH}/me", headers=bearer_header(pair["accessToken"]))
    assert (answer.status, answer.body["user"]) == (200, pair["user"])


@row("4.2-logout-solana")
async def test_logout_ends_the_bearers_login(solana: SolanaWorld) -> None:
    world = solana.world
    bearer = bearer_header((await solana.login(Keypair()))["accessToken"])
    assert (await world.hub("POST", f"{AUTH}/logout", headers=bearer)).body["success"] is True
    refused = await world.hub("GET", f"{AUTH}/me", headers=bearer)
    assert refused.refusal == (401, "INVALID_TOKEN", "authentication")


@row("5.1-solana")
async def test_protocol_endpoints_and_open_gates_need_no_authentication(solana: SolanaWorld) -> None:
    world = solana.world
    for headers in ({}, {"Authorization": "Bearer of nothing"}):
        asking = await solana.asking()
        verified = await world.hub("POST", "/verify", json=asking, headers=headers)
        settled = await world.hub("POST", "/settle", json={**asking, "confirm": True}, headers=headers)
        moved = await world.hub("POST", "/transfer", json=await solana.moving(), headers=headers)
        assert (verified.body["isValid"], settled.body["status"], moved.body["status"]) == (True, "success", "success")
        gate = await solana.gate()
        assert (await world.call(gate, headers=headers)).status == 402
        assert (await world.call(gate, await solana.payment(gate), headers=headers)).status == 200


@row("5.2-solana")
async def test_bearer_routes_take_a_solana_wallets_jwt(solana: SolanaWorld) -> None:
    world, wallet = solana.world, Keypair()
    token = (await solana.login(wallet))["accessToken"]
    assert jwt.decode(token, options={"verify_signature": False})["sub"] == str(wallet.pubkey())
    gate = await solana.gate(requireAuth=True)
    for bearer, expected in ((None, [401] * 5), (token, [200, 200, 402, 201, 200])):
        headers = bearer_header(bearer)
        answers = [
            await world.hub("GET", f"{AUTH}/me", headers=headers),
            await world.hub("GET", "/api/v1/history", params={"limit": "1"}, headers=headers),
            await world.call(gate, headers=headers),
            await upload(world, b"sold", bearer, network="solana-devnet"),
            await world.hub("POST", f"{AUTH}/logout", headers=headers),
        ]
        assert [answer.status for answer in answers] == expected


@row("5.3-solana")
async def test_login_is_message_signature_tokens(solana: SolanaWorld) -> None:
    world, wallet = solana.world, Keypair()
    for base in (world.hub_url, world.gateway_url):
        pair = await solana.login(wallet, base)
        for path in (f"{base}{AUTH}/me", f"{world.hub_url}{AUTH}/me"):
            me = await world.http.send("GET", path, headers=bearer_header(pair["accessToken"]))
            assert me.body["walletAddress"] == str(wallet.pubkey())


@row("7-INVALID_SIGNATURE-authentication-solana")
async def test_a_failed_wallet_signature_is_401(solana: SolanaWorld) -> None:
    world, wallet, thief = solana.world, Keypair(), Keypair()
    for base in (world.hub_url, world.gateway_url):
        message = (await message_of(world, wallet, base))["message"]
        for signature in (
            str(thief.sign_message(message.encode())),
            str(wallet.sign_message(message.encode() + b" ")),
            Wallet().sign_text(message),
            "1" * 64,
        ):
            proof = {"message": message, "signature": signature}
            refused = await world.http.send("POST", f"{base}{AUTH}/login", json=proof)
            assert refused.refusal == (401, "INVALID_SIGNATURE", "authentication")


@row("5.6-solana")
async def test_the_payment_is_the_signers_transfer_to_the_gates_address(solana: SolanaWorld) -> None:
    recipient, payer = str((await solana.funded()).pubkey()), await solana.funded(30_000)
    gate = await solana.gate(paymentAddress=recipient, price="0.03")
    answer = await solana.world.call(gate, await solana.payment(gate, payer=payer))
    assert (answer.status, answer.confirmation["payer"]) == (200, str(payer.pubkey()))
    assert (await solana.balance(str(payer.pubkey())), await solana.balance(recipient)) == (0, 30_000)


@pytest.mark.parametrize("base", ["gateway", "hub"])
async def test_a_login_of_one_is_good_at_the_other(solana: SolanaWorld, base: str) -> None:
    world = solana.world
    pair = await solana.login(Keypair(), {"gateway": world.gateway_url, "hub": world.hub_url}[base])
    mine = await world.gateway("GET", PAYGATES, headers=bearer_header(pair["accessToken"]))
    assert (mine.status, mine.body["data"]) == (200, [])
