"""`headerAuthMode: hmac`: what a target gets is signed, and the guide's functions tell (spec 5.7; contract 4.7)."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import http_message_signatures
import pytest
from multidict import CIMultiDict

from tests.gateway.market import Market
from tests.gateway.recording_target import Received
from tests.gateway.verifying import LANGUAGES, Case, case_of
from tollkeeper.core.limits import SECRETS_IN_FORCE_MAX, SIGNED_BODY_SIZE_BYTES
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

SMALL = b'{"city":"Athens"}'


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


async def send(url: str, payment: str, method: str = "GET", body: Any = None, **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method,
            url,
            data=BytesIO(body) if isinstance(body, bytes) else body,
            headers={"X-Payment": payment, **names},
        ) as answer,
    ):
        await answer.read()
        return answer.status


async def signing_gate(market: Market, **fields: object) -> dict[str, Any]:
    return await market.gate(headerAuthMode="hmac", method="GET,POST", credits=50, **fields)


def secrets_of(*shown: dict[str, Any]) -> dict[str, str]:
    return {made["keyId"]: made["secret"] for made in shown}


async def forwarded(market: Market) -> tuple[dict[str, Any], list[Received]]:
    """A signing gate, and the requests of five kinds that its target got."""
    gate = await signing_gate(market, targetUrl=market.target.url + "/a%20b/c?own=1")
    payment = await market.payment(gate)
    url = gate["accessUrl"]
    largest = b"x" * SIGNED_BODY_SIZE_BYTES
    assert await send(f"{url}?city=Athens&x=%2F", payment) == 200
    assert await send(url, payment, "POST", SMALL, content_type="application/json") == 200
    assert await send(url, payment, "POST", in_chunks(largest)) == 200
    assert await send(url, payment, "POST", largest + b"x") == 200
    assert await send(url, payment, "POST", in_chunks(largest + b"x")) == 200
    return gate, market.target.requests


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_guides_functions_accept_what_is_forwarded_and_nothing_else(
    market: Market, language: str, tmp_path: Path
) -> None:
    gate, received = await forwarded(market)
    good = [case_of(request, market.target.url, secrets_of(gate)) for request in received]
    assert [case.body for case in good[:2]] == [b"", SMALL]
    assert ["content-digest" in case.headers for case in good] == [True, True, True, False, False]
    bad = [forged for case in good[:2] for forged in forgeries(case)]
    bad += [good[4].with_header("x-paygate-body", "signed"), good[4].without("x-paygate-body")]
    results = LANGUAGES[language](tmp_path, [*good, *bad])
    assert results[: len(good)] == [case.headers["x-payer"] for case in good]
    assert [result for result in results[len(good) :] if not result.startswith("refused: ")] == []
    assert len(bad) >= 40


def forgeries(case: Case) -> list[Case]:
    """What somebody could make of a request, who does not have the secret."""
    old = re.sub(r"created=\d+", f"created={int(time.time()) - 3600}", case.headers["signature-input"])
    shorter = case.headers["signature-input"].replace(' "x-payer"', "")
    return [
        replace(case, method="DELETE"),
        replace(case, uri=case.uri + "&more=1"),
        replace(case, uri=case.uri.replace("http://", "https://")),
        replace(case, body=case.body + b" "),
        replace(case, secrets={}),
        replace(case, secrets={"other": next(iter(case.secrets.values()))}),
        replace(case, secrets=dict.fromkeys(case.secrets, "pgs_" + "A" * 43)),
        case.with_header("x-payer", "0x" + "1" * 40),
        case.with_header("x-purchase-id", "pur_1"),
        case.with_header("x-paygate-slug", "other"),
        case.with_header("content-digest", "sha-256=:AAAA:"),
        case.with_header("signature-input", old),
        case.with_header("signature-input", shorter),
        case.with_header("signature-input", case.headers["signature-input"].replace("nonce", "nunce")),
        case.with_header("signature", "paygate=:AAAA:"),
        case.with_header("signature", "paygate=::"),
        case.with_header("signature", ""),
        case.without("signature"),
        case.without("signature-input"),
        case.without("content-digest"),
    ]


async def test_an_independent_implementation_accepts_every_signature(market: Market) -> None:
    gate, received = await forwarded(market)

    class Resolver(http_message_signatures.HTTPSignatureKeyResolver):
        def resolve_public_key(self, key_id: str) -> bytes:
            assert key_id == gate["keyId"]
            return str(gate["secret"]).encode()

    verifier = http_message_signatures.HTTPMessageVerifier(
        signature_algorithm=http_message_signatures.algorithms.HMAC_SHA256, key_resolver=Resolver()
    )
    for request in received:
        headers = CIMultiDict(request.headers)
        message = SimpleNamespace(method=request.method, url=market.target.url + request.path, headers=headers)
        (verified,) = verifier.verify(message)
        assert verified.label == "paygate"
        covered = [name.strip('"') for name in verified.covered_components]
        assert {"@method", "@target-uri", "x-payer", "x-purchase-id", "x-paygate-slug"} <= set(covered)
        assert len({"content-digest", "x-paygate-body"} & set(covered)) == 1
        assert verified.parameters["alg"] == "hmac-sha256"
        assert re.fullmatch(r"[A-Za-z0-9_-]{16}", str(verified.parameters["nonce"]))
    nonces = [re.findall('nonce="([^"]+)"', request.header("signature-input") or "") for request in received]
    assert len({nonce for (nonce,) in nonces}) == len(received)


async def test_bodies_are_forwarded_whole_however_they_are_signed(market: Market) -> None:
    _, received = await forwarded(market)
    sizes = [len(request.body) for request in received]
    assert sizes == [0, len(SMALL), SIGNED_BODY_SIZE_BYTES, SIGNED_BODY_SIZE_BYTES + 1, SIGNED_BODY_SIZE_BYTES + 1]
    assert {request.header("x-paygate-body") for request in received[3:]} == {"unsigned"}
    assert {request.header("x-paygate-body") for request in received[:3]} == {None}
    # What was read whole has its length; what was not goes on as it comes.
    assert [request.header("transfer-encoding") for request in received] == [None] * 4 + ["chunked"]


async def test_a_caller_cannot_put_a_signature_beside_the_gateways(market: Market) -> None:
    gate = await signing_gate(market)
    payment = await market.payment(gate)
    forged = {
        "Signature": "paygate=:AAAA:",
        "SIGNATURE_INPUT": 'paygate=("@method")',
        "Content_Digest": "sha-256=:AAAA:",
        "X-Paygate-Body": "unsigned",
        "X_Paygate_Slug": "other",
    }
    assert await send(gate["accessUrl"], payment, **forged) == 200
    (request,) = market.target.requests
    spelled = [name.replace("_", "-") for name, _ in request.headers]
    for name in ("signature", "signature-input", "content-digest", "x-paygate-slug"):
        assert spelled.count(name) == 1
    assert "x-paygate-body" not in spelled
    assert b"AAAA" not in request.raw_head


async def test_a_gate_without_signing_sends_no_signature_and_leaves_the_callers_alone(market: Market) -> None:
    gate = await market.gate(credits=5)
    assert {"secret", "keyId"}.isdisjoint(gate)
    assert gate["headerAuthMode"] == "none"
    assert await send(gate["accessUrl"], await market.payment(gate), signature="sig=:AAAA:") == 200
    (request,) = market.target.requests
    assert request.header("signature") == "sig=:AAAA:"
    assert request.header("signature-input") is None
    assert request.header("content-digest") is None


async def test_the_secret_is_shown_once(market: Market) -> None:
    gate = await signing_gate(market)
    path = f"/api/v1/paygates/{gate['id']}"
    assert re.fullmatch(r"pgs_[A-Za-z0-9_-]{43}", gate["secret"])
    assert re.fullmatch(r"pgk_[A-Za-z0-9_-]{12}", gate["keyId"])
    answers = [
        await market.ask("GET", path),
        await market.ask("GET", "/api/v1/paygates?limit=100"),
        await market.ask("PUT", path, body={"title": "x", "headerAuthMode": "hmac"}),
        await market.ask("PUT", path, body={"headerAuthMode": "none"}),
        await market.ask("PUT", path, body={"headerAuthMode": "hmac"}),
    ]
    for answer in answers:
        assert answer.status == 200
        assert gate["secret"].encode() not in answer.body
        assert b'"secret"' not in answer.body


async def test_turning_signing_on_shows_a_secret_that_signs(market: Market, tmp_path: Path) -> None:
    gate = await market.gate(credits=5)
    payment = await market.payment(gate)
    assert await send(gate["accessUrl"], payment) == 200
    path = f"/api/v1/paygates/{gate['id']}"
    shown = (await market.ask("PUT", path, body={"headerAuthMode": "hmac"})).json()
    assert await send(gate["accessUrl"], payment) == 200
    (await market.ask("PUT", path, body={"headerAuthMode": "none"})).json()
    assert await send(gate["accessUrl"], payment) == 200
    first, second, third = market.target.requests
    assert (first.header("signature"), third.header("signature")) == (None, None)
    case = case_of(second, market.target.url, secrets_of(shown))
    assert LANGUAGES["python"](tmp_path, [case]) == [second.header("x-payer")]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_changed_secret_signs_beside_the_former_one(market: Market, language: str, tmp_path: Path) -> None:
    gate = await signing_gate(market)
    payment = await market.payment(gate)
    path = f"/api/v1/paygates/{gate['id']}/secret"
    changed = (await market.ask("POST", path)).json()
    assert changed["keyId"] != gate["keyId"]
    assert await send(gate["accessUrl"], payment) == 200
    (request,) = market.target.requests
    inputs = request.header("signature-input") or ""
    assert re.findall(r'(paygate(?:-2)?)=\(.*?keyid="([^"]+)"', inputs) == [
        ("paygate", changed["keyId"]),
        ("paygate-2", gate["keyId"]),
    ]
    known = (secrets_of(gate), secrets_of(changed), secrets_of(gate, changed))
    good = [case_of(request, market.target.url, secrets) for secrets in known]
    # Who knows neither, or takes one's text for the other's, is told no.
    swapped = {gate["keyId"]: changed["secret"], changed["keyId"]: gate["secret"]}
    bad = [replace(good[0], secrets=secrets) for secrets in ({"pgk_x": gate["secret"]}, swapped)]
    bad += [one.with_header("x-payer", "0x" + "1" * 40) for one in good]
    results = LANGUAGES[language](tmp_path, [*good, *bad])
    assert results[: len(good)] == [request.header("x-payer")] * len(good)
    assert [result for result in results[len(good) :] if not result.startswith("refused: ")] == []


async def test_an_independent_implementation_accepts_both_signatures_of_a_changed_secret(market: Market) -> None:
    gate = await signing_gate(market)
    changed = (await market.ask("POST", f"/api/v1/paygates/{gate['id']}/secret")).json()
    assert await send(gate["accessUrl"], await market.payment(gate)) == 200
    (request,) = market.target.requests
    secrets = secrets_of(gate, changed)

    class Resolver(http_message_signatures.HTTPSignatureKeyResolver):
        def resolve_public_key(self, key_id: str) -> bytes:
            return secrets[key_id].encode()

    verifier = http_message_signatures.HTTPMessageVerifier(
        signature_algorithm=http_message_signatures.algorithms.HMAC_SHA256, key_resolver=Resolver()
    )
    verifier.allow_label_only_selection = True
    headers = CIMultiDict(request.headers)
    message = SimpleNamespace(method=request.method, url=market.target.url + request.path, headers=headers)
    for label, key_id in (("paygate", changed["keyId"]), ("paygate-2", gate["keyId"])):
        with pytest.warns(UserWarning, match="not covered by the signature"):
            (verified,) = verifier.verify(message, expect_label=label)
        assert (verified.label, verified.parameters["keyid"]) == (label, key_id)


async def test_a_secret_can_be_changed_a_few_times_a_day(market: Market) -> None:
    gate = await signing_gate(market)
    path = f"/api/v1/paygates/{gate['id']}/secret"
    answers = [await market.ask("POST", path) for _ in range(SECRETS_IN_FORCE_MAX)]
    assert [answer.status for answer in answers] == [200] * (SECRETS_IN_FORCE_MAX - 1) + [409]
    assert answers[-1].json()["error"]["code"] == "CONFLICT"
    unsigned = await market.gate()
    refused = await market.ask("POST", f"/api/v1/paygates/{unsigned['id']}/secret")
    assert (refused.status, refused.json()["error"]["code"]) == (409, "CONFLICT")


async def test_only_the_owner_changes_a_secret(market: Market) -> None:
    wallets = derive_wallets()
    async with Buyer(wallets.relayer) as stranger:
        owner, other = [
            {"Authorization": f"Bearer {await person.login(market.stack.gateway_url)}"}
            for person in (market.buyer, stranger)
        ]
    body = {"targetUrl": market.target.url, "price": "0.01", "headerAuthMode": "hmac"}
    gate = (await market.ask("POST", "/api/v1/paygates", body=body, headers=owner)).json()
    path = f"/api/v1/paygates/{gate['id']}/secret"
    assert (await market.ask("POST", path, headers=other)).status == 403
    assert (await market.ask("POST", path)).status == 401
    assert (await market.ask("POST", "/api/v1/paygates/999999/secret", headers=owner)).status == 404
    answer = await market.ask("POST", path, headers=owner)
    assert answer.status == 200
    assert answer.json().keys() == {"secret", "keyId", "apiVersion", "timestamp"}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("value", ["HMAC", "", None, True, "sha256", ["hmac"]])
async def test_another_mode_is_refused(market: Market, value: object) -> None:
    body = {"targetUrl": market.target.url, "price": "0.01", "headerAuthMode": value}
    answer = await market.ask("POST", "/api/v1/paygates", body=body)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "INVALID_PARAMETER")
