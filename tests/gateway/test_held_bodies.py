"""Paid calls with bodies whose heads come again in the same bytes: each target call has its own body, once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from tests.gateway.market import Market
from tests.gateway.same_bytes import kept, request

CREDITS = 12


def posted(gate: dict[str, Any], payment: str, body: bytes, method: str = "POST") -> bytes:
    more = f"X-Payment: {payment}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return request(gate, method, more) + body


def body_of(number: int) -> bytes:
    return b"the body number %05d" % number


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_each_call_brings_its_own_body_and_takes_one_credit(market: Market, method: str) -> None:
    gate = await market.gate(credits=CREDITS, method=method)
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        answers = [await caller.ask(posted(gate, payment, body_of(number), method)) for number in range(CREDITS)]
        assert (await caller.ask(posted(gate, payment, body_of(99), method)))[0] == 402
    assert [status for status, _, _ in answers] == [200] * CREDITS
    left = [int(headers["x-credits-remaining"]) for _, headers, _ in answers]
    assert left == list(range(CREDITS - 1, -1, -1))
    received = market.target.requests
    assert [one.body for one in received] == [body_of(number) for number in range(CREDITS)]
    assert {one.header("content-length") for one in received} == {str(len(body_of(0)))}
    assert [one.header("x-request-id") for one in received] == [headers["x-request-id"] for _, headers, _ in answers]
    told = [[pair for pair in one.headers if pair[0] != "x-request-id"] for one in received]
    assert all(one == told[0] for one in told)


async def test_bodies_in_pieces_and_whole_ones_take_turns(market: Market) -> None:
    gate = await market.gate(credits=CREDITS, method="POST")
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        for number in range(CREDITS):
            data = posted(gate, payment, body_of(number))
            cut = len(data) - (number * 3) % len(body_of(0))
            caller.writer.write(data[:cut])
            await asyncio.sleep(0.02)  # the spend is made, and the call waits for the rest
            caller.writer.write(data[cut:])
            assert (await caller.answer(data))[0] == 200
    assert [one.body for one in market.target.requests] == [body_of(number) for number in range(CREDITS)]


async def test_calls_in_one_packet_have_each_their_body(market: Market) -> None:
    gate = await market.gate(credits=CREDITS, method="POST")
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        for number in range(2):
            assert (await caller.ask(posted(gate, payment, body_of(number))))[0] == 200
        several = [posted(gate, payment, body_of(number)) for number in range(2, CREDITS)]
        caller.writer.write(b"".join(several))
        for data in several:
            assert (await caller.answer(data))[0] == 200
    assert [one.body for one in market.target.requests] == [body_of(number) for number in range(CREDITS)]


async def test_a_body_over_the_gate_s_limit_is_refused_as_often_as_it_comes(market: Market) -> None:
    gate = await market.gate(credits=CREDITS, method="POST")
    payment = await market.payment(gate)
    large = posted(gate, payment, b"")
    large = large.replace(b"Content-Length: 0", b"Content-Length: 2000000000")
    for _ in range(3):
        async with kept(gate) as caller:
            assert (await caller.ask(large))[0] == 413
    assert market.target.requests == []


async def test_signed_bodies_are_each_signed(market: Market) -> None:
    gate = await market.gate(credits=CREDITS, method="POST", headerAuthMode="hmac")
    payment = await market.payment(gate)
    async with kept(gate) as caller:
        for number in range(4):
            assert (await caller.ask(posted(gate, payment, body_of(number))))[0] == 200
    received = market.target.requests
    assert [one.body for one in received] == [body_of(number) for number in range(4)]
    digests = [one.header("content-digest") for one in received]
    assert len(set(digests)) == 4
    wanted = [base64.b64encode(hashlib.sha256(body_of(number)).digest()).decode() for number in range(4)]
    assert all(one in (digest or "") for one, digest in zip(wanted, digests, strict=True))
