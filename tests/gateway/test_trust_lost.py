"""Who got something on trust and did not pay for it is trusted less for a day (contract 4.4; A-11)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import SolanaMarket
from tests.gateway.test_used_solana_payments import Place, place_of
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.core.trust import DEFAULT_EXPOSURE, Exposure
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS

CAP = 2


async def bought(market: SolanaMarket, gate: dict[str, Any]) -> Answer:
    """With a payment that a node takes, and that no block will hold."""
    return await market.pay(gate, await market.payment(await market.requirements(gate)))


async def proved_unpaid(place: Place, market: SolanaMarket, gate: dict[str, Any], count: int) -> None:
    """What was sent is lost, its time passes, and the gateway learns of it."""
    place.node.chain.drop()
    place.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
    url = f"{market.url}/api/v1/paygates/{gate['id']}"
    async with asyncio.timeout(60):
        while (await market.buyer.ask("GET", url)).json()["trusted"]["failed"] < count:  # noqa: ASYNC110 - over HTTP there is nothing else
            await asyncio.sleep(0.1)


async def test_sales_on_trust_that_were_not_paid_count_against_the_cap_for_a_day(
    tmp_path: Path, target: RecordingTarget
) -> None:
    """Else whoever signs payments that expire at once, which costs nothing, is served without end."""
    caps = replace(
        DEFAULT_EXPOSURE, payer=replace(DEFAULT_EXPOSURE.payer, purchases=CAP), gate=Exposure(CAP + 1, 2**62)
    )
    async with place_of(tmp_path, target) as place, place.market(exposure=caps) as market:
        gate = await market.gate(assumeValid=True)
        place.node.chain.holds = True
        assert [(await bought(market, gate)).status for _ in range(CAP)] == [200] * CAP
        await proved_unpaid(place, market, gate, CAP)
        place.node.chain.holds = True
        refused = asyncio.create_task(bought(market, gate))
        await asyncio.sleep(3)
        assert len(target.requests) == CAP  # it waits for the chain, like everybody's at other gates
        place.node.chain.release()
        assert (await refused).status == 200
        assert len(target.requests) == CAP + 1
