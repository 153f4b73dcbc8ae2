"""Signers that have no gas money: nobody is kept waiting for it, and the operator is told (contract 5.2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import pass_on, says
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_refused_gateways import known, sign_as_at
from tests.gateway.test_unknown_outcomes import Apart
from tollkeeper.core.limits import SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

__all__ = ["known"]  # a fixture
NO_GAS = '{"error":{"code":"UNAVAILABLE","message":"no gas money"},"apiVersion":"v1"}'


@pytest.mark.parametrize("is_funded_at_first", [False, True])
async def test_a_buyer_is_told_at_once_that_nothing_was_charged_and_the_operator_what_is_wrong(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, is_funded_at_first: bool
) -> None:
    wallets, rpc = derive_wallets(), embedded_chain.rpc

    def fund(wei: int) -> None:
        rpc.call("anvil_setBalance", wallets.relayer.address, hex(wei))

    if not is_funded_at_first:
        fund(0)
    with capture_logs() as lines:
        async with composed(embedded_chain.url, tmp_path / "shop.db") as url, Buyer(wallets.buyer) as buyer:
            body = {"targetUrl": target.url, "price": "0.01"}
            gate = (await buyer.ask("POST", f"{url}/api/v1/paygates", body=body)).json()["accessUrl"]

            async def pay() -> tuple[int, bytes, float]:
                payment = buyer.sign((await buyer.ask("GET", gate)).json())
                began = monotonic()
                answer = await buyer.ask("GET", gate, headers={"X-Payment": payment})
                return answer.status, answer.body, monotonic() - began

            if is_funded_at_first:
                assert (await pay())[0] == 200
                fund(0)
                await asyncio.sleep(2.5)  # what accounts hold is remembered for so long
            for _ in range(2):
                status, told, seconds = await pay()
                assert (status, b'"UNAVAILABLE"' in told, b"nothing was charged" in told) == (503, True, True), told
                assert seconds < 10
            for path in ("/readyz", "/hub/readyz"):
                ready = await buyer.ask("GET", url + path)
                (problem,) = ready.json()["problems"]
                assert ready.status == 200
                assert wallets.relayer.address in problem
                assert "has no gas money" in problem
            fund(10**18)
            await asyncio.sleep(2.5)
            assert (await pay())[0] == 200
            assert (await buyer.ask("GET", f"{url}/readyz")).json()["problems"] == []
    events = [line["event"] for line in lines if line["log_level"] in {"warning", "error"}]
    assert events.count("signer_without_gas") == 1
    assert "hub_refuses_our_signature" not in events


async def test_a_request_that_expires_while_the_hub_cannot_settle_it_is_no_fault_of_the_signature(
    known: Apart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = await known.gate()
    payment = await known.payment(gate)
    with monkeypatch.context() as patch, capture_logs() as lines:
        sign_as_at(patch, 2 - SETTLE_REQUEST_LIFETIME_SECONDS)
        known.hub.settling = says(503, NO_GAS)
        assert (await known.pay(gate, payment)).error_code == "SETTLEMENT_PENDING"
        known.hub.settling = pass_on
        await asyncio.sleep(2)
        patch.undo()
        with beside(tmp_path / "gateway.db") as books:
            assert books.execute("UPDATE purchases SET attempt_ms = attempt_ms - 70000").rowcount == 1
        answer = await known.pay(gate, payment)
        assert answer.status == 200, answer.body
    assert "hub_refuses_our_signature" not in [line["event"] for line in lines]
    assert (len(known.target.requests), known.received_micro()) == (1, 10_000)
