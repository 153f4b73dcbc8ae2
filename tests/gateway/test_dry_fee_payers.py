"""A fee payer that is advertised and has no money any more (contract 4.1, 4.4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_used_solana_payments import error_of, place_of
from tollkeeper.gateway import app


@pytest.mark.timeout(60)
async def test_who_answers_a_402_after_a_refusal_for_want_of_fees_is_served_by_another_fee_payer(
    tmp_path: Path, target: RecordingTarget
) -> None:
    async with place_of(tmp_path, target) as place, place.market() as market:
        gate = await market.gate()
        wanted = await market.requirements(gate)
        dry = wanted["extra"]["feePayer"]
        place.node.chain.drain(dry)
        refused = await market.pay(gate, await market.payment(wanted))
        assert (refused.status, error_of(refused)["code"]) == (503, "UNAVAILABLE")
        assert "fee payer has no money" in error_of(refused)["message"]
        (problem,) = (await market.buyer.ask("GET", f"{market.url}/readyz")).json()["problems"]
        assert dry in problem
        assert "has no gas money" in problem
        async with asyncio.timeout(app.REFRESH_SECONDS / 2):
            while wanted["extra"]["feePayer"] == dry:
                await asyncio.sleep(0.05)
                wanted = await market.requirements(gate)
        assert (await market.pay(gate, await market.payment(wanted))).status == 200
