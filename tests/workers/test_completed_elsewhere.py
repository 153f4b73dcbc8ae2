"""A claim that another worker's completer grants before its own hears of it: its request is served all the same."""

from __future__ import annotations

import asyncio
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

SLOWER_THAN_A_PASS_SECONDS = 2.5


@pytest.mark.parametrize("case", ["the token counts", "the gate is deleted"])
async def test_whoever_wrote_the_claim_is_served_though_another_worker_granted_it(
    case: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """The hub's first answer to each attempt is late: asked again, by the completer, it is told at once."""
    asked: Counter[bytes] = Counter()

    async def settle_late(request: web.Request, forward: Forward) -> web.StreamResponse:
        body = await request.read()
        asked[body] += 1
        is_first = asked[body] == 1
        answer = await forward()
        if is_first:
            await asyncio.sleep(SLOWER_THAN_A_PASS_SECONDS)
        return answer

    binding = "token" if case == "the token counts" else "payment"
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

            async with lines_to_all(gate["accessUrl"], 2, count=4) as lines:
                buying = asyncio.gather(*(buy(line) for line in lines))
                if case == "the gate is deleted":
                    await asyncio.sleep(SLOWER_THAN_A_PASS_SECONDS / 3)
                    gone = await site.buyer.ask("DELETE", f"{url}/api/v1/paygates/{gate['id']}")
                    assert gone.status == 200
                told = await buying
    assert {*told} == {(200, True)}
