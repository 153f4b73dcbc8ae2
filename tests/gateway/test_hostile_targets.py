"""Targets that break the rules, behind a gate: 502 with the right code, one credit each, no memory (contract 4.5)."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from tests.edge.targets import target
from tests.edge.test_hostile_targets import REFUSED
from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer
from tollkeeper.core.errors import Code
from tollkeeper.core.limits import PROXY_TIMEOUT_SECONDS

# What needs neither a smaller limit nor a shorter time than a gate has; the others are tested at the edge.
BEHAVIOURS = {
    name: (behave, code)
    for name, (behave, code) in REFUSED.items()
    if code in {Code.UPSTREAM_INVALID, Code.UPSTREAM_UNREACHABLE} or name.endswith("for ever")
}


async def test_each_broken_rule_is_a_502_with_its_code_and_uses_one_credit(market: Market) -> None:
    assert len(BEHAVIOURS) >= 25
    gate = await market.gate(credits=len(BEHAVIOURS) + 2)
    payment, _ = await market.buy(gate)
    left = len(BEHAVIOURS) + 1
    for name, (behave, code) in BEHAVIOURS.items():
        async with target(behave) as hostile:
            changed = await market.ask(
                "PUT", f"/api/v1/paygates/{gate['id']}", body={"targetUrl": f"http://127.0.0.1:{hostile.port}/"}
            )
            assert changed.status == 200
            answer = await market.pay(gate, payment)
            left -= 1
            assert (answer.status, answer.error_code) == (502, code.value), name
            assert answer.headers["x-credits-remaining"] == str(left), name
            assert answer.receipt is not None
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"targetUrl": market.target.url})
    assert (await market.pay(gate, payment)).status == 200
    assert (await market.pay(gate, payment)).error_code == "CREDITS_EXHAUSTED"
    counters = await market.counters(gate, lambda found: found["calls"] == len(BEHAVIOURS) + 2)
    assert counters["failures"] == len(BEHAVIOURS)


@pytest.mark.long
@pytest.mark.timeout(PROXY_TIMEOUT_SECONDS + 120)
@pytest.mark.parametrize("begins", [False, True])
async def test_a_target_has_600_seconds_and_not_one_more(market: Market, begins: bool) -> None:  # noqa: FBT001 - a case
    gate = await market.gate(credits=3)
    payment = await market.payment(gate)

    async def never(request: Received, writer: Writer) -> None:
        if begins:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"1\r\nx\r\n")  # something comes all the time, and it is never enough
                await asyncio.sleep(1)
        await request.reader.read()

    market.target.answer = never
    started = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=PROXY_TIMEOUT_SECONDS + 60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(gate["accessUrl"], headers={"X-Payment": payment}) as answer,
    ):
        body = await answer.json()
        passed = time.monotonic() - started
        assert (answer.status, body["error"]["code"]) == (502, "UPSTREAM_TIMEOUT")
        assert answer.headers["x-credits-remaining"] == "2"
    assert PROXY_TIMEOUT_SECONDS <= passed < PROXY_TIMEOUT_SECONDS + 30
    assert len(market.target.requests) == 1
