"""A hub that refuses what a gateway signed has said nothing of the payment (contract 4.3, 4.4; security F18, F19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.gateway_process import gateway_keys
from tests.gateway.hostile_hub import lose_answer, pass_on, run_hostile_hub, says
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_unknown_outcomes import Apart
from tests.hub.hub_process import HubProcess
from tests.ports import free_port
from tollkeeper.api import clock_ms
from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX, SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.gateway.facilitator import client as hub_client
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving import composition
from tollkeeper.settings.model import Role

POOR = '{"success":false,"errorReason":"insufficient_funds","transaction":""}'


@pytest.fixture
async def known(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Apart]:
    """A gateway whose hub, apart, trusts it."""
    chain_url = embedded_chain.url
    async with AsyncExitStack() as stack:
        port = free_port()
        process = await asyncio.to_thread(HubProcess, tmp_path, chain_url, trusted_keys=gateway_keys(port))
        stack.callback(process.__exit__)
        hub = await stack.enter_async_context(run_hostile_hub(process.url))
        parts = composed(chain_url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub.url, at=port)
        url = await stack.enter_async_context(parts)
        buyer = await stack.enter_async_context(Buyer(derive_wallets().buyer))
        yield Apart(url, hub, embedded_chain, target, buyer)


def sign_as_at(patch: pytest.MonkeyPatch, ahead_seconds: int) -> None:
    """The clock by which the gateway signs goes wrong."""
    for module in (composition, hub_client):
        patch.setattr(module, "clock_ms", lambda: clock_ms() + ahead_seconds * 1000)


@pytest.mark.parametrize("ahead_seconds", [20, -SETTLE_REQUEST_LIFETIME_SECONDS - 10])
async def test_a_hub_that_refuses_what_a_gateway_signed_is_a_503_and_uses_no_attempt_up(
    known: Apart, monkeypatch: pytest.MonkeyPatch, ahead_seconds: int
) -> None:
    """As where one of their clocks is wrong: the payment is as good as it was."""
    gate = await known.gate()
    payment = await known.payment(gate)
    with monkeypatch.context() as patch, capture_logs() as lines:
        sign_as_at(patch, ahead_seconds)
        for _ in range(PAYMENT_ATTEMPTS_MAX + 1):
            answer = await known.pay(gate, payment)
            assert (answer.status, answer.error_code) == (503, "UNAVAILABLE"), answer.body
            assert int(answer.headers["retry-after"]) > 0
            assert b"accepts" not in answer.body
    told = [line for line in lines if line["event"] == "hub_refuses_our_signature"]
    assert len(told) == PAYMENT_ATTEMPTS_MAX + 1
    assert ("future" if ahead_seconds > 0 else "expired") in told[0]["reason"]
    assert told[0]["hub_clock"][:10] == told[0]["our_clock"][:10]
    assert known.target.requests == []
    answer = await known.pay(gate, payment)
    assert answer.status == 200, answer.body
    assert (len(known.target.requests), known.received_micro()) == (1, 10_000)


async def test_what_the_hub_did_not_hear_leaves_a_payment_its_three_attempts(
    known: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = await known.gate()
    payment = await known.payment(gate)
    told = []
    for is_heard in (True, False, True, False, False, True, True):
        with monkeypatch.context() as patch:
            known.hub.settling = says(200, POOR) if is_heard else pass_on
            sign_as_at(patch, 0 if is_heard else 20)
            told.append((await known.pay(gate, payment)).error_code)
    refused, unheard = "INSUFFICIENT_FUNDS", "UNAVAILABLE"
    assert told == [refused, unheard, refused, unheard, unheard, refused, "PAYMENT_INVALID"]


async def test_a_claim_whose_request_was_lost_and_is_not_heard_yet_is_not_failed_by_that(
    known: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buyer is back, and it is sent again: the hub may hear it when the signature's time has come."""
    gate = await known.gate()
    payment = await known.payment(gate)
    with monkeypatch.context() as patch:
        sign_as_at(patch, 15)
        known.hub.settling = lose_answer  # which is the hub's refusal
        assert (await known.pay(gate, payment)).error_code == "SETTLEMENT_PENDING"
    known.hub.settling = pass_on
    answer = await known.pay(gate, payment)
    assert answer.status == 200, answer.body
    assert (len(known.target.requests), known.received_micro()) == (1, 10_000)


async def test_a_claim_of_before_the_gateway_s_clock_was_put_back_waits_for_no_time_to_come(
    known: Apart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its request was lost, and by both clocks it is of five minutes later: it is asked for anew by the right one."""
    gate = await known.gate()
    payment = await known.payment(gate)
    with monkeypatch.context() as patch:
        sign_as_at(patch, 300)
        known.hub.settling = lose_answer  # which is the hub's refusal
        assert (await known.pay(gate, payment)).error_code == "SETTLEMENT_PENDING"
    with beside(tmp_path / "gateway.db") as books:
        assert books.execute("UPDATE purchases SET attempt_ms = attempt_ms + 300000").rowcount == 1
    known.hub.settling = pass_on
    async with asyncio.timeout(20):
        while (answer := await known.pay(gate, payment)).status == 503:
            assert b"accepts" not in answer.body
    assert answer.status == 200, answer.body
    assert (len(known.target.requests), known.received_micro()) == (1, 10_000)
