"""Every listing comes in pages: each item once, in one order, with what there is before and behind (contract 2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.market import Market
from tests.gateway.test_stats import once
from tollkeeper.gateway.traffic import INTERVAL_SECONDS
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

ITEMS = 3


async def page(market: Market, path: str, items: str, query: str, headers: dict[str, str]) -> tuple[list[Any], Any]:
    answer = await market.ask("GET", f"{path}?{query}", headers=headers)
    assert answer.status == 200, answer.body
    return answer.json()[items], answer.json()["pagination"]


async def assert_in_pages(market: Market, path: str, items: str, headers: dict[str, str]) -> None:
    """One by one they are what one large page shows."""
    whole, pagination = await page(market, path, items, "limit=100", headers)
    total = pagination["totalCount"]
    assert len(whole) == min(total, 100) >= ITEMS
    for offset in range(ITEMS):
        one, pagination = await page(market, path, items, f"limit=1&offset={offset}", headers)
        assert one == whole[offset : offset + 1]
        assert pagination == {
            "totalCount": total,
            "limit": 1,
            "offset": offset,
            "hasNext": offset + 1 < total,
            "hasPrev": offset > 0,
        }
    behind, pagination = await page(market, path, items, f"limit=5&offset={total}", headers)
    assert (behind, pagination["hasNext"], pagination["hasPrev"]) == ([], False, True)
    for wrong in ("limit=0", "limit=101", "limit=x", "limit=1&offset=-1", "limit=1&offset=1.5", "limit=1&limit=2"):
        refused = await market.ask("GET", f"{path}?{wrong}", headers=headers)
        assert (refused.status, refused.error_code) == (400, "INVALID_PARAMETER"), wrong


async def test_every_listing_of_the_gateway_comes_in_pages(market: Market) -> None:
    bearer = {"Authorization": f"Bearer {await market.buyer.login(market.stack.gateway_url)}"}
    gates = []
    for _ in range(ITEMS):
        made = await market.ask(
            "POST", "/api/v1/paygates", headers=bearer, body={"targetUrl": market.target.url, "price": "0.01"}
        )
        assert made.status == 201
        gates.append(made.json())
    # What other tests asked in this half second may have filled the log, which keeps so many rows for one writing.
    await asyncio.sleep(2 * INTERVAL_SECONDS)
    for gate in gates:
        _, bought = await market.buy(gate)
        assert bought.status == 200
    requests = f"/api/v1/paygates/{gates[0]['id']}/requests"
    await market.buy(gates[0])
    await once(market, requests.removeprefix("/api/v1/"), lambda found: len(found["data"]) > ITEMS, **bearer)
    await assert_in_pages(market, "/api/v1/paygates", "data", bearer)
    await assert_in_pages(market, requests, "data", bearer)
    await assert_in_pages(market, "/api/v1/credits", "data", bearer)
    payment, _ = await market.buy(gates[1])
    one = await market.ask("GET", "/api/v1/credits?limit=1", headers={"X-Payment": payment})
    assert [len(one.json()["data"]), one.json()["pagination"]["totalCount"]] == [1, 1]


async def test_sixty_deep_pages_of_one_owner_do_not_hold_up_another_s_list(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    rows, told = 100_000, list[str]()
    wallets = derive_wallets()
    async with composed(embedded_chain.url, tmp_path / "gate.db") as url, Buyer(wallets.buyer) as buyer:

        async def owned(name: str) -> tuple[int, dict[str, str]]:
            key = wallets.owner.key if name == "attacker" else wallets.buyer.key
            bearer = {"Authorization": f"Bearer {await buyer.login(url, key)}"}
            body = {"targetUrl": url, "price": "0.01"}
            made = await buyer.ask("POST", f"{url}/api/v1/paygates", body=body, headers=bearer)
            return made.json()["id"], bearer

        async def ask(name: str, gate_id: int, bearer: dict[str, str], query: str) -> None:
            answer = await buyer.ask("GET", f"{url}/api/v1/paygates/{gate_id}/requests?{query}", headers=bearer)
            assert answer.status == 200, answer.body
            told.append(name)

        attacker, other = await owned("attacker"), await owned("other")
        with beside(tmp_path / "gate.db") as books:
            books.execute(
                "INSERT INTO requests (id, gate_id, at_ms, method, status, outcome, duration_us)"
                " WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < ?)"
                " SELECT 'r' || v, ?, v, 'GET', 200, 'served', 1 FROM n",
                (rows, attacker[0]),
            )
        asked = [asyncio.create_task(ask("attacker", *attacker, f"offset={rows - 20}")) for _ in range(60)]
        await asyncio.sleep(0)
        await ask("other", *other, "")
        assert told.count("attacker") <= 30
        await asyncio.gather(*asked)
