"""Limits of requests with several workers: each counts for itself, what it says and what it grants (decision 0029)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.recording_target import recording_target
from tests.workers.program import Scene, Site, lines_to_all, mark_of
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

UNPAID, WORKERS = 20, 2
CLIENT = "203.0.113.1"


async def test_an_address_has_its_whole_limit_at_each_worker_and_no_more(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    site = await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    site.environ |= {
        "TOLLKEEPER_TRUSTED_PROXIES": "127.0.0.1",
        "TOLLKEEPER_UNPAID_REQUESTS_PER_MINUTE": str(UNPAID),
    }
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving(WORKERS) as program:
            shop = Scene(site, program, target, buyer, embedded_chain)
            gate = await shop.gate()
            granted: Counter[str] = Counter()
            async with lines_to_all(gate["url"], WORKERS) as lines:
                started = time.monotonic()
                for line in lines:
                    while (answer := await line.get(gate["url"], X_Forwarded_For=CLIENT)).status == 402:
                        granted[mark_of(answer)] += 1
                        assert answer.headers["ratelimit-policy"] == f'"unpaid";q={UNPAID};w=60'
                    assert answer.status == 429
                won_back = int((time.monotonic() - started) * UNPAID / 60) + 1  # what has aged meanwhile
                assert (await lines[0].get(gate["url"], X_Forwarded_For="203.0.113.2")).status == 402
            assert len(granted) == WORKERS
            assert all(UNPAID <= count <= UNPAID + won_back for count in granted.values())
