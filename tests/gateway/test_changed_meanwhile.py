"""A request that waits while its gate is changed is answered by the gate as it is by then (contract 3.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_deleted_meanwhile import Late, delete, shop_apart

NEW = "0x" + "88" * 20
CHANGES = {"address": {"paymentAddress": NEW}, "price": {"price": "0.5"}, "is disabled": {"isEnabled": False}}


@pytest.mark.parametrize("change", [*CHANGES, "deleted"])
async def test_a_402_behind_a_wait_asks_for_what_the_gate_asks_for_by_then(
    change: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop_apart(embedded_chain, target, tmp_path) as (there, between):
        between.settling = late = Late()
        gate = await there.gate(credits=1)
        payment = await there.payment(gate)
        first = asyncio.create_task(there.buyer.call(gate["accessUrl"], payment))
        await late.until_asked()
        second = asyncio.create_task(there.buyer.call(gate["accessUrl"], payment))
        await asyncio.sleep(0.3)
        if change == "deleted":
            await delete(there, gate)
        else:
            url = f"{there.url}/api/v1/paygates/{gate['id']}"
            assert (await there.buyer.ask("PUT", url, body=CHANGES[change])).status == 200
        late.may_answer.set()
        told = [(await one).status for one in (first, second)]
        answer = await second
    if change in {"deleted", "is disabled"}:
        assert sorted(told) == [200, 404]
        return
    # Either may be the one that is served: it is the claimer's credit, or that of who asked first.
    assert told == [200, 402]
    shown = answer.json()["accepts"][0]
    wanted = (NEW, "10000") if change == "address" else (gate["paymentAddress"].lower(), "500000")
    assert (shown["payTo"].lower(), shown["maxAmountRequired"]) == wanted
