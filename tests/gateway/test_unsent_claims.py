"""A claim that was written and never sent, of whose credits what is shown next spends none: its buyer comes again.

Where the credits are bound to the token nobody could tell it him; other bytes than the claim's, or a wallet's payment
without its bearer, are refused what they bought. So nothing is sent: the claim fails, and the next showing buys anew
(contract 4.3, decision 0009).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, cut, pass_on, run_hostile_hub
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_leaving import LeftShop, shop
from tests.gateway.test_stopping import books_of
from tollkeeper.gateway.call import state
from tollkeeper.settings.model import Role
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.ledger.purchases import ClaimResult, Purchases


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.gateway.purchase.recovery.SETTLE_REQUEST_LIFETIME_SECONDS", 10)
    monkeypatch.setattr("tollkeeper.gateway.purchase.recovery._EXPIRY_MARGIN_SECONDS", 1)
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 2)


@contextlib.contextmanager
def _lost_claims() -> Iterator[None]:
    """Claims are written, and never sent."""
    claim = Purchases.claim

    async def lose(self: Purchases, *arguments: Any, **named: Any) -> ClaimResult:
        await claim(self, *arguments, **named)
        raise StorageError("the database said nothing")

    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(Purchases, "claim", lose)
        yield


async def _lose(there: LeftShop, gate: dict[str, Any], **shown: str) -> None:
    with _lost_claims():
        headers = {name.replace("_", "-"): value for name, value in shown.items()}
        answer = await there.buyer.ask("GET", gate["accessUrl"], headers=headers)
    assert (answer.status, "x-credit-token" in answer.headers) == (503, False)


def _in_other_bytes(payment: str) -> str:
    return base64.b64encode(json.dumps(json.loads(base64.b64decode(payment)), indent=1).encode()).decode()


async def _buys_at_last(there: LeftShop, gate: dict[str, Any], payment: str, **beside: str) -> None:
    """He is told to wait while the claim may still be sent, and then served; where the token counts, he is told it."""
    seen: list[int] = []
    shown = {"X-Payment": payment, **beside}
    async with asyncio.timeout(60):
        while not seen or seen[-1] == 503:
            answer = await there.buyer.ask("GET", f"{there.url}/{gate['slug']}", headers=shown)
            seen.append(answer.status)
            if token := answer.headers.get("x-credit-token"):  # of a 503, too, where his time was over by then
                shown["X-Credit-Token"] = token
    assert (seen[0], seen[-1]) == (503, 200)
    assert answer.headers["x-credits-remaining"] == "19"
    assert "X-Credit-Token" in shown or gate["creditBinding"] != "token"


async def test_whoever_gave_up_while_the_hub_was_away_is_not_charged_for_what_he_cannot_spend(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    settling = asyncio.Event()

    async def away(request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        settling.set()
        await asyncio.sleep(1)
        return await cut(request, forward)

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = away
        async with shop(embedded_chain.url, target, tmp_path, role=Role.GATEWAY, hub_url=between.url) as there:
            gate = await there.gate(credits=20, creditBinding="token")
            payment = await there.payment(gate)
            _, writer = await there.connect()
            writer.write(there.request(gate, X_Payment=payment))
            await asyncio.wait_for(settling.wait(), 10)
            writer.transport.abort()
            await asyncio.sleep(1.5)
            between.settling = pass_on
            await _buys_at_last(there, gate, payment)
    assert books_of(there) == [("LIVE", 19)]


@pytest.mark.parametrize("how", ["the answer is lost", "killed"])
async def test_whoever_was_not_told_of_his_claim_is_not_charged_for_what_he_cannot_spend(
    how: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
) -> None:
    """The database does not say that it is written, or the process is killed behind it."""
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, creditBinding="token")
        payment = await there.payment(gate)
        await _lose(there, gate, X_Payment=payment)
        if how == "the answer is lost":
            await _buys_at_last(there, gate, payment)
    if how == "killed":
        async with shop(embedded_chain.url, target, tmp_path) as there:
            await _buys_at_last(there, gate, payment)
    assert books_of(there) == [("LIVE", 19)]


async def test_a_payment_in_other_bytes_than_those_of_a_claim_that_was_never_sent_buys_by_its_own(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """Else the claim would be sent for its first bytes, and its credits withheld from who waits with these."""
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20)
        payment = await there.payment(gate)
        await _lose(there, gate, X_Payment=payment)
        await _buys_at_last(there, gate, _in_other_bytes(payment))
    assert books_of(there) == [("LIVE", 19)]


async def test_nor_is_it_sent_for_the_payer_s_bearer_where_the_gate_only_asks_who_calls(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """His header spends there, and his bearer nothing."""
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, requireAuth=True)
        bearer = f"Bearer {await there.buyer.login(there.url)}"
        asked = await there.buyer.ask("GET", gate["accessUrl"], headers={"Authorization": bearer})
        payment = there.buyer.sign(asked.json())
        await _lose(there, gate, X_Payment=payment, Authorization=bearer)
        await _buys_at_last(there, gate, _in_other_bytes(payment), Authorization=bearer)
    assert books_of(there) == [("LIVE", 19)]


async def test_a_claim_of_a_wallet_that_was_never_sent_is_not_sent_for_who_has_not_its_bearer(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, creditBinding="wallet")
        payment = await there.payment(gate)
        bearer = f"Bearer {await there.buyer.login(there.url)}"
        await _lose(there, gate, X_Payment=payment, Authorization=bearer)
        seen: list[tuple[int, str | None]] = []
        async with asyncio.timeout(60):
            while not seen or seen[-1][0] == 503:
                answer = await there.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": payment})
                seen.append((answer.status, answer.error_code))
        assert (seen[0], seen[-1]) == ((503, "SETTLEMENT_PENDING"), (401, "AUTH_REQUIRED"))
        shown = {"X-Payment": payment, "Authorization": bearer}
        assert (await there.buyer.ask("GET", gate["accessUrl"], headers=shown)).status == 200
    assert books_of(there) == [("LIVE", 19)]


async def test_whoever_is_told_to_wait_before_his_claim_is_written_can_follow_his_payment(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async def verify_late(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        await asyncio.sleep(3)
        return await forward()

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.verifying = verify_late
        async with shop(embedded_chain.url, target, tmp_path, role=Role.GATEWAY, hub_url=between.url) as there:
            gate = await there.gate()
            answer = await there.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": await there.payment(gate)})
            assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
            details = answer.json()["error"]["details"]
            assert details["transaction"] == ""
            assert "/payments/base-sepolia/" in details["statusUrl"]
