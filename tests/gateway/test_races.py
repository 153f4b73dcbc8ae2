"""Many requests at once with one payment, on real sockets (contract 4.3; security A-01, A-05, A-06, A-20)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer, answer_ok
from tests.interop.stack import ask
from tollkeeper.core.usdc import format_usdc

CALLERS = 1000


async def call_at_once(urls: list[str], headers: dict[str, str]) -> list[tuple[int, dict[str, Any]]]:
    """Status and body of one GET per URL, all at the same time, each on a connection of its own."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=90)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def call(url: str) -> tuple[int, dict[str, Any]]:
            async with session.get(url, headers=headers) as answer:
                return answer.status, await answer.json(content_type=None)

        return await asyncio.gather(*(call(url) for url in urls))


def settlements_of(market: Market, payment: str) -> int:
    """How often the chain saw this payment carried out: its AuthorizationUsed events."""
    nonce = json.loads(base64.b64decode(payment))["payload"]["authorization"]["nonce"]
    topic = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
    query = {"fromBlock": "0x0", "address": market.stack.token, "topics": [topic, None, nonce]}
    _, answer = ask(market.stack.rpc_url, {"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": [query]})
    return len(answer["result"])


@pytest.mark.parametrize("granted", [1, 7])
async def test_one_payment_by_a_thousand_callers_settles_once_and_serves_what_it_bought(
    market: Market, granted: int
) -> None:
    gate = await market.gate(credits=granted)
    payment = await market.payment(gate)
    answers = await call_at_once([gate["accessUrl"]] * CALLERS, {"X-Payment": payment})
    assert Counter(status for status, _ in answers) == {200: granted, 402: CALLERS - granted}
    assert len(market.target.requests) == granted
    assert settlements_of(market, payment) == 1
    refused = [body for status, body in answers if status == 402]
    assert {body["errorDetail"]["code"] for body in refused} == {"CREDITS_EXHAUSTED"}


async def test_one_payment_at_two_gates_at_once_buys_at_one(market: Market) -> None:
    first, second = await market.gate(), await market.gate()
    payment = await market.payment(first)
    urls = [first["accessUrl"], second["accessUrl"]] * 500
    answers = await call_at_once(urls, {"X-Payment": payment})
    assert sum(status == 200 for status, _ in answers) == 1
    assert len(market.target.requests) == 1
    assert settlements_of(market, payment) == 1
    for status, body in answers:
        assert status in {200, 402}
        if status == 402:
            code = body["errorDetail"]["code"] if "errorDetail" in body else body["error"]["code"]
            assert code in {"CREDITS_EXHAUSTED", "NONCE_ALREADY_USED"}


async def test_two_hundred_buyers_at_once_are_all_served_and_paid_for_once(market: Market) -> None:
    gate = await market.gate()
    challenge = await market.challenge(gate)
    payments = [market.buyer.sign(challenge) for _ in range(200)]
    before = market.stack.balance_micro(gate["paymentAddress"])

    answers = await asyncio.gather(*(market.pay(gate, payment) for payment in payments))
    assert Counter(answer.status for answer in answers) == {200: 200}
    assert market.stack.balance_micro(gate["paymentAddress"]) - before == 200 * 10_000
    assert len({answer.headers["x-purchase-id"] for answer in answers}) == 200


async def test_each_purchase_under_a_stream_of_price_changes_equals_one_version_that_was_shown(
    market: Market,
) -> None:
    """A version n sells n credits for n micro-units; the terms bought must never mix two versions."""
    gate = await market.gate(price="0.000001", credits=1)
    versions = range(2, 40)
    served: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def update() -> None:
        for number in versions:
            body = {"price": format_usdc(number), "credits": number}
            answer = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body=body)
            assert answer.status == 200
        done.set()

    async def buy() -> None:
        while not done.is_set():
            _, answer = await market.buy(gate)
            assert answer.status == 200, answer.body
            receipt = answer.receipt
            assert receipt is not None
            served.append((int(receipt["amount"]), int(answer.headers["x-credits-total"])))

    await asyncio.gather(update(), *(buy() for _ in range(8)))
    assert served
    for amount, credits_total in served:
        assert amount == credits_total


async def test_no_payment_to_a_former_address_is_taken_after_the_updates_answer(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    updated = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"paymentAddress": "0x" + "77" * 20})
    assert updated.status == 200
    answer = await market.pay(gate, payment)
    body = answer.json()
    assert (answer.status, body["error"]["code"]) == (402, "PAYMENT_INVALID")
    assert body["accepts"][0]["payTo"].lower() == "0x" + "77" * 20
    assert settlements_of(market, payment) == 0


async def test_caller_who_leaves_while_it_settles_keeps_the_credit(market: Market) -> None:
    gate = await market.gate()
    payment = await market.payment(gate)
    _, writer = await asyncio.open_connection(*market.stack.gateway_url.removeprefix("http://").split(":"))
    writer.write(f"GET /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {payment}\r\n\r\n".encode())
    await writer.drain()
    writer.transport.abort()
    answer = await market.pay(gate, payment)
    # Either the first request's credit was spent, and what is committed is charged, or the credit is still there.
    assert answer.status in {200, 402}
    assert len(market.target.requests) == 1 or answer.status == 402
    assert settlements_of(market, payment) == 1


async def test_client_that_leaves_while_the_target_works_cancels_the_target(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment = await market.payment(gate)
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(request: Received, _writer: Writer) -> None:
        reached.set()
        with contextlib.suppress(ConnectionError):
            assert await request.reader.read() == b""
        cancelled.set()

    market.target.answer = hang
    _, writer = await asyncio.open_connection(*market.stack.gateway_url.removeprefix("http://").split(":"))
    writer.write(f"GET /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {payment}\r\n\r\n".encode())
    await asyncio.wait_for(reached.wait(), 10)
    writer.transport.abort()
    await asyncio.wait_for(cancelled.wait(), 5)
    market.target.answer = answer_ok
    again = await market.pay(gate, payment)
    assert (again.status, again.headers["x-credits-remaining"]) == (200, "0")
