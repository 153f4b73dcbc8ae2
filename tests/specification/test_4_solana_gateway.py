"""Specification 4.1, 4.3, 5.4, 5.7 and 7 on Solana: the gateway's operations, the history's request, forwarding."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
from solders.keypair import Keypair

from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.solana_market import solana_market
from tests.specification.client import Wallet, header
from tests.specification.program import PAYGATES, bearer_header
from tests.specification.rows import row
from tests.specification.solana_world import NETWORK, SolanaWorld, payload
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.sandbox.stack import Options


@row("4.1-create-solana")
async def test_create_takes_a_gate_that_is_paid_on_solana_and_yields_its_public_url(solana: SolanaWorld) -> None:
    world = solana.world
    fields = {"network": NETWORK, "paymentAddress": solana.owner, "price": "0.25", "credits": 5, "title": "T"}
    answer = await world.create(**fields)
    assert answer.status == 201
    assert {name: answer.body[name] for name in fields} == fields
    assert (await world.http.send("GET", answer.body["accessUrl"])).status == 402
    owner = Keypair()
    owned = await world.create(
        (await solana.login(owner, world.gateway_url))["accessToken"], network=NETWORK, paymentAddress=None
    )
    assert owned.body["ownerWallet"] == owned.body["paymentAddress"] == str(owner.pubkey())


@row("4.1-update-solana")
async def test_update_moves_a_gate_to_solana_and_back_whole_or_not_at_all(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.world.gate()
    for half in ({"network": NETWORK}, {"paymentAddress": solana.owner}):
        assert (await world.update(gate, **half)).status == 400
        assert (await world.read(gate))["network"] == "base-sepolia"
    moved = await world.update(gate, network=NETWORK, paymentAddress=solana.owner)
    assert (moved.status, moved.body["network"], moved.body["paymentAddress"]) == (200, NETWORK, solana.owner)
    await solana.buy(gate)
    back = await world.update(gate, network="base-sepolia", paymentAddress=Wallet().address)
    assert (back.status, back.body["network"]) == (200, "base-sepolia")
    await world.buy(gate)


@row("4.1-list-solana")
async def test_list_shows_a_solana_wallet_its_own_gates_newest_first(solana: SolanaWorld) -> None:
    world = solana.world
    bearer = (await solana.login(Keypair(), world.gateway_url))["accessToken"]
    await world.create((await solana.login(Keypair(), world.gateway_url))["accessToken"], network=NETWORK)
    made = [(await world.create(bearer, network=NETWORK, paymentAddress=None)).body["id"] for _ in range(3)]
    query = {"limit": "2", "offset": "1"}
    page = await world.gateway("GET", PAYGATES, params=query, headers=bearer_header(bearer))
    assert (page.status, [gate["id"] for gate in page.body["data"]]) == (200, made[1::-1])
    assert {gate["network"] for gate in page.body["data"]} == {NETWORK}
    expected = {"totalCount": 3, "limit": 2, "offset": 1, "hasNext": False, "hasPrev": True}
    assert page.body["pagination"] == expected


@row("4.1-delete-solana")
async def test_delete_ends_a_gate_that_is_paid_on_solana(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate(credits=3)
    paid, _ = await solana.buy(gate)
    path = f"{PAYGATES}/{gate['id']}"
    answer = await world.gateway("DELETE", path)
    assert (answer.status, answer.body["success"], answer.body["outstandingCredits"]) == (200, True, 2)
    for after in (await world.call(gate), await world.call(gate, paid), await world.gateway("DELETE", path)):
        assert after.refusal == (404, "NOT_FOUND", "validation")


@row("4.1-transfer-solana")
async def test_a_direct_transfer_is_asked_for_by_a_402_and_made_with_a_payment(solana: SolanaWorld) -> None:
    """In place of signature and authorization, which a Solana payload has not, stands its transaction."""
    world = solana.world
    recipient = str((await solana.funded()).pubkey())
    transaction = await solana.transaction(2_500_000, recipient=recipient)
    direct = {"network": NETWORK, "transaction": transaction}
    asked = await world.gateway("POST", "/api/v1/transfer", json=direct)
    assert (asked.status, asked.headers["x402-version"]) == (402, "1")
    assert asked.body["x402"] == {"token": "USDC", "amount": "2.5", "address": recipient}
    assert asked.body["accepts"][0]["maxAmountRequired"] == "2500000"
    assert await solana.balance(recipient) == 0
    paid = {"X-Payment": header(payload(transaction))}
    answer = await world.gateway("POST", "/api/v1/transfer", json=direct, headers=paid)
    assert (answer.status, answer.body["status"], answer.body["amount"]) == (200, "success", "2500000")
    assert answer.confirmation["transaction"] == answer.body["transaction"]
    assert (answer.body["network"], await solana.balance(recipient)) == (NETWORK, 2_500_000)
    for name in direct:
        without = {key: value for key, value in direct.items() if key != name}
        refused = await world.gateway("POST", "/api/v1/transfer", json=without, headers=paid)
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")


@row("5.4-solana")
async def test_tokens_of_a_solana_wallet_have_their_times_and_are_refreshed(solana: SolanaWorld) -> None:
    world, now = solana.world, int(time.time())
    pair = await solana.login(Keypair())
    claims = jwt.decode(pair["accessToken"], options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 15 * 60
    refreshed = await world.hub("POST", "/api/v1/auth/refresh", json={"refreshToken": pair["refreshToken"]})
    assert refreshed.status == 200
    assert all(refreshed.body[name] != pair[name] for name in ("accessToken", "refreshToken"))
    expiries = [one[2] for one in world.dump()["refresh_tokens"] if one[1] == claims["sid"]]
    assert all(abs(expires_ms - (now + 7 * 24 * 3600) * 1000) < 10_000 for expires_ms in expiries)
    assert len(expiries) == 2


@row("5.7-solana")
async def test_hmac_signs_the_solana_payer_with_what_is_forwarded(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate(headerAuthMode="hmac")
    assert (await world.call(gate, await solana.payment(gate))).status == 200
    (request,) = world.target.requests
    parameters = (request.header("signature-input") or "").removeprefix("paygate=")
    digest = base64.b64encode(hashlib.sha256(b"").digest()).decode()
    lines = [
        '"@method": GET',
        f'"@target-uri": {gate["targetUrl"]}',
        f'"content-digest": sha-256=:{digest}:',
        f'"x-payer": {solana.buyer.pubkey()}',
        f'"x-purchase-id": {request.header("x-purchase-id")}',
        f'"x-paygate-slug": {gate["slug"]}',
        f'"@signature-params": {parameters}',
    ]
    tag = hmac.digest(gate["secret"].encode(), "\n".join(lines).encode(), "sha256")
    assert request.header("signature") == f"paygate=:{base64.b64encode(tag).decode()}:"


@row("7-PAYMENT_INVALID-400-solana")
async def test_a_transfer_that_is_not_what_was_signed_is_a_bad_request_at_hub_and_gateway(solana: SolanaWorld) -> None:
    world = solana.world
    moving = await solana.moving()
    assert (await world.transfer({**moving, "amount": "9999"})).refusal == (400, "PAYMENT_INVALID", "payment")
    other = header(payload(await solana.transaction(9_999)))
    direct = {"network": NETWORK, **moving["payload"]}
    answer = await world.gateway("POST", "/api/v1/transfer", json=direct, headers={"X-Payment": other})
    assert answer.refusal == (400, "PAYMENT_INVALID", "payment")
    assert (await world.transfer(moving)).body["status"] == "success"


async def silent(_request: Received, _writer: Writer) -> None:
    """Never an answer."""


@row("7-proxy-1-solana")
async def test_a_target_that_takes_too_long_consumes_the_credit_and_is_counted(
    tmp_path: Path, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = vars(Forwarder)["relay"].__kwdefaults__
    assert defaults["limits"].response_seconds == 600
    # The gateway's one limit, as it is but for its length: nobody waits ten minutes here.
    monkeypatch.setitem(defaults, "limits", replace(defaults["limits"], response_seconds=0.5))
    async with solana_market(target, Options(data_dir=tmp_path)) as market:
        gate = await market.gate(credits=2)
        paid = await market.payment(await market.requirements(gate))
        target.answer = silent
        for remaining in ("1", "0"):
            answer = await market.pay(gate, paid)
            assert (answer.status, answer.error_code) == (502, "UPSTREAM_TIMEOUT")
            assert answer.headers["x-credits-remaining"] == remaining
        assert (await market.pay(gate, paid)).status == 402
        read = await market.buyer.ask("GET", f"{market.url}{PAYGATES}/{gate['id']}")
        counters = read.json()["counters"]
        assert (counters["calls"], counters["failures"], counters["purchases"]) == (2, 2, 1)
