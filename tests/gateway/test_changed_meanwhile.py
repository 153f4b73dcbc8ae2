"""A request that waits while its gate is changed is answered by the gate as it is by then (contract 3.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.hostile_hub import Forward
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_deleted_meanwhile import Late, delete, shop_apart
from tests.gateway.test_leaving import LeftShop
from tests.gateway.test_management import code_of
from tollkeeper.sandbox.buyer import Answer

NEW = "0x" + "88" * 20
CHANGES = {"address": {"paymentAddress": NEW}, "price": {"price": "0.5"}, "is disabled": {"isEnabled": False}}


async def change_gate(there: LeftShop, gate: dict[str, Any], change: str) -> None:
    if change == "deleted":
        await delete(there, gate)
    else:
        url = f"{there.url}/api/v1/paygates/{gate['id']}"
        assert (await there.buyer.ask("PUT", url, body=CHANGES[change])).status == 200


def shown_by(answer: Answer) -> tuple[str, str]:
    shown = answer.json()["accepts"][0]
    return shown["payTo"].lower(), shown["maxAmountRequired"]


def asked_by_then(gate: dict[str, Any], change: str) -> tuple[str, str]:
    return (NEW, "10000") if change == "address" else (gate["paymentAddress"].lower(), "500000")


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
        await change_gate(there, gate, change)
        late.may_answer.set()
        told = [(await one).status for one in (first, second)]
        answer = await second
    if change in {"deleted", "is disabled"}:
        assert sorted(told) == [200, 404]
        return
    # Either may be the one that is served: it is the claimer's credit, or that of who asked first.
    assert told == [200, 402]
    assert shown_by(answer) == asked_by_then(gate, change)


@pytest.mark.parametrize("asked", ["verify", "settle"])
@pytest.mark.parametrize("change", [*CHANGES, "deleted"])
async def test_a_payment_that_is_refused_behind_a_wait_is_told_what_the_gate_asks_for_by_then(
    change: str, asked: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    no = {"isValid": False, "invalidReason": "insufficient_funds"}
    if asked == "settle":
        no = {"success": False, "errorReason": "insufficient_funds", "transaction": "", "network": "base-sepolia"}

    async def refuse(_request: web.Request, _forward: Forward) -> web.StreamResponse:
        is_asked.set()
        await may_answer.wait()
        return web.json_response(no)

    async with shop_apart(embedded_chain, target, tmp_path) as (there, between):
        if asked == "verify":
            between.verifying = refuse
        else:
            between.settling = refuse
        gate = await there.gate(credits=1)
        buying = asyncio.create_task(there.buyer.call(gate["accessUrl"], await there.payment(gate)))
        await asyncio.wait_for(is_asked.wait(), 20)
        await change_gate(there, gate, change)
        may_answer.set()
        answer = await buying
    if change in {"deleted", "is disabled"}:
        assert code_of(answer) == (404, "NOT_FOUND")
        return
    assert code_of(answer) == (402, "INSUFFICIENT_FUNDS")
    details = answer.json()["error"]["details"]
    wanted = (asked, "valid" if asked == "verify" else "success", "insufficient_funds")
    assert (details["check"], details["expected"], details["found"]) == wanted
    assert shown_by(answer) == asked_by_then(gate, change)


async def test_a_gate_that_sells_nothing_shows_no_requirements_beside_a_refusal(market: Market) -> None:
    gate = await market.gate()
    assert (await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"isEnabled": False})).status == 200
    answer = await market.pay(gate, "bm90aGluZw==")  # no payment at all
    assert (*code_of(answer), answer.json().get("accepts")) == (404, "NOT_FOUND", None)
