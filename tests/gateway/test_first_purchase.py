"""What a first purchase costs: transactions of the gateway's database, requests to the node (performance 2)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed, opened_databases
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_leaving import shop
from tollkeeper.settings.model import Role
from tollkeeper.storage.sqlite.engine import SqliteDatabase


@dataclass(slots=True)
class Counted:
    """A node behind a proxy that counts what it is asked."""

    url: str = ""
    requests: int = 0
    asked: list[str] = field(default_factory=list)


@asynccontextmanager
async def counting(node_url: str) -> AsyncIterator[Counted]:
    counted = Counted()

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        asked = json.loads(body)
        counted.requests += 1
        for one in asked if isinstance(asked, list) else [asked]:
            called = one["params"][0] if one["method"] == "eth_call" else {}
            data = called.get("data") or called.get("input") or ""
            counted.asked.append(f"{one['method']} {data[:10]}".strip())
        async with http.post(node_url, data=body, headers={"Content-Type": "application/json"}) as answer:
            return web.Response(body=await answer.read(), content_type="application/json")

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    async with aiohttp.ClientSession() as http:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        counted.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            yield counted
        finally:
            await runner.cleanup()


AUTHORIZATION_STATE, BALANCE_OF, TRANSFER = "eth_call 0xe94a0102", "eth_call 0x70a08231", "eth_call 0xe3ee160e"


async def test_settling_asks_again_only_what_must_hold_when_it_is_signed(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with counting(embedded_chain.url) as node, shop(node.url, target, tmp_path) as there:
        gate = await there.gate()
        await there.buyer.call(gate["accessUrl"], await there.payment(gate))  # reads the signer's nonce
        payment = await there.payment(gate)
        node.asked.clear()
        before = node.requests
        assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        asked = Counter(node.asked)
        assert (asked[AUTHORIZATION_STATE], asked["eth_sendRawTransaction"]) == (1, 1)
        assert asked["eth_getCode"] == 2  # of token and payer
        # Once more right before it is signed, in one request: would it pass? What the payer holds was just asked.
        assert (asked[TRANSFER], asked[BALANCE_OF]) == (2, 1)
        assert node.requests - before <= 6  # verify, simulate, send, and up to three looks for the receipt


@pytest.mark.sqlite_only("it sees transactions by SQLite's trace")
async def test_a_first_purchase_is_one_transaction_for_the_claim_and_one_for_grant_and_first_spend(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub:
        opened = opened_databases(monkeypatch)
        async with shop(embedded_chain.url, target, tmp_path, role=Role.GATEWAY, hub_url=hub) as there:
            gate = await there.gate()
            payment = await there.payment(gate)
            said: list[str] = []
            database = opened[0]
            assert isinstance(database, SqliteDatabase)
            database._writer.set_trace_callback(said.append)  # noqa: SLF001 - nothing else sees transactions
            assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
            database._writer.set_trace_callback(None)  # noqa: SLF001 - as above
    transactions = [part for part in "\n".join(said).split("BEGIN IMMEDIATE") if re.search("purchases|holdings", part)]
    writing = [part for part in transactions if re.search(r"^(INSERT|UPDATE)", part, re.MULTILINE)]
    claim, grant = writing
    assert "INSERT INTO purchases" in claim
    assert all(f"INSERT INTO {table}" in grant for table in ("credits", "credits_given", "single_calls"))
    assert "UPDATE purchases" in grant
    assert len(transactions) - len(writing) == 1  # asking for a held credit, which writes nothing
