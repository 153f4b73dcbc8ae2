"""A gateway's clock that is put back holds nothing up for as long (contract 4.4; security F8)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.shop import Shop
from tollkeeper.api import clock_ms
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.core.trust import DEFAULT_EXPOSURE
from tollkeeper.gateway.evidence.nodes import EvidenceNodes
from tollkeeper.gateway.facilitator.client import HubClient
from tollkeeper.gateway.facilitator.transports import HttpTransport
from tollkeeper.gateway.purchase.monitor import PurchaseParts, SaleMonitor
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.settings.model import Role
from tollkeeper.storage.ledger.purchases import Purchases
from tollkeeper.storage.urls import open_database

HOUR_MS = 3_600_000


def follow_and_paid_ms(path: Path) -> tuple[int, int]:
    """When the only sale is looked at next, and since when it is known to be paid."""
    with beside(path) as connection:
        (row,) = connection.execute("SELECT follow_ms, paid_ms FROM purchases").fetchall()
    return row[0], row[1]


@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it starts"])
async def test_a_clock_that_was_put_back_holds_up_no_look_at_a_sale(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, is_running: bool
) -> None:
    """Until the clock was there again, credits would be served whose payment had gone."""
    path = tmp_path / "gateway.db"
    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url:
        async with (
            composed(embedded_chain.url, path, role=Role.GATEWAY, hub_url=hub_url) as url,
            Buyer(embedded_chain.wallets.buyer) as buyer,
        ):
            shop = Shop(url, path, target, buyer)
            gate = await shop.gate(credits=2)
            assert (await buyer.call(gate["accessUrl"], await shop.payment(gate))).status == 200
        database, now_ms = open_database(str(path)), clock_ms()
        hub = HubClient(HttpTransport(hub_url), lambda *_: {})
        supported = await hub.supported()
        purchases = Purchases(database, Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom))
        parts = PurchaseParts(
            purchases=purchases,
            hub=hub,
            supported=lambda: supported,
            evidence=EvidenceNodes({}),
            clock_ms=lambda: now_ms,
            cap=DEFAULT_EXPOSURE,
            gateway_url="",
            status_url="",
        )
        following = SaleMonitor(parts)
        try:
            if is_running:
                await following.look_again()
            follow_ms, paid_ms = follow_and_paid_ms(path)
            assert follow_ms <= paid_ms + 12_500
            now_ms -= HOUR_MS
            await following.look_again()
            assert follow_and_paid_ms(path) == (now_ms + 4_000, now_ms)
            now_ms += 4_000
            await following.look_again()
            assert follow_and_paid_ms(path) == (now_ms + 8_000, now_ms - 4_000)
        finally:
            await hub.close()
            await database.close()
