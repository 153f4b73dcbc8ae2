"""Statistics and the request log, as owners read them (contract 2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.market import Market
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.shop import Shop
from tests.gateway.test_credits_given_back import FAILURES
from tests.gateway.test_races import call_at_once
from tollkeeper.gateway.traffic import LOGGED_MAX
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallet, derive_wallets


async def stats(market: Market, path: str, **headers: str) -> Answer:
    return await market.ask("GET", f"/api/v1/{path}", headers=headers)


async def once(market: Market, path: str, wanted: Callable[[dict[str, Any]], bool], **headers: str) -> dict[str, Any]:
    """What is read once it is as wanted; it is written a moment later."""
    deadline = time.monotonic() + 30
    while True:
        answer = await stats(market, path, **headers)
        assert answer.status == 200, answer.body
        if wanted(answer.json()) or time.monotonic() > deadline:
            return answer.json()
        await asyncio.sleep(0.1)


async def all_logged(market: Market, path: str, count: int) -> dict[str, Any]:
    """The gate's log once it has so many rows: where many wait to be written, the counts are written before some."""
    log = await once(market, path + "/requests", lambda found: found["pagination"]["totalCount"] >= count)
    assert log["pagination"]["totalCount"] == count
    return log


async def test_every_request_is_counted_under_its_outcome_and_logged_without_payload_or_secret(market: Market) -> None:
    async def broken(_request: Received, writer: Writer) -> None:
        writer.write(b"garbage\r\n\r\n")
        writer.close()

    async def missing(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    began_hour = time.time() // 3600
    gate = await market.gate(credits=4)
    payment, _ = await market.buy(gate)
    market.target.answer = missing
    await market.pay(gate, payment)
    market.target.answer = broken
    await market.pay(gate, payment)
    await market.pay(gate, "unreadable")
    path = f"paygates/{gate['id']}"
    body = await once(
        market,
        path + "/stats?bucket=hour",
        lambda found: (found["calls"]["total"], found["challenges"], found["refusals"]) == (3, 1, 1),
    )
    assert body["calls"] == {"total": 3, "served": 1, "targetError": 1, "failed": 1, "clientGone": 0}
    assert (body["challenges"], body["refusals"]) == (1, 1)
    assert (body["revenue"], body["purchases"]) == ("0.01", 1)
    assert body["outstanding"] == {"credits": 1, "liability": "0.0025"}
    assert body["latencyUs"]["p99"] >= body["latencyUs"]["p50"] > 0
    assert 1 <= len(body["data"]) <= 1 + time.time() // 3600 - began_hour  # an hour may have ended meanwhile
    log = await all_logged(market, path, 5)
    assert [row["outcome"] for row in log["data"]] == ["refused", "failed", "targetError", "served", "challenged"]
    assert [row["status"] for row in log["data"]] == [402, 502, 404, 200, 402]
    assert [row["code"] for row in log["data"]] == ["PAYMENT_INVALID", "UPSTREAM_INVALID", None, None, None]
    assert len({row["purchaseId"] for row in log["data"][1:4]}) == 1
    assert payment not in str(log)
    failed = (await stats(market, path + "/requests?outcome=failed&limit=1")).json()
    assert (failed["pagination"]["totalCount"], failed["data"][0]["status"]) == (1, 502)


async def test_the_log_says_why_a_paid_call_failed(market: Market) -> None:
    gate = await market.gate(credits=len(FAILURES), method="GET,POST")
    payment = await market.payment(gate)
    for code, failing in FAILURES.items():
        market.target.answer = failing
        assert (await market.pay(gate, payment, "POST")).error_code == code
    path = f"paygates/{gate['id']}/requests?outcome=failed"
    log = await once(market, path, lambda found: found["pagination"]["totalCount"] == len(FAILURES))
    assert [row["code"] for row in reversed(log["data"])] == list(FAILURES)


async def test_a_stream_that_the_gateway_cuts_has_that_one_outcome(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async def breaks(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    target.answer = breaks
    path = tmp_path / "tollkeeper.db"
    async with composed(embedded_chain.url, path) as url, Buyer(derive_wallets().buyer) as buyer:
        shop = Shop(url, path, target, buyer)
        gate = await shop.gate(stream=True)
        payment = await shop.payment(gate)
        with capture_logs() as said:
            with pytest.raises(aiohttp.ClientPayloadError):
                await buyer.call(gate["accessUrl"], payment)
            log: dict[str, Any] = {"data": []}
            deadline = time.monotonic() + 10
            while not log["data"] and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
                query = f"{url}/api/v1/paygates/{gate['id']}/requests?outcome=failed"
                log = (await buyer.ask("GET", query)).json()
    (row,) = log["data"]
    assert (row["status"], row["code"]) == (200, "UPSTREAM_INVALID")
    told = [line["event"] for line in said if line.get("request_id") == row["requestId"]]
    assert (told.count("stream_cut"), told.count("client_gone")) == (1, 0)


async def test_counts_are_exact_under_concurrency(market: Market) -> None:
    gate = await market.gate(credits=40)
    payment, _ = await market.buy(gate)
    await asyncio.gather(
        call_at_once([gate["accessUrl"]] * 60, {"X-Payment": payment}), call_at_once([gate["accessUrl"]] * 30, {})
    )
    body = await once(
        market, f"paygates/{gate['id']}/stats", lambda found: found["calls"]["total"] + found["challenges"] >= 92
    )
    assert body["calls"]["served"] == 40
    assert body["challenges"] == 1 + 21 + 30
    assert body["outstanding"] == {"credits": 0, "liability": "0"}
    await all_logged(market, f"paygates/{gate['id']}", 92)


async def test_what_the_log_has_no_row_of_is_told_with_it(market: Market) -> None:
    gate = await market.gate()
    asked = 10 * LOGGED_MAX
    place = urlsplit(gate["accessUrl"])
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    at_once = 50  # on one connection
    for _ in range(asked // at_once):
        writer.write(f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode() * at_once)
        for _ in range(at_once):
            await reader.readuntil(b"HTTP/1.1 402 ")
    writer.close()
    path = f"paygates/{gate['id']}"
    await once(market, path + "/stats", lambda found: found["challenges"] == asked)

    def is_told(log: dict[str, Any]) -> bool:
        count: int = log["pagination"]["totalCount"] + log["notLogged"]
        return count == asked

    log = await once(market, path + "/requests?limit=1", is_told)
    assert is_told(log)
    assert log["notLogged"] > 0
    assert (await stats(market, path + "/requests?outcome=served")).json()["notLogged"] == log["notLogged"]


async def test_outstanding_credits_are_owed_at_what_was_paid_for_them(market: Market) -> None:
    gate = await market.gate(credits=3)
    payment = await market.payment(gate, lambda plain: replace(plain, value=1_000_000))
    assert (await market.pay(gate, payment)).status == 200
    body = (await stats(market, f"paygates/{gate['id']}/stats")).json()
    assert (body["revenue"], body["outstanding"]) == ("1", {"credits": 2, "liability": "0.666666"})


def rename(database: Path, before: str, after: str) -> None:
    with beside(database) as connection:
        for table in ("requests", "traffic_hours"):
            connection.execute(f"ALTER TABLE {table}{before} RENAME TO {table}{after}")


def take_away(database: Path) -> None:
    """From now on nothing that is counted can be written."""
    rename(database, "", "_away")


def bring_back(database: Path) -> None:
    """And from now on it can."""
    rename(database, "_away", "")


async def test_calls_are_served_while_nothing_can_be_counted_and_counted_once_it_can(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """What is recorded is off the hot path: where its tables cannot be written, only the counts wait."""
    path = tmp_path / "tollkeeper.db"
    async with composed(embedded_chain.url, path) as url, Buyer(derive_wallets().buyer) as buyer:
        shop = Shop(url, path, target, buyer)
        gate = await shop.gate(credits=50)
        payment = await shop.payment(gate)
        take_away(path)
        for left in range(49, 9, -1):
            answer = await buyer.call(gate["accessUrl"], payment)
            assert (answer.status, answer.headers["x-credits-remaining"]) == (200, str(left))
            await asyncio.sleep(0.03)  # over several writings
        assert len(target.requests) == 40
        bring_back(path)
        found: dict[str, Any] = {}
        deadline = time.monotonic() + 20
        while found.get("calls", {}).get("total") != 40 and time.monotonic() < deadline:
            found = (await buyer.ask("GET", f"{url}/api/v1/paygates/{gate['id']}/stats")).json()
            await asyncio.sleep(0.1)
        assert (found["calls"]["served"], found["challenges"]) == (40, 1)
        log = (await buyer.ask("GET", f"{url}/api/v1/paygates/{gate['id']}/requests")).json()
        assert log["pagination"]["totalCount"] == 41


async def test_a_program_that_cannot_count_ends_as_any_other(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    path = tmp_path / "tollkeeper.db"
    async with composed(embedded_chain.url, path) as url, Buyer(derive_wallets().buyer) as buyer:
        shop = Shop(url, path, target, buyer)
        gate = await shop.gate(credits=2)
        payment = await shop.payment(gate)
        take_away(path)
        assert (await buyer.call(gate["accessUrl"], payment)).status == 200
    async with Buyer(derive_wallets().buyer) as buyer:
        with pytest.raises(aiohttp.ClientConnectionError):
            await buyer.ask("GET", url + "/healthz")
    bring_back(path)
    async with composed(embedded_chain.url, path) as url, Buyer(derive_wallets().buyer) as buyer:
        served = await buyer.call(f"{url}/{gate['slug']}", payment)
        assert (served.status, served.headers["x-credits-remaining"]) == (200, "0")


async def test_an_owner_sees_all_of_his_gates_and_nobody_else_s(market: Market) -> None:
    gate_urls = []
    async with Buyer(derive_wallet("an owner of two gates")) as owner, Buyer(derive_wallet("another")) as other:
        bearer = {"Authorization": f"Bearer {await owner.login(market.stack.gateway_url)}"}
        stranger = {"Authorization": f"Bearer {await other.login(market.stack.gateway_url)}"}
        for _ in range(2):
            made = await owner.ask(
                "POST",
                market.stack.gateway_url + "/api/v1/paygates",
                body={"targetUrl": market.target.url, "price": "0.01"},
                headers=bearer,
            )
            gate_urls.append(made.json()["accessUrl"])
            await market.buyer.ask("GET", gate_urls[-1])
        body = await once(market, "stats", lambda found: found["challenges"] == 2, **bearer)
        assert body["challenges"] == 2
        assert (await once(market, "stats", lambda _: True, **stranger))["challenges"] == 0
        path = f"paygates/{made.json()['id']}"
        for what in ("/stats", "/requests"):
            assert (await stats(market, path + what, **stranger)).error_code == "FORBIDDEN"
            assert (await stats(market, "paygates/999999" + what, **stranger)).error_code == "NOT_FOUND"
    assert (await stats(market, "stats")).status == 401


@pytest.mark.parametrize(
    "query",
    [
        "stats?bucket=week",
        "stats?from=x",
        "stats?bucket=day&bucket=hour",
        "stats?from=2026-02-01&to=2026-01-01",
        "requests?outcome=x",
        "requests?outcome=served&outcome=failed",
        "requests?limit=0",
    ],
)
async def test_a_bad_question_is_told_what_is_wrong(market: Market, query: str) -> None:
    gate = await market.gate()
    assert (await stats(market, f"paygates/{gate['id']}/{query}")).error_code == "INVALID_PARAMETER"


async def test_a_span_in_the_past_shows_nothing(market: Market) -> None:
    gate = await market.gate()
    await market.buy(gate)
    body = (await stats(market, f"paygates/{gate['id']}/stats?from=2026-01-01&to=2026-01-02T00:00:00Z")).json()
    assert (body["calls"]["total"], body["data"], body["latencyUs"]["p50"]) == (0, [], None)
    assert (body["from"], body["to"]) == ("2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z")
