"""x402 version 2 at a gate: the header beside the 402's body, payments in either header, receipts (contract 10.1)."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from bench.nginx import nginx
from tests.gateway.market import Market
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tests.gateway.solana_market import solana_market
from tests.gateway.version2 import (
    EVM,
    SOLANA,
    Client,
    authorized,
    decoded,
    encoded,
    in_version_1,
    offers,
    receipt,
    required,
    shown,
    signed,
    transacted,
    wallet_of,
)
from tests.ports import free_port
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.limits import DESCRIPTION_LENGTH, TITLE_LENGTH
from tollkeeper.sandbox.stack import Options
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

MANY = 1000


def client(market: Market, gate: dict[str, Any], method: str = "GET") -> Client:
    return Client(market.buyer, gate["accessUrl"], method)


async def answer_402(_request: Received, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 402 Payment Required\r\ncontent-length: 0\r\n\r\n")


async def on_both(market: Market, **fields: object) -> dict[str, Any]:
    payee = derive_solana_wallets().owner.address
    return await market.gate(accepts=[{"network": "solana-devnet", "paymentAddress": payee}], **fields)


async def test_a_402_s_header_says_in_version_2_what_its_body_says_in_version_1(market: Market) -> None:
    gate = await market.gate(title="Weather", description="Of one city", price="0.25", mimeType="text/plain")
    answer = await market.ask("GET", gate["accessUrl"])
    (entry,) = answer.json()["accepts"]
    assert required(answer) == {
        "x402Version": 2,
        "error": "Payment required",
        "resource": {"url": gate["accessUrl"], "description": "Of one city", "mimeType": "text/plain"},
        "accepts": [
            {
                "scheme": "exact",
                "network": EVM,
                "amount": "250000",
                "asset": entry["asset"],
                "payTo": entry["payTo"],
                "maxTimeoutSeconds": 60,
                "extra": {**entry["extra"], "paymentFlow": "upfront"},
            }
        ],
    }


async def longest(market: Market) -> dict[str, Any]:
    """A gate whose texts are as long as they may be."""
    return await on_both(
        market,
        slug=f"{uuid.uuid4().hex * 2}",
        title="水" * TITLE_LENGTH,
        description="水" * DESCRIPTION_LENGTH,
        mimeType=f"{'m' * 127}/{'t' * 127}",
        price="999999.999999",
        credits=1_000_000,
    )


async def test_the_longest_head_of_a_402_fits_into_a_proxy_s_usual_buffer(market: Market) -> None:
    gate = await longest(market)
    payer = client(market, gate)
    unpaid, poor = await market.ask("GET", gate["accessUrl"]), await payer.pay(await payer.payment(value="1"))
    for answer in (unpaid, poor, await payer.pay("nonsense")):
        assert len(answer.headers["payment-required"]) <= 2600
        assert sum(len(name) + len(value) + 4 for name, value in answer.headers.items()) + 64 <= 3900
        assert len(required(answer)["accepts"]) == 2


async def test_nginx_passes_the_longest_head_and_clients_read_it_all_by_their_defaults(
    market: Market, tmp_path: Path
) -> None:
    own = urlsplit((await longest(market))["accessUrl"])
    port = free_port()
    block = f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{own.netloc}; }} }}"
    script = "fetch(process.argv[1]).then(answer => console.log(answer.headers.get('payment-required')))"
    with nginx(block, port, 0, tmp_path / "nginx"):
        for url in (own.geturl(), own._replace(netloc=f"127.0.0.1:{port}").geturl()):
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert answer.status == 402
                header = answer.headers["payment-required"]
            node = await asyncio.create_subprocess_exec("node", "-e", script, url, stdout=asyncio.subprocess.PIPE)
            told, _ = await node.communicate()
            assert told.decode().strip() == header


async def test_every_402_of_a_gate_has_the_same_header_but_for_the_reason(market: Market) -> None:
    gate = await market.gate(method="GET, POST")
    url = gate["accessUrl"]
    plain = await market.ask("GET", url)
    alike = [
        await market.ask("POST", url, body={"of": "mine"}),
        await market.ask("HEAD", url),
        await market.ask("GET", url, headers={"Accept": 'application/json;profile="x402-a"'}),
        await market.ask("GET", url, headers={"Accept": 'application/json;profile="x402-b"'}),
        await market.ask("GET", url, headers={"Accept": "text/html", "User-Agent": "Mozilla/5.0"}),
    ]
    assert {answer.headers["payment-required"] for answer in alike} == {plain.headers["payment-required"]}
    bought = await market.buy(gate)
    exhausted = await market.pay(gate, bought[0])
    assert exhausted.error_code == "CREDITS_EXHAUSTED"
    assert exhausted.headers["payment-required"] == plain.headers["payment-required"]
    refused = await market.ask("GET", url, headers={"X-Payment": "nonsense"})
    assert required(refused) == required(plain)  # as if nothing had been paid, which the reference server says, too
    poor = await Client(market.buyer, url).pay(await client(market, gate).payment(value="9999"))
    reason = poor.json()["error"]["details"]["reason"]
    assert required(poor) == {**required(plain), "error": reason}


async def test_both_families_stand_in_the_header_and_the_gate_s_own_network_is_first(market: Market) -> None:
    gate = await on_both(market)
    answer = await market.ask("GET", gate["accessUrl"])
    assert [offer["network"] for offer in required(answer)["accepts"]] == [EVM, SOLANA]
    assert [offer["network"] for offer in answer.json()["accepts"]] == ["base-sepolia"]
    named = await market.ask("GET", gate["accessUrl"], headers={"X-Payment-Network": "solana-devnet"})
    assert [offer["network"] for offer in required(named)["accepts"]] == [SOLANA, EVM]
    assert set(offers(answer)[SOLANA]["extra"]) == {"feePayer", "paymentFlow"}


@pytest.mark.parametrize("name", ["PAYMENT-SIGNATURE", "X-Payment"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_payment_of_version_2_buys_in_either_header(market: Market, name: str, method: str) -> None:
    gate = await market.gate(method=method, credits=3)
    payer = client(market, gate, method)
    payment = signed(await payer.offer(), wallet_of(market.buyer))
    answer = await payer.ask(**{name: payment})
    assert answer.status == 200, answer.body
    told, former = receipt(answer), answer.receipt
    assert former is not None
    assert told == {
        "success": True,
        "payer": checksum_address(market.buyer.wallet.address),
        "transaction": former["transaction"],
        "network": EVM,
    }
    assert former["network"] == "base-sepolia"
    assert (answer.headers["x-credits-remaining"], answer.headers["x-credits-total"]) == ("2", "3")
    assert answer.headers["cache-control"].startswith("private")
    token = await payer.ask(X_Credit_Token=answer.headers["x-credit-token"])
    assert (token.status, token.headers["x-credits-remaining"], receipt(token)) == (200, "1", None)
    assert not any(name.startswith("payment") for name, _ in market.target.requests[-1].headers)


async def test_a_gate_on_both_families_is_paid_on_either(tmp_path: Path, target: RecordingTarget) -> None:
    async with solana_market(target, Options(data_dir=tmp_path)) as market:
        payee = checksum_address(derive_wallets().owner.address)
        gate = await market.gate(credits=2, accepts=[{"network": "base-sepolia", "paymentAddress": payee}])
        payer = Client(market.buyer, gate["accessUrl"])
        offer = await payer.offer(SOLANA)
        payment = shown(offer, await transacted(market, offer))
        on_solana, on_evm = await payer.pay(payment), await payer.call()
        again, former = await payer.pay(payment), await payer.ask(X_Payment=in_version_1(payment))
    assert [(answer.status, answer.headers["x-credits-remaining"]) for answer in (on_solana, on_evm)] == [
        (200, "1")
    ] * 2
    told = [receipt(answer) for answer in (on_solana, on_evm)]
    assert [one and one["network"] for one in told] == [SOLANA, EVM]
    assert [answer.error_code for answer in (again, former)] == ["CREDIT_TOKEN_REQUIRED"] * 2


async def test_a_payment_of_version_1_buys_in_the_new_header_and_is_answered_as_ever(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment = await market.payment(gate)
    answers = [await client(market, gate).pay(payment), await market.pay(gate, payment)]
    assert [(answer.status, receipt(answer)) for answer in answers] == [(200, None), (200, None)]


async def test_two_different_payments_are_refused_and_neither_is_taken(market: Market) -> None:
    gate = await market.gate()
    payer = client(market, gate)
    first, second = await payer.payment(), await market.payment(gate)
    answer = await payer.pay(first, X_Payment=second)
    assert (answer.status, answer.error_code) == (400, "INVALID_PARAMETER")
    assert [(await payer.pay(first)).status, (await market.pay(gate, second)).status] == [200, 200]


async def test_one_authorization_in_both_headers_is_one_payment(market: Market) -> None:
    gate = await market.gate(credits=5)
    payer = client(market, gate)
    payment = await payer.payment()
    answer = await payer.pay(payment, X_Payment=in_version_1(payment))
    assert (answer.status, answer.headers["x-credits-remaining"]) == (200, "4")
    assert receipt(answer) is not None


async def test_one_authorization_sent_as_both_versions_at_once_is_one_purchase(market: Market) -> None:
    gate = await market.gate(credits=2)
    payer = client(market, gate)
    offer, wallet, room = await payer.offer(), wallet_of(market.buyer), asyncio.Semaphore(20)

    async def both(at: int) -> str:
        async with room:
            payment = signed(offer, wallet)
            asked = [payer.pay(payment, X_Credits="buy"), payer.ask(X_Payment=in_version_1(payment))]
            answers = await asyncio.gather(*asked[:: 1 if at % 2 else -1])
        assert Counter(answer.status for answer in answers) in ({200: 1, 403: 1}, {200: 2})
        (purchase,) = {answer.headers["x-purchase-id"] for answer in answers if answer.status == 200}
        return purchase

    assert len({*(await asyncio.gather(*map(both, range(MANY))))}) == MANY
    counters = await market.counters(gate, lambda counters: counters["purchases"] == MANY)
    assert (counters["purchases"], counters["revenue"]) == (MANY, str(MANY // 100))


async def test_the_header_that_bought_counts_until_it_was_served_once(market: Market) -> None:
    gate = await market.gate(credits=3)
    payer = client(market, gate)
    payment = await payer.payment()
    bought = await payer.pay(payment)
    assert bought.status == 200
    served = len(market.target.requests)
    again = [await payer.pay(payment), await payer.ask(X_Payment=payment)]
    former = await payer.ask(X_Payment=in_version_1(payment))
    refusals = {(answer.status, answer.error_code) for answer in (*again, former)}
    assert refusals == {(403, "CREDIT_TOKEN_REQUIRED")}
    assert "was served once" in again[0].json()["error"]["message"]
    assert len(market.target.requests) == served
    assert (await payer.ask(X_Credit_Token=bought.headers["x-credit-token"])).status == 200


async def test_a_payment_that_was_not_served_counts_again(market: Market) -> None:
    gate = await market.gate(credits=3, onFailure="restore")
    payer = client(market, gate)
    payment = await payer.payment()
    market.target.answer = answer_402
    failed = await payer.pay(payment)
    assert (failed.status, failed.headers["x-credits-remaining"]) == (502, "3")
    told = receipt(failed)
    assert told is not None
    assert told["success"] is True
    market.target.answer = answer_ok
    assert (await payer.pay(payment)).status == 200
    assert (await payer.pay(payment)).status == 403


@pytest.mark.parametrize(
    "changed",
    [
        {"amount": "9999"},
        {"amount": "10001"},
        {"payTo": "lower"},
        {"maxTimeoutSeconds": 300},
        {"extra": "without name"},
        {"network": SOLANA},
        {"scheme": "upto"},
        {"asset": "lower"},
    ],
    ids=str,
)
async def test_a_payment_must_take_an_offer_of_the_gate(market: Market, changed: dict[str, Any]) -> None:
    gate = await market.gate()
    payer = client(market, gate)
    offer = await payer.offer()
    accepted = {**offer, **changed}
    for name, value in changed.items():
        if value == "lower":
            accepted[name] = offer[name].lower()
        elif value == "without name":
            accepted[name] = {key: said for key, said in offer["extra"].items() if key != "name"}
    payload = authorized(offer, wallet_of(market.buyer))
    answer = await payer.pay(shown(accepted, payload))
    assert answer.status == 402
    assert answer.json()["x402Version"] == 1
    assert (await payer.pay(shown(offer, payload))).status == 200


async def test_resource_and_extensions_are_not_judged_and_extra_may_hold_more(market: Market) -> None:
    gate = await market.gate()
    payer = client(market, gate)
    offer = await payer.offer()
    payload = authorized(offer, wallet_of(market.buyer))
    accepted = {**offer, "extra": {**offer["extra"], "mine": {"too": None}}}
    odd = {"resource": {"url": "https://elsewhere.example/"}, "extensions": {"unheard-of": {"of": [1, None]}}}
    answer = await payer.pay(shown(accepted, payload, **odd))
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(("value", "code"), [("9999", "INSUFFICIENT_AMOUNT"), ("10001", "PAYMENT_INVALID")])
async def test_the_value_is_exactly_the_amount(market: Market, value: str, code: str) -> None:
    gate = await market.gate()
    payer = client(market, gate)
    answer = await payer.pay(await payer.payment(value=value))
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (402, code)
    assert error["details"]["reason"] == "invalid_exact_evm_payload_authorization_value_mismatch"
    assert required(answer)["error"] == error["details"]["reason"]


async def test_a_former_offer_buys_the_former_terms_for_two_minutes(market: Market) -> None:
    gate = await market.gate(credits=2)
    payer = client(market, gate)
    former = await payer.offer()
    changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"price": "0.03", "credits": 9})
    assert changed.status == 200
    wallet = wallet_of(market.buyer)
    bought = await payer.pay(signed(former, wallet))
    assert (bought.status, bought.headers["x-credits-total"]) == (200, "2")
    now = await payer.offer()
    # A payment of one amount that says to take the other one's offer is neither's.
    mixed = await payer.pay(shown(now, authorized(former, wallet)))
    assert mixed.status == 402
    assert (await payer.pay(signed(now, wallet), X_Credits="buy")).headers["x-credits-total"] == "9"


async def test_a_payment_to_the_former_address_is_refused(market: Market) -> None:
    gate = await market.gate()
    payer = client(market, gate)
    payment = await payer.payment()
    other = checksum_address(derive_wallets().second_buyer.address)
    body = {"paymentAddress": other}
    assert (await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body=body)).status == 200
    answer = await payer.pay(payment)
    assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID")
    assert required(answer)["error"] == "No matching payment requirements"
    assert offers(answer)[EVM]["payTo"] == other


@pytest.mark.parametrize("version", [1, 2])
async def test_pages_may_read_and_send_what_they_need(market: Market, version: int) -> None:
    gate = await market.gate()
    wanted = "content-type, payment-signature, x-credits, access-control-expose-headers"
    page = {
        "Origin": "https://shop.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": wanted,
    }
    preflight = await market.ask("OPTIONS", gate["accessUrl"], headers=page)
    assert preflight.headers["access-control-allow-headers"] == wanted
    payer = client(market, gate)
    payment = await payer.payment()
    paid = await (payer.pay(payment) if version == 2 else payer.ask(X_Payment=in_version_1(payment)))
    for answer in (await market.ask("GET", gate["accessUrl"]), paid):
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert {"PAYMENT-REQUIRED", "PAYMENT-RESPONSE"} <= exposed


@pytest.mark.parametrize("name", ["PAYMENT-REQUIRED", "Payment_Response", "payment.signature", "PAYMENT-Signature"])
async def test_what_a_target_says_of_payments_reaches_nobody(market: Market, name: str) -> None:
    gate = await market.gate()

    async def answer_so(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n%b: of-the-target\r\ncontent-length: 0\r\n\r\n" % name.encode())

    market.target.answer = answer_so
    payer = client(market, gate)
    answer = await payer.call()
    assert answer.status == 200
    assert "of-the-target" not in answer.headers.values()
    assert decoded(answer.headers["payment-response"])["success"] is True


@pytest.mark.parametrize("name", ["payment-required", "payment-response", "payment-signature", "x-credits"])
async def test_what_a_caller_says_of_payments_reaches_no_target(market: Market, name: str) -> None:
    gate = await market.gate(credits=3)
    payer = client(market, gate)
    payment = await payer.payment()
    token = (await payer.pay(payment)).headers["x-credit-token"]
    sent = {"X-Credit-Token": token, name: payment}
    answer = await payer.buyer.ask("GET", payer.url, headers=sent)
    assert answer.status == 200, answer.body
    assert market.target.requests[-1].header(name) is None
    other = await payer.buyer.ask("GET", payer.url, headers={"X-Credit-Token": token, name.replace("-", "_"): "1"})
    assert (other.status, other.error_code) == (400, "INVALID_PARAMETER")


async def test_a_price_above_what_clients_spend_and_a_text_that_is_cut_are_warned_of(market: Market) -> None:
    plain = await market.gate(price="1", description="ä" * 400)
    assert "warnings" not in plain
    gate = await market.gate(price="1.000001", description="ä" * 481)
    assert [warning["field"] for warning in gate["warnings"]] == ["price", "description"]
    assert "at most 1 USDC" in gate["warnings"][0]["message"]
    assert "480 of its 481" in gate["warnings"][1]["message"]
    changed = await market.ask("PUT", f"/api/v1/paygates/{plain['id']}", body={"price": "2"})
    assert [warning["field"] for warning in changed.json()["warnings"]] == ["price"]
    titled = await market.gate(title="水" * 200, description="")
    assert "warnings" not in titled
    assert required(await market.ask("GET", titled["accessUrl"]))["resource"]["description"] == "水" * 200


async def test_what_is_no_payment_is_as_unpaid_and_says_so(market: Market) -> None:
    gate = await market.gate()
    payer = client(market, gate)
    unsupported = encoded({**decoded(in_version_1(await payer.payment())), "x402Version": 3})
    errors = {header: required(await payer.pay(header))["error"] for header in ("???", encoded({}), unsupported)}
    assert list(errors.values()) == [
        "Payment required",
        "Unsupported x402 version: undefined",
        "Unsupported x402 version: 3",
    ]
