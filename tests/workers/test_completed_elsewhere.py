"""A claim that another worker's completer grants before its own hears of it: its request is served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.workers_site import several
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, run_hostile_hub
from tests.workers.program import Line, lines_to_all
from tollkeeper.settings import Role

SLOWER_THAN_A_PASS_SECONDS = 3.5
CHANGES = {"takes another method": {"method": "POST"}, "asks for a login": {"requireAuth": True}}
DELETED = {"the gate is deleted": "CLAIMED", "the gate is deleted behind the grant": "LIVE"}


@pytest.mark.parametrize("case", ["the token counts", *CHANGES, *DELETED])
async def test_whoever_wrote_the_claim_is_served_though_another_worker_granted_it(
    case: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """The hub's first answer to each attempt is late: asked again, by the completer, it is told at once.

    It is served by the terms that it was claimed at, whatever became of its gate.
    """
    asked: Counter[bytes] = Counter()

    async def settle_late(request: web.Request, forward: Forward) -> web.StreamResponse:
        body = await request.read()
        asked[body] += 1
        is_first = asked[body] == 1
        answer = await forward()
        if is_first:
            await asyncio.sleep(SLOWER_THAN_A_PASS_SECONDS)
        return answer

    binding = "payment" if case in DELETED else "token"
    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = settle_late
        async with several(tmp_path, embedded_chain, between.url) as site:
            url = await site.gateway.url()
            fields = {"price": "0.01", "targetUrl": site.target.url, "credits": 5, "creditBinding": binding}
            gate = (await site.buyer.ask("POST", url + "/api/v1/paygates", body=fields)).json()

            async def buy(line: Line) -> tuple[int, bool]:
                payment = site.buyer.sign((await site.buyer.ask("GET", gate["accessUrl"])).json())
                answer = await line.get(gate["accessUrl"], X_Payment=payment)
                return answer.status, "x-credit-token" in answer.headers

            async def until_there_is_a(state: str) -> None:
                with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db")) as books:
                    async with asyncio.timeout(SLOWER_THAN_A_PASS_SECONDS):
                        sql = "SELECT state FROM purchases"
                        while (state,) not in books.execute(sql).fetchall():  # noqa: ASYNC110 - nobody tells
                            await asyncio.sleep(0.02)

            at = f"{url}/api/v1/paygates/{gate['id']}"
            async with lines_to_all(gate["accessUrl"], 2, count=4) as lines:
                buying = asyncio.gather(*(buy(line) for line in lines))
                if case in DELETED:
                    await until_there_is_a(DELETED[case])
                    await asyncio.sleep(0.3)
                    assert (await site.buyer.ask("DELETE", at)).status == 200
                elif case in CHANGES:
                    await asyncio.sleep(0.8)
                    assert (await site.buyer.ask("PUT", at, body=CHANGES[case])).status == 200
                told = await buying
    assert {*told} == {(200, True)}
    with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db")) as books:
        left = books.execute("SELECT state, remaining FROM holdings").fetchall()
    assert left == [("VOID" if case in DELETED else "LIVE", 4)] * len(told)


@pytest.mark.parametrize("binding", ["payment", "token"])
async def test_whoever_is_told_of_a_failure_that_another_worker_knows_better_is_not_asked_to_pay_again(
    binding: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Its hub says late that the payment failed, and told the other worker meanwhile that it was made."""
    asked: Counter[bytes] = Counter()
    wrong: list[bytes] = []

    async def settle_late(request: web.Request, forward: Forward) -> web.StreamResponse:
        body = await request.read()
        asked[body] += 1
        is_first = asked[body] == 1
        answer = await forward()
        if is_first:
            await asyncio.sleep(SLOWER_THAN_A_PASS_SECONDS)
            if asked[body] > 1:
                wrong.append(body)
                return web.json_response({"success": False, "errorReason": "invalid_transaction_state"})
        return answer

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = settle_late
        async with several(tmp_path, embedded_chain, between.url) as site:
            url = await site.gateway.url()
            fields = {"price": "0.01", "targetUrl": site.target.url, "credits": 5, "creditBinding": binding}
            gate = (await site.buyer.ask("POST", url + "/api/v1/paygates", body=fields)).json()

            async def buy(line: Line) -> list[int]:
                shown = {"X_Payment": site.buyer.sign((await site.buyer.ask("GET", gate["accessUrl"])).json())}
                first = await line.get(gate["accessUrl"], **shown)
                if first.status != 503:
                    return [first.status]
                if token := first.headers.get("x-credit-token"):
                    shown["X_Credit_Token"] = token
                return [503, (await line.get(gate["accessUrl"], **shown)).status]

            async with lines_to_all(gate["accessUrl"], 2, count=4) as lines:
                told = await asyncio.gather(*(buy(line) for line in lines))
    assert wrong
    assert sorted(told) == [[200]] * (len(told) - len(wrong)) + [[503, 200]] * len(wrong)
    with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db")) as books:
        left = books.execute("SELECT state, remaining FROM holdings").fetchall()
    assert left == [("LIVE", 4)] * len(told)
