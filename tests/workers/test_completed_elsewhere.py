"""A claim that another worker's completer grants before its own hears of it: its request is served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.faults.gateway_site import GatewaySite
from tests.faults.workers_site import several
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, Settling, run_hostile_hub
from tests.workers.program import Line, lines_to_all
from tollkeeper.settings import Role

# For so long an answer to a claim is late at most: less than its request may wait.
LATE_SECONDS = 15
PASSES_SECONDS = 8  # in which the completer makes some
CHANGES = {"takes another method": {"method": "POST"}, "asks for a login": {"requireAuth": True}}
DELETED = {"the gate is deleted": "CLAIMED", "the gate is deleted behind the grant": "LIVE"}


@asynccontextmanager
async def workers_before(
    tmp_path: Path, chain: ChainUnderTest, settling: Settling, binding: str
) -> AsyncIterator[tuple[GatewaySite, str, dict[str, Any]]]:
    """Workers whose hub's settle answers pass through `settling`; their URL, and a gate of five credits."""
    async with composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = settling
        async with several(tmp_path, chain, between.url) as site:
            url = await site.gateway.url()
            fields = {"price": "0.01", "targetUrl": site.target.url, "credits": 5, "creditBinding": binding}
            yield site, url, (await site.buyer.ask("POST", url + "/api/v1/paygates", body=fields)).json()


@pytest.mark.parametrize("case", ["the token counts", *CHANGES, *DELETED])
async def test_whoever_wrote_the_claim_is_served_though_another_worker_granted_it(
    case: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """The hub's first answer to each attempt is late: asked again, by the completer, it is told at once.

    It is served by the terms that it was claimed at, whatever became of its gate.
    """
    asked: Counter[bytes] = Counter()
    are_granted = asyncio.Event()

    async def settle_late(request: web.Request, forward: Forward) -> web.StreamResponse:
        body = await request.read()
        asked[body] += 1
        is_first = asked[body] == 1
        answer = await forward()
        if is_first:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(are_granted.wait(), LATE_SECONDS)
        return answer

    binding = "payment" if case in DELETED else "token"
    async with workers_before(tmp_path, embedded_chain, settle_late, binding) as (site, url, gate):

        async def buy(line: Line) -> tuple[int, bool]:
            payment = site.buyer.sign((await site.buyer.ask("GET", gate["accessUrl"])).json())
            answer = await line.get(gate["accessUrl"], X_Payment=payment)
            return answer.status, "x-credit-token" in answer.headers

        def states() -> list[str]:
            with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db")) as books:
                return [state for (state,) in books.execute("SELECT state FROM purchases")]

        at = f"{url}/api/v1/paygates/{gate['id']}"
        async with lines_to_all(gate["accessUrl"], 2, count=4) as lines:
            buying = asyncio.gather(*(buy(line) for line in lines))
            if case in DELETED:
                await until(lambda: DELETED[case] in states())
                await asyncio.sleep(0.3)
                assert (await site.buyer.ask("DELETE", at)).status == 200
            elif case in CHANGES:
                await until(lambda: len(states()) == len(lines))
                assert (await site.buyer.ask("PUT", at, body=CHANGES[case])).status == 200
            await until(lambda: any(state != "CLAIMED" for state in states()), LATE_SECONDS)
            await asyncio.sleep(1)  # so are the others of that pass
            are_granted.set()
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
            with contextlib.suppress(TimeoutError):  # of the first worker, whose own claims the completer leaves alone
                async with asyncio.timeout(PASSES_SECONDS):
                    while asked[body] == 1:  # noqa: ASYNC110 - a hub is asked
                        await asyncio.sleep(0.05)
            if asked[body] > 1:
                await asyncio.sleep(2)  # what it answered is written by then
                wrong.append(body)
                return web.json_response({"success": False, "errorReason": "invalid_transaction_state"})
        return answer

    async with workers_before(tmp_path, embedded_chain, settle_late, binding) as (site, _, gate):

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
