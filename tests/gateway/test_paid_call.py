"""The paid call against the running program (specification 1.2, 1.5, 3; contract 4)."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer
from tollkeeper.core.evm.encoding import Authorization, checksum_address
from tollkeeper.core.limits import CALL_BODY_SIZE_BYTES, PROXY_RESPONSE_SIZE_BYTES
from tollkeeper.sandbox.buyer import Answer


def assert_refused(answer: Answer, status: int, code: str, kind: str) -> dict[str, Any]:
    body = answer.json()
    assert (answer.status, body["error"]["code"], body["error"]["type"]) == (status, code, kind), body
    assert body["apiVersion"] == "v1"
    assert answer.headers["x402-version"] == "1"
    assert body["error"]["requestId"] == answer.headers["x-request-id"]
    if status == 402:
        assert body["x402Version"] == 1
        assert {"accepts", "paymentRequired", "x402"} <= body.keys()
    return body


async def test_challenge_holds_both_shapes_and_payment_requirements(market: Market) -> None:
    gate = await market.gate(credits=10, price="0.01", title="T", description="D")
    answer = await market.ask("GET", gate["accessUrl"])
    body = answer.json()
    assert answer.status == 402
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x402-version"] == "1"
    assert answer.headers["cache-control"] == "no-store"
    assert body["error"] == "Payment required"
    assert body["x402Version"] == 1
    assert body["paymentRequired"] == {"amount": "0.01", "currency": "USDC", "network": "base-sepolia"}
    assert body["x402"] == {"token": "USDC", "amount": "0.01", "address": gate["paymentAddress"]}
    assert body["resource"] == {"title": "T", "description": "D", "credits": 10, "onFailure": "consume"}
    (entry,) = body["accepts"]
    assert None not in entry.values()
    assert entry["maxAmountRequired"] == "10000"
    assert entry["resource"] == gate["accessUrl"]
    assert entry["network"] == "base-sepolia"
    assert entry["maxTimeoutSeconds"] == 60
    assert entry["extra"] == {"name": "USD Coin", "version": "2"}


@pytest.mark.parametrize("accept", ['application/json;profile="x402-a"', "text/html, application/json; profile=x402-a"])
async def test_profile_a_is_shape_a_to_the_letter(market: Market, accept: str) -> None:
    gate = await market.gate()
    answer = await market.ask("GET", gate["accessUrl"], headers={"Accept": accept})
    assert answer.status == 402
    assert answer.headers["x402-version"] == "1"
    assert answer.json() == {"x402": {"token": "USDC", "amount": "0.01", "address": gate["paymentAddress"]}}


async def test_profile_b_is_shape_b_to_the_letter(market: Market) -> None:
    gate = await market.gate(mimeType="text/plain")
    answer = await market.ask("GET", gate["accessUrl"], headers={"Accept": 'application/json;profile="x402-b"'})
    assert answer.json() == {
        "error": "Payment required",
        "x402Version": 1,
        "accepts": ["text/plain"],
        "paymentRequired": {"amount": "0.01", "currency": "USDC", "network": "base-sepolia"},
    }


async def test_paid_call_gets_the_targets_response_and_moves_exactly_the_price(market: Market) -> None:
    gate = await market.gate()
    stack = market.stack
    before = [stack.balance_micro(address) for address in (market.buyer.wallet.address, gate["paymentAddress"])]
    _, answer = await market.buy(gate)
    after = [stack.balance_micro(address) for address in (market.buyer.wallet.address, gate["paymentAddress"])]
    assert (answer.status, answer.body) == (200, b'{"served":true}')
    assert (before[0] - after[0], after[1] - before[1]) == (10_000, 10_000)
    receipt = answer.receipt
    assert receipt is not None
    assert receipt["success"] is True
    assert receipt["network"] == "base-sepolia"
    assert receipt["payer"] == checksum_address(market.buyer.wallet.address)
    assert receipt["amount"] == "10000"
    assert receipt["transaction"].startswith("0x")
    assert answer.headers["x-purchase-id"] == receipt["purchaseId"]
    assert answer.headers["cache-control"] == "private, no-store"
    assert len(market.target.requests) == 1


async def test_credits_count_down_to_a_402_that_can_be_paid_again(market: Market) -> None:
    gate = await market.gate(credits=3)
    payment = await market.payment(gate)
    remaining = []
    for _ in range(3):
        answer = await market.pay(gate, payment)
        assert answer.status == 200
        remaining.append(answer.headers["x-credits-remaining"])
        assert answer.headers["x-credits-total"] == "3"
    assert remaining == ["2", "1", "0"]
    answer = await market.pay(gate, payment)
    body = answer.json()
    assert answer.status == 402
    assert body["error"] == "Payment required"
    assert body["errorDetail"]["code"] == "CREDITS_EXHAUSTED"
    assert body["accepts"]
    assert len(market.target.requests) == 3


async def test_counters_tell_what_happened(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment, _ = await market.buy(gate)
    await market.pay(gate, payment)
    wanted = {"challenges": 1, "purchases": 1, "calls": 2, "failures": 0, "revenue": "0.01"}
    assert await market.counters(gate, lambda found: found == wanted) == wanted


async def test_unknown_slug_is_not_found_even_with_payment(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    answer = await market.ask("GET", "/nosuchgate", headers={"X-Payment": payment})
    assert_refused(answer, 404, "NOT_FOUND", "validation")


async def test_method_outside_the_list_is_refused_without_charge(market: Market) -> None:
    gate = await market.gate(method="GET, post")
    payment = await market.payment(gate)
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "OPTIONS"):
        answer = await market.pay(gate, payment, method)
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, POST, HEAD"
    assert market.target.requests == []
    assert (await market.pay(gate, payment, "POST")).status == 200


async def test_get_implies_head(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment = await market.payment(gate)
    answer = await market.pay(gate, payment, "HEAD")
    assert answer.status == 200
    assert answer.body == b""
    assert market.target.requests[0].method == "HEAD"
    assert answer.headers["x-credits-remaining"] == "1"


async def test_preflight_is_answered_by_the_gateway(market: Market) -> None:
    gate = await market.gate(method="POST")
    answer = await market.ask(
        "OPTIONS",
        gate["accessUrl"],
        headers={
            "Origin": "https://page.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-payment",
        },
    )
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == "x-payment"
    assert market.target.requests == []


async def test_receipts_are_exposed_to_pages(market: Market) -> None:
    gate = await market.gate()
    _, answer = await market.buy(gate)
    assert "X-Payment-Response" in answer.headers["access-control-expose-headers"]
    assert answer.headers["access-control-allow-origin"] == "*"


WRONG: list[tuple[str, Any, str, str]] = [
    ("underpaid", lambda a: replace(a, value=a.value - 1), "INSUFFICIENT_AMOUNT", "value"),
    ("expired", lambda a: replace(a, valid_before=a.valid_after + 1), "PAYMENT_EXPIRED", "validBefore"),
    ("not yet valid", lambda a: replace(a, valid_after=a.valid_before - 1), "PAYMENT_INVALID", "validAfter"),
    ("other recipient", lambda a: replace(a, pay_to="0x" + "77" * 20), "PAYMENT_INVALID", "recipient"),
    ("more than the buyer has", lambda a: replace(a, value=10**15), "INSUFFICIENT_FUNDS", "insufficient_funds"),
]


@pytest.mark.parametrize(("name", "change", "code", "what"), WRONG, ids=[wrong[0] for wrong in WRONG])
async def test_wrong_payment_is_a_402_that_says_why(
    market: Market, name: str, change: Any, code: str, what: str
) -> None:
    del name
    gate = await market.gate()
    answer = await market.pay(gate, await market.payment(gate, change))
    details = assert_refused(answer, 402, code, "payment")["error"]["details"]
    assert what in details.values()
    assert market.target.requests == []


async def test_signature_of_somebody_else_is_refused(market: Market) -> None:
    gate = await market.gate()

    def forged(authorization: Authorization) -> Authorization:
        return replace(authorization, payer="0x" + "99" * 20)

    answer = await market.pay(gate, await market.payment(gate, forged))
    details = assert_refused(answer, 402, "INVALID_SIGNATURE", "payment")["error"]["details"]
    assert details["expected"]["domain"] == {"name": "USD Coin", "version": "2"}


async def test_payment_under_another_token_name_is_told_the_right_one(market: Market) -> None:
    gate = await market.gate()
    challenge = await market.challenge(gate)
    challenge["accepts"][0]["extra"]["name"] = "USDC"
    answer = await market.pay(gate, market.buyer.sign(challenge))
    details = assert_refused(answer, 402, "INVALID_SIGNATURE", "payment")["error"]["details"]
    assert details["expected"]["domain"]["name"] == "USD Coin"


@pytest.mark.parametrize("network", ["base", "base-mainnet", "solana-mainnet", "nowhere"])
async def test_payment_for_another_network_is_refused(market: Market, network: str) -> None:
    gate = await market.gate()
    body = json.loads(base64.b64decode(await market.payment(gate)))
    body["network"] = network
    header = base64.b64encode(json.dumps(body).encode()).decode()
    assert_refused(await market.pay(gate, header), 402, "INVALID_NETWORK", "payment")


async def test_payment_used_at_one_gate_is_worth_nothing_at_another(market: Market) -> None:
    first, second = await market.gate(), await market.gate()
    payment, answer = await market.buy(first)
    receipt = answer.receipt
    assert receipt is not None
    details = assert_refused(await market.pay(second, payment), 402, "NONCE_ALREADY_USED", "payment")["error"][
        "details"
    ]
    assert details["transaction"] == receipt["transaction"]
    assert len(market.target.requests) == 1


async def test_more_than_the_price_is_taken_and_counts_as_revenue(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate, lambda a: replace(a, value=12_345))
    answer = await market.pay(gate, payment)
    assert answer.status == 200
    receipt = answer.receipt
    assert receipt is not None
    assert receipt["amount"] == "12345"
    found = await market.counters(gate, lambda counters: counters["revenue"] == "0.012345")
    assert found["revenue"] == "0.012345"


async def test_reencoded_header_does_not_spend_held_credits(market: Market) -> None:
    gate = await market.gate(credits=5)
    payment, _ = await market.buy(gate)
    reencoded = base64.b64encode(json.dumps(json.loads(base64.b64decode(payment)), indent=1).encode()).decode()
    answer = await market.pay(gate, reencoded)
    body = answer.json()
    assert (answer.status, body["error"]["code"], body["error"]["type"]) == (
        403,
        "CREDIT_TOKEN_REQUIRED",
        "authentication",
    )
    assert "accepts" not in body
    assert (await market.pay(gate, payment)).status == 200


async def test_credit_token_spends_and_ends_the_headers_worth(market: Market) -> None:
    gate = await market.gate(credits=3)
    payment, bought = await market.buy(gate)
    token = bought.headers["x-credit-token"]
    by_token = await market.ask("GET", gate["accessUrl"], headers={"X-Credit-Token": token})
    assert (by_token.status, by_token.headers["x-credits-remaining"]) == (200, "1")
    assert "x-credit-token" not in by_token.headers
    assert (await market.pay(gate, payment)).json()["error"]["code"] == "CREDIT_TOKEN_REQUIRED"
    other = await market.gate()
    elsewhere = await market.ask("GET", other["accessUrl"], headers={"X-Credit-Token": token})
    assert (elsewhere.status, elsewhere.json()["error"]["code"]) == (403, "CREDIT_TOKEN_REQUIRED")
    forged = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
    assert (await market.ask("GET", gate["accessUrl"], headers={"X-Credit-Token": forged})).status == 403


async def test_balance_is_free_and_only_the_payer_is_told_the_token(market: Market) -> None:
    gate = await market.gate(credits=4)
    payment, bought = await market.buy(gate)
    purchase_id = bought.headers["x-purchase-id"]
    wanted = {
        "slug": gate["slug"],
        "purchaseId": purchase_id,
        "granted": 4,
        "used": 1,
        "remaining": 3,
        "expiresAt": None,
    }
    by_payment = await market.ask("GET", "/api/v1/credits", headers={"X-Payment": payment})
    assert by_payment.json()["data"] == [wanted]
    token = bought.headers["x-credit-token"]
    assert (await market.ask("GET", "/api/v1/credits", headers={"X-Credit-Token": token})).json()["data"] == [wanted]
    both = await market.ask("GET", "/api/v1/credits", headers={"X-Credit-Token": token, "X-Payment": "unreadable"})
    assert (both.status, both.error_code) == (400, "PAYMENT_INVALID")
    access = await market.buyer.login(market.stack.gateway_url)
    mine = (await market.ask("GET", "/api/v1/credits", headers={"Authorization": f"Bearer {access}"})).json()["data"]
    assert {**wanted, "creditToken": token} in mine
    told = await market.ask(
        "GET", "/api/v1/credits", headers={"X-Payment": payment, "Authorization": f"Bearer {access}"}
    )
    assert told.json()["data"] == [{**wanted, "creditToken": token}]
    worse = await market.ask("GET", "/api/v1/credits", headers={"X-Payment": payment, "Authorization": "Bearer x"})
    assert (worse.status, worse.error_code) == (401, "INVALID_TOKEN")
    assert (await market.ask("GET", "/api/v1/credits")).json()["error"]["code"] == "AUTH_REQUIRED"
    assert (await market.pay(gate, payment)).headers["x-credits-remaining"] == "2"


async def test_require_auth_asks_for_the_bearer_before_the_payment(market: Market) -> None:
    gate = await market.gate(requireAuth=True)
    without = await market.ask("GET", gate["accessUrl"])
    assert_refused(without, 401, "AUTH_REQUIRED", "authentication")
    wrong = await market.ask("GET", gate["accessUrl"], headers={"Authorization": "Bearer junk"})
    assert_refused(wrong, 401, "INVALID_TOKEN", "authentication")
    bearer = {"Authorization": f"Bearer {await market.buyer.login(market.stack.gateway_url)}"}
    unpaid = await market.ask("GET", gate["accessUrl"], headers=bearer)
    assert unpaid.status == 402
    payment = market.buyer.sign(unpaid.json())
    assert_refused(await market.pay(gate, payment), 401, "AUTH_REQUIRED", "authentication")
    paid = await market.pay(gate, payment, **bearer)
    assert paid.status == 200
    assert market.target.requests[-1].header("authorization") is None


async def test_assume_valid_serves_and_ends_confirmed(market: Market) -> None:
    gate = await market.gate(assumeValid=True, credits=2)
    payment, answer = await market.buy(gate)
    assert answer.status == 200
    assert (await market.pay(gate, payment)).status == 200


async def test_secrets_and_hop_by_hop_headers_stay_here(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    headers = {
        "X-Payment": payment,
        "Cookie": "secret-cookie",
        "Authorization": "Bearer secret-bearer",
        "X-Forwarded-For": "6.6.6.6",
        "Forwarded": "for=6.6.6.6",
        "X-Payer": "0xforged",
        "X-Custom": "kept",
        "Accept-Encoding": "br",
    }
    assert (await market.ask("GET", gate["accessUrl"] + "?city=Oslo&x=1", headers=headers)).status == 200
    (request,) = market.target.requests
    assert request.path == "/?city=Oslo&x=1"
    for secret in (payment, "secret", "6.6.6.6", "0xforged"):
        assert secret.encode() not in request.raw_head
    assert request.header("x-custom") == "kept"
    assert request.header("accept-encoding") == "br"
    assert request.header("x-paygate-slug") == gate["slug"]
    assert request.header("x-payer") is not None
    assert request.header("x-purchase-id") is not None
    assert request.header("via") == "1.1 tollkeeper"
    assert request.headers[0] == ("host", market.target.url.removeprefix("http://"))


async def test_request_body_reaches_the_target_whole(market: Market) -> None:
    gate = await market.gate(method="POST", targetUrl=market.target.url + "/in?own=1")
    payment = await market.payment(gate)
    answer = await market.buyer.ask(
        "POST", gate["accessUrl"] + "?q=2", body={"text": "x" * 300_000}, headers={"X-Payment": payment}
    )
    assert answer.status == 200
    (request,) = market.target.requests
    assert request.path == "/in?own=1&q=2"
    assert json.loads(request.body) == {"text": "x" * 300_000}


def responding(head: bytes, body: bytes = b"") -> Any:
    async def answer(_request: Received, writer: Writer) -> None:
        writer.write(head + body)
        await writer.drain()
        writer.close()

    return answer


@pytest.mark.parametrize("assume_valid", [False, True])
async def test_response_of_the_limit_passes_and_one_byte_more_is_a_502_that_consumes(
    market: Market, *, assume_valid: bool
) -> None:
    gate = await market.gate(credits=3, assumeValid=assume_valid)
    payment = await market.payment(gate)
    size = PROXY_RESPONSE_SIZE_BYTES
    market.target.answer = responding(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, bytes(size))
    fits = await market.pay(gate, payment)
    assert (fits.status, len(fits.body)) == (200, size)
    market.target.answer = responding(b"HTTP/1.1 200 OK\r\n\r\n", bytes(size + 1))
    over = await market.pay(gate, payment)
    assert_refused(over, 502, "UPSTREAM_TOO_LARGE", "server")
    assert over.headers["x-credits-remaining"] == "1"
    assert over.receipt is not None


async def test_dead_target_is_a_502_with_receipt_that_consumes(market: Market) -> None:
    gate = await market.gate(credits=2, targetUrl="http://127.0.0.1:9/")
    payment, answer = await market.buy(gate)
    assert_refused(answer, 502, "UPSTREAM_UNREACHABLE", "server")
    assert answer.headers["x-credits-remaining"] == "1"
    assert answer.headers["x-credit-token"]
    again = await market.pay(gate, payment)
    assert again.headers["x-credits-remaining"] == "0"
    found = await market.counters(gate, lambda counters: counters["failures"] == 2)
    assert (found["calls"], found["failures"]) == (2, 2)


async def test_invalid_answer_of_the_target_is_a_502(market: Market) -> None:
    gate = await market.gate()
    market.target.answer = responding(b"this is not HTTP\r\n\r\n")
    _, answer = await market.buy(gate)
    assert_refused(answer, 502, "UPSTREAM_INVALID", "server")


async def test_redirects_and_errors_of_the_target_are_passed_on(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment = await market.payment(gate)
    market.target.answer = responding(
        b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    )
    moved = await market.pay(gate, payment)
    assert (moved.status, moved.headers["location"]) == (302, "http://169.254.169.254/")
    market.target.answer = responding(b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops")
    broken = await market.pay(gate, payment)
    assert (broken.status, broken.body) == (500, b"oops")
    assert len(market.target.requests) == 2


async def test_target_cannot_forge_a_receipt_or_speak_for_our_origin(market: Market) -> None:
    gate = await market.gate()
    market.target.answer = responding(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: a=b\r\nx-payment-response: forged\r\n"
        b"x-credit-token: forged\r\nstrict-transport-security: max-age=1\r\nclear-site-data: *\r\n"
        b"cache-control: public\r\ncontent-length: 2\r\n\r\nhi"
    )
    _, answer = await market.buy(gate)
    assert answer.status == 200
    assert "forged" not in answer.headers.values()
    assert not {"set-cookie", "strict-transport-security", "clear-site-data"} & answer.headers.keys()
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["content-security-policy"] == "sandbox"


async def test_large_head_is_431_and_large_payment_402(market: Market) -> None:
    gate = await market.gate()
    big = await market.pay(gate, "A" * 9000)
    assert_refused(big, 402, "PAYMENT_INVALID", "payment")
    huge = await market.pay(gate, "A" * 60_000)
    assert huge.status == 431


async def test_paths_below_a_slug_do_not_exist(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    for path in ("/", "/x", "//", "/x/../y"):
        answer = await market.ask("GET", gate["accessUrl"] + path, headers={"X-Payment": payment})
        assert answer.status == 404, path
    assert market.target.requests == []


async def test_query_that_no_target_could_be_sent_is_refused_before_it_is_paid_for(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    host, port = market.stack.gateway_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /{gate['slug']}?a=b#c HTTP/1.1\r\nHost: x\r\nX-Payment: {payment}\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()
    assert (await market.pay(gate, payment)).status == 200


async def test_token_without_credits_gives_way_to_a_fresh_payment(market: Market) -> None:
    gate = await market.gate(credits=1)
    _, bought = await market.buy(gate)
    token = bought.headers["x-credit-token"]
    answer = await market.pay(gate, await market.payment(gate), X_Credit_Token=token)
    assert (answer.status, answer.headers["x-credits-remaining"]) == (200, "0")
    assert answer.headers["x-credit-token"] != token


async def test_pages_can_read_every_refusal(market: Market) -> None:
    gate = await market.gate(requireAuth=True)
    for method, url, status in (
        ("GET", gate["accessUrl"], 401),
        ("PUT", gate["accessUrl"], 405),
        ("GET", market.stack.gateway_url + "/nosuchgate", 404),
    ):
        answer = await market.ask(method, url, headers={"Origin": "https://page.example"})
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_payment_used_by_somebody_elses_transaction_names_it(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    body = json.loads(base64.b64decode(payment))
    requirements = (await market.challenge(gate))["accepts"][0]
    settled = await market.ask(
        "POST",
        market.stack.hub_url + "/settle",
        body={"x402Version": 1, "paymentPayload": body, "paymentRequirements": requirements, "confirm": True},
    )
    assert settled.json()["success"] is True
    answer = await market.pay(gate, payment)
    details = assert_refused(answer, 402, "NONCE_ALREADY_USED", "payment")["error"]["details"]
    assert details["transaction"] == settled.json()["transaction"]
    assert market.target.requests == []


async def test_request_body_over_the_limit_is_refused_before_payment_where_it_says_so(market: Market) -> None:
    gate = await market.gate(method="POST")
    payment = await market.payment(gate)
    host, port = market.stack.gateway_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {payment}\r\n"
        f"Content-Length: {CALL_BODY_SIZE_BYTES + 1}\r\n\r\n".encode()
    )
    assert (await reader.readline()).split()[1] == b"413"
    writer.close()
    assert (await market.pay(gate, payment, "POST")).status == 200


async def test_answers_to_pipelined_requests_come_in_their_order(market: Market) -> None:
    gate = await market.gate()
    await market.challenge(gate)  # from now on the 402 is answered at once
    host, port = market.stack.gateway_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head, get = "HEAD /hub/healthz HTTP/1.1\r\nHost: x\r\n", f"GET /{gate['slug']} HTTP/1.1\r\nHost: x\r\n"
    writer.write(f"{head}\r\n{get}\r\n{head}\r\n{get}Connection: close\r\n\r\n".encode())
    answers = await reader.read()
    writer.close()
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", answers) == [b"200", b"402", b"200", b"402"]
