"""Paid calls that come again in the same bytes: what was said of the first holds no longer than it is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer, recording_target
from tests.gateway.same_bytes import Caller, kept, request

CREDITS = 12


def paid(gate: dict[str, Any], payment: str, method: str = "GET") -> bytes:
    return request(gate, method, f"X-Payment: {payment}\r\n")


async def fail(_request: Received, writer: Writer) -> None:
    """As a target: what can be read as no answer."""
    writer.write(b"no HTTP\r\n\r\n")
    await writer.drain()


async def served(caller: Caller, data: bytes, times: int = 3) -> None:
    """So many calls."""
    for _ in range(times):
        assert (await caller.ask(data))[0] == 200


async def test_each_call_takes_one_credit_and_has_its_own_receipt_and_id(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        answers = [await caller.ask(paid(gate, payment)) for _ in range(CREDITS)]
        left = [int(headers["x-credits-remaining"]) for _, headers, _ in answers]
        assert left == list(range(CREDITS - 1, -1, -1))
        assert (await caller.ask(paid(gate, payment)))[0] == 402
    ids = [headers["x-request-id"] for _, headers, _ in answers]
    assert [received.header("x-request-id") for received in market.target.requests] == ids
    assert len(set(ids)) == CREDITS
    fixed = ("x-payment-response", "x-purchase-id", "x-credits-total", "access-control-allow-origin")
    assert len({tuple(headers[name] for name in fixed) for _, headers, _ in answers}) == 1
    told = [[pair for pair in received.headers if pair[0] != "x-request-id"] for received in market.target.requests]
    assert all(one == told[0] for one in told)
    counters = await market.counters(gate, lambda found: found["calls"] == CREDITS)
    assert counters["calls"] == CREDITS


async def test_many_connections_share_the_credits_exactly(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)

    async def call(times: int) -> list[int]:
        async with kept(gate) as caller:
            return [(await caller.ask(paid(gate, payment)))[0] for _ in range(times)]

    await call(2)
    statuses = [status for one in await asyncio.gather(*(call(4) for _ in range(6))) for status in one]
    assert statuses.count(200) == CREDITS - 2 == len(market.target.requests) - 2
    assert statuses.count(402) == 24 - (CREDITS - 2)


async def test_an_update_sends_the_next_call_to_the_new_target(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    async with recording_target() as other, kept(gate) as caller:
        await served(caller, paid(gate, payment))
        changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"targetUrl": other.url + "/new"})
        assert changed.status == 200, changed.body
        await served(caller, paid(gate, payment))
        assert (len(market.target.requests), [one.path for one in other.requests]) == (3, ["/new"] * 3)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"requireAuth": True}, 401),
        ({"creditBinding": "wallet"}, 403),
        ({"creditBinding": "token"}, 403),
        ({"method": "POST"}, 405),
    ],
)
async def test_what_an_update_asks_for_is_asked_of_the_next_call(
    market: Market, fields: dict[str, Any], status: int
) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        await served(caller, paid(gate, payment))
        changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body=fields)
        assert changed.status == 200, changed.body
        assert (await caller.ask(paid(gate, payment)))[0] == status
    assert len(market.target.requests) == 3


async def test_a_target_that_wants_signatures_gets_one_with_the_next_call(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        await served(caller, paid(gate, payment))
        changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"headerAuthMode": "hmac"})
        assert changed.status == 200, changed.body
        await served(caller, paid(gate, payment))
    assert [received.header("signature") is not None for received in market.target.requests] == [False] * 3 + [True] * 3


async def test_a_deleted_gate_serves_no_more(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        await served(caller, paid(gate, payment))
        assert (await market.ask("DELETE", f"/api/v1/paygates/{gate['id']}")).status < 300
        assert (await caller.ask(paid(gate, payment)))[0] == 404
    assert len(market.target.requests) == 3


async def test_the_credit_token_takes_the_credits_from_the_header(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        status, headers, _ = await caller.ask(paid(gate, payment))
        assert status == 200
        await served(caller, paid(gate, payment))
        token = request(gate, more=f"X-Credit-Token: {headers['x-credit-token']}\r\n")
        await served(caller, token, 1)
        status, _, body = await caller.ask(paid(gate, payment))
        assert (status, body["error"]["code"]) == (403, "CREDIT_TOKEN_REQUIRED")


async def test_each_caller_is_named_to_the_target(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    for source in ("127.0.0.1", "127.0.0.7", "127.0.0.1"):
        async with kept(gate, source) as caller:
            await served(caller, paid(gate, payment), 2)
    clients = [received.header("x-forwarded-for") for received in market.target.requests]
    assert clients == ["127.0.0.1"] * 2 + ["127.0.0.7"] * 2 + ["127.0.0.1"] * 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST"])
async def test_each_method_is_sent_as_itself(market: Market, method: str) -> None:
    gate = await market.gate(credits=CREDITS, method="GET,HEAD,DELETE,POST")
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        await served(caller, paid(gate, payment, method), 4)
    assert [received.method for received in market.target.requests] == [method] * 4
    lengths = {received.header("content-length") for received in market.target.requests}
    assert lengths == ({"0"} if method == "POST" else {None})


async def test_a_target_that_fails_is_a_502_with_the_receipt(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)

    async with kept(gate) as caller:
        await served(caller, paid(gate, payment))
        working, market.target.answer = market.target.answer, fail
        status, headers, body = await caller.ask(paid(gate, payment))
        assert (status, body["error"]["code"]) == (502, "UPSTREAM_INVALID")
        assert headers["x-credits-remaining"] == str(CREDITS - 4)
        market.target.answer = working
        assert (await caller.ask(paid(gate, payment)))[1]["x-credits-remaining"] == str(CREDITS - 5)


async def test_a_failure_gives_the_credit_back_where_the_gate_says_so(market: Market) -> None:
    gate = await market.gate(credits=CREDITS, onFailure="restore")
    payment = await market.payment(gate)

    async with kept(gate) as caller:
        await served(caller, paid(gate, payment))
        market.target.answer = fail
        status, headers, _ = await caller.ask(paid(gate, payment))
        assert (status, headers["x-credits-remaining"]) == (502, str(CREDITS - 3))


async def test_an_answer_too_large_for_one_read_comes_whole(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    payment = await market.payment(gate)
    padding = "x" * 3_000_000

    async def large(_request: Received, writer: Writer) -> None:
        body = b'{"padding":"%b"}' % padding.encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()

    async with kept(gate) as caller:
        await served(caller, paid(gate, payment))
        market.target.answer = large
        for _ in range(2):
            assert (await caller.ask(paid(gate, payment)))[2] == {"padding": padding}
