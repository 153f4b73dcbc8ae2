"""Targets that break the rules, behind a gate: 502 with the right code, one credit each, no memory (contract 4.5)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.targets import target as hostile_target
from tests.edge.test_hostile_targets import PATIENT, REFUSED, limits_of
from tests.gateway.composed import composed
from tests.gateway.market import Market
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.shop import Shop
from tollkeeper.core.api.errors import Code
from tollkeeper.core.limits import PROXY_TIMEOUT_SECONDS
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.mark.timeout(180)
async def test_each_broken_rule_is_a_502_with_its_code_and_uses_one_credit(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bounds that the edge's own tests have: half a second and 200,000 bytes, not 600 seconds and 10 MiB."""
    of_relays = Forwarder.relay.__kwdefaults__
    assert of_relays is not None
    monkeypatch.setitem(of_relays, "limits", PATIENT)
    assert len(REFUSED) >= 60
    assert {code for _, code in REFUSED.values()} == {
        Code.UPSTREAM_TIMEOUT,
        Code.UPSTREAM_TOO_LARGE,
        Code.UPSTREAM_UNREACHABLE,
        Code.UPSTREAM_INVALID,
    }
    async with (
        composed(embedded_chain.url, tmp_path / "tollkeeper.db") as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        shop = Shop(url, tmp_path / "tollkeeper.db", target, buyer)
        gate = await shop.gate(credits=len(REFUSED) + 2)
        payment = await shop.payment(gate)
        assert (await buyer.call(gate["accessUrl"], payment)).status == 200
        left = len(REFUSED) + 1
        for name, (behave, code) in REFUSED.items():
            monkeypatch.setitem(of_relays, "limits", limits_of(code))
            async with hostile_target(behave) as hostile:
                await point(shop, gate, f"http://127.0.0.1:{hostile.port}/")
                answer = await buyer.call(gate["accessUrl"], payment)
                sent = [head for head in hostile.heads if head.startswith(b"GET ")]  # an update looks by HEAD
                assert len(sent) <= 1, name  # it was sent once
            left -= 1
            assert (answer.status, answer.error_code) == (502, code.value), name
            assert answer.headers["x-credits-remaining"] == str(left), name
            assert answer.receipt is not None
            assert await held(shop, payment) == (len(REFUSED) + 2 - left, left), name
        monkeypatch.setitem(of_relays, "limits", PATIENT)
        await point(shop, gate, target.url)
        assert (await buyer.call(gate["accessUrl"], payment)).status == 200
        assert (await buyer.call(gate["accessUrl"], payment)).error_code == "CREDITS_EXHAUSTED"
        assert len(target.requests) == 2
        counters: dict[str, int] = {}
        while counters.get("calls") != len(REFUSED) + 2:
            counters = (await buyer.ask("GET", f"{url}/api/v1/paygates/{gate['id']}")).json()["counters"]
        assert counters["failures"] == len(REFUSED)


async def point(shop: Shop, gate: dict[str, Any], target_url: str) -> None:
    changed = await shop.buyer.ask("PUT", f"{shop.url}/api/v1/paygates/{gate['id']}", body={"targetUrl": target_url})
    assert changed.status == 200


async def held(shop: Shop, payment: str) -> tuple[int, int]:
    """Credits used and left, as the buyer may ask."""
    answer = await shop.buyer.ask("GET", f"{shop.url}/api/v1/credits", headers={"X-Payment": payment})
    (balance,) = answer.json()["data"]
    return balance["used"], balance["remaining"]


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
