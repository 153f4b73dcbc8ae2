"""What the pages know and do, programs know and do by the API (contract 11)."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from typing import Any

import aiohttp

from tests.gateway.market import Market
from tests.web.test_paywall import answering
from tollkeeper.gateway.management.owner_lists import STREAMS_MAX
from tollkeeper.sandbox.wallets import derive_wallet

TITLE = '=HYPERLINK("http://evil.test")'


async def owner(market: Market, name: str) -> dict[str, str]:
    """The bearer of an owner whose lists hold nothing yet."""
    return {"Authorization": "Bearer " + await market.buyer.login(market.stack.gateway_url, derive_wallet(name).key)}


async def own_gate(market: Market, bearer: dict[str, str], **fields: object) -> dict[str, Any]:
    body = {"targetUrl": market.target.url, "price": "0.01", "credits": 2, "title": TITLE, **fields}
    answer = await market.ask("POST", "/api/v1/paygates", body=body, headers=bearer)
    assert answer.status == 201, answer.body
    return answer.json()


async def listed(market: Market, path: str, bearer: dict[str, str]) -> list[dict[str, Any]]:
    """The rows, once there are some: they are written a moment later."""
    deadline = time.monotonic() + 30
    while True:
        answer = await market.ask("GET", path, headers=bearer)
        assert answer.status == 200, answer.body
        rows: list[dict[str, Any]] = answer.json()["data"]
        if rows or time.monotonic() > deadline:
            return rows
        await asyncio.sleep(0.1)


async def next_event(market: Market, headers: dict[str, str], query: str = "") -> tuple[str, dict[str, Any]]:
    """The id and the data of the first event, from a stream that may have to be asked for again."""
    url = f"{market.stack.gateway_url}/api/v1/events{query}"
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(url, headers=headers) as answer:
                assert (answer.status, answer.content_type) == (200, "text/event-stream")
                event_id = ""
                async for line in answer.content:
                    if line.startswith(b"id: "):
                        event_id = line[4:].strip().decode()
                    if line.startswith(b"data: "):
                        return event_id, json.loads(line[6:])


async def test_an_owner_lists_requests_and_payments_of_all_its_gates_and_nobody_else_s(market: Market) -> None:
    bearer, other = await owner(market, "lists"), await owner(market, "lists nothing")
    first, second = await own_gate(market, bearer), await own_gate(market, bearer)
    for gate in (first, second):
        assert (await market.buy(gate))[1].status == 200
    (payment,) = await listed(market, f"/api/v1/payments?paygate={first['id']}", bearer)
    assert (payment["status"], payment["amount"], payment["remaining"]) == ("paid", "0.01", 1)
    (request,) = await listed(market, f"/api/v1/requests?paygate={second['id']}&outcome=served", bearer)
    assert (request["sale"], request["status"], request["slug"]) == ("0.01", 200, second["slug"])
    assert len(await listed(market, "/api/v1/payments", bearer)) == 2
    for path in ("requests", "payments"):
        assert (await market.ask("GET", f"/api/v1/{path}", headers=other)).json()["data"] == []
        refused = await market.ask("GET", f"/api/v1/{path}?paygate={first['id']}", headers=other)
        assert (refused.status, refused.error_code) == (403, "FORBIDDEN")
        assert (await market.ask("GET", f"/api/v1/{path}")).status == 401


async def test_a_list_is_a_table_too_in_which_a_title_is_no_formula(market: Market) -> None:
    bearer = await owner(market, "tables")
    await market.buy(await own_gate(market, bearer))
    await listed(market, "/api/v1/payments", bearer)
    answer = await market.ask("GET", "/api/v1/payments?status=paid", headers={**bearer, "Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["x-total-count"] == "1"
    (row,) = csv.DictReader(io.StringIO(answer.body.decode(), newline=""))
    assert (row["title"], row["amount"]) == ("'" + TITLE, "0.01")


async def test_events_are_of_one_s_own_gates_and_go_on_behind_the_last_one(market: Market) -> None:
    bearer = await owner(market, "follows")
    gate, strangers = await own_gate(market, bearer), await market.gate()
    payment, _ = await market.buy(gate)
    await market.buy(strangers)
    event_id, sold = await next_event(market, bearer, "?since=0")
    assert (sold["slug"], sold["outcome"], sold["sale"]) == (gate["slug"], "served", "0.01")
    assert (await market.pay(gate, payment)).status == 200
    _, called = await next_event(market, {**bearer, "Last-Event-ID": event_id})
    assert (called["slug"], called["outcome"], called["sale"]) == (gate["slug"], "served", None)
    assert (await market.ask("GET", "/api/v1/events")).error_code == "AUTH_REQUIRED"
    head = await market.ask("HEAD", "/api/v1/events", headers=bearer)
    assert (head.status, head.body) == (200, b"")


async def test_streams_of_one_owner_are_few_and_end_with_their_readers(market: Market) -> None:
    bearer = await owner(market, "streams")
    url = f"{market.stack.gateway_url}/api/v1/events"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        opened = [await session.get(url, headers=bearer) for _ in range(STREAMS_MAX)]
        for one in opened:
            assert await one.content.readline() == b"retry: 1000\n"
        refused = await market.ask("GET", "/api/v1/events", headers=bearer)
        assert (refused.status, refused.error_code) == (429, "RATE_LIMITED")
        assert int(refused.headers["retry-after"]) > 0
        for one in opened:
            one.close()
        async with asyncio.timeout(30):
            while True:
                async with session.get(url, headers=bearer) as again:
                    if again.status == 200:
                        return
                await asyncio.sleep(0.2)


async def test_a_target_is_tested_by_the_rules_of_a_call_and_nobody_pays(market: Market) -> None:
    bearer = await owner(market, "tests")
    gate = await own_gate(market, bearer, targetHeaders={"X-Api-Key": "secret"})
    market.target.answer = answering(b"{}", "application/json")
    path = f"/api/v1/paygates/{gate['id']}/test"
    answer = await market.ask("POST", path, headers=bearer)
    assert answer.status == 200, answer.body
    assert {**answer.json(), "durationUs": 1}.items() >= {"status": 200, "size": 2, "isCut": False}.items()
    assert market.target.requests[-1].header("x-api-key") == "secret"
    dead = await market.ask("POST", path, headers=bearer, body={"targetUrl": "http://127.0.0.1:9/"})
    assert (dead.status, dead.error_code) == (502, "UPSTREAM_UNREACHABLE")
    wrong = await market.ask("POST", path, headers=bearer, body={"price": "1"})
    assert (wrong.status, wrong.error_code) == (400, "INVALID_PARAMETER")
    stranger = await market.ask("POST", path, headers=await owner(market, "tests not"))
    assert (stranger.status, stranger.error_code) == (403, "FORBIDDEN")
    assert (await market.ask("GET", "/api/v1/payments", headers=bearer)).json()["data"] == []


async def test_the_test_buyer_pays_by_the_api(market: Market) -> None:
    bearer = await owner(market, "plays")
    gate = await own_gate(market, bearer)
    body = {"paygateId": gate["id"]}
    played = await market.ask("POST", "/api/v1/sandbox/pay", headers=bearer, body=body)
    assert played.status == 200, played.body
    assert (played.json()["status"], len(played.json()["transaction"])) == (200, 66)
    (payment,) = await listed(market, "/api/v1/payments", bearer)
    assert payment["transaction"] == played.json()["transaction"]
    refused = await market.ask("POST", "/api/v1/sandbox/pay", body=body)
    assert (refused.status, refused.error_code) == (401, "AUTH_REQUIRED")
    for wrong in ({}, {"paygateId": "1"}, {"paygateId": True}):
        assert (await market.ask("POST", "/api/v1/sandbox/pay", body=wrong)).status == 400
