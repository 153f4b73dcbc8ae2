"""Credits are held on a further network of a gate, or a payment is claimed there, and that is away for a while."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp.web

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed, settings_for
from tests.gateway.hostile_hub import Forward, run_hostile_hub
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_several_networks import BASE, BOTH, base_node
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings import NetworkSettings, Role


async def payment_on_base(buyer: Buyer, gate_url: str) -> str:
    return buyer.sign((await buyer.ask("GET", gate_url, headers={"X-Payment-Network": "base"})).json())


async def test_held_credits_are_served_while_their_networks_node_is_away(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "all.db"
    async with base_node() as (node, base_url), Buyer(derive_wallets().buyer) as buyer:
        networks = {
            **settings_for(embedded_chain.url, database).networks,
            BASE.name: NetworkSettings(BASE, (base_url,)),
        }
        async with composed(embedded_chain.url, database, networks=networks) as url:
            body = {"price": "0.01", "targetUrl": target.url, "credits": 5, **BOTH}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
            payment = await payment_on_base(buyer, gate["accessUrl"])
            unused = await payment_on_base(buyer, gate["accessUrl"])
            first = await buyer.call(gate["accessUrl"], payment)
            assert (first.status, first.headers["x-credits-remaining"]) == (200, "4")
        await node.stop()
        async with composed(embedded_chain.url, database, networks=networks) as url:
            again = await buyer.call(f"{url}/{gate['slug']}", payment)
            assert (again.status, again.headers.get("x-credits-remaining")) == (200, "3")
            other = await buyer.call(f"{url}/{gate['slug']}", unused)
            assert (other.status, other.error_code) == (402, "INVALID_NETWORK")


async def test_a_claimed_payment_is_pending_while_its_network_is_away(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async def lost(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        await forward()
        return aiohttp.web.Response(status=502, text="{}")

    async with base_node() as (_, base_url), Buyer(derive_wallets().buyer) as buyer:
        networks = dict(settings_for(embedded_chain.url, tmp_path / "hub.db").networks)
        networks[BASE.name] = NetworkSettings(BASE, (base_url,))
        async with (
            composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB, networks=networks) as hub,
            run_hostile_hub(hub) as between,
        ):
            apart: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": between.url, "networks": networks}
            between.settling = lost
            async with composed(embedded_chain.url, tmp_path / "gateway.db", **apart) as url:
                body = {"price": "0.01", "targetUrl": target.url, "credits": 5, **BOTH}
                gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
                payment = await payment_on_base(buyer, gate["accessUrl"])
                first = await buyer.call(gate["accessUrl"], payment)
                assert (first.status, first.error_code) == (503, "SETTLEMENT_PENDING")
            supported = (await buyer.ask("GET", hub + "/supported")).json()
            supported["kinds"] = [kind for kind in supported["kinds"] if kind["network"] != "base"]
            between.supported = json.dumps(supported)
            async with composed(embedded_chain.url, tmp_path / "gateway.db", **apart) as url:
                again = await buyer.call(f"{url}/{gate['slug']}", payment)
                assert again.status in {200, 503}, again.body
