"""What goes out under other settings: another default shape, main networks, several networks of one family."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import mainnet_market
from tests.golden.place import FEE_PAYERS, PAYEE, recorded_at
from tests.golden.recording import recorded
from tests.specification.client import Chain, Http, Wallet
from tests.specification.other_network import base_world
from tests.specification.world import World
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.challenge import Profile
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.settings.model import NetworkSettings

SUPERSET = {"Accept": 'application/json;profile="superset"'}


async def test_another_default(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, http: Http
) -> None:
    shape_b: dict[str, Any] = {"challenge_profile": Profile.SHAPE_B}
    async with composed(embedded_chain.url, tmp_path / "own.db", **shape_b) as url:
        buyer, nothing = Wallet(embedded_chain.wallets.buyer.private_key_hex), tmp_path / "nothing"
        world = World(url, url + "/hub", target, http, nothing, nothing, embedded_chain.url, Chain(USDC_ADDRESS), buyer)
        with recorded_at(world, "another_default") as place:
            gate = await place.gate("golden-default")
            await place.call("shape B unless told otherwise", gate)
            await place.call("the superset, as it is asked for", gate, headers=SUPERSET)
            await place.call("an unreadable payment", gate, "?")


async def test_base(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, http: Http) -> None:
    sepolia = NETWORKS["base-sepolia"]
    beside = {sepolia.name: NetworkSettings(sepolia, (embedded_chain.url,))}
    async with base_world(tmp_path, target, http, beside) as world:
        with recorded_at(world, "base") as place:
            gate = await place.gate("golden-base")
            await place.call("the 402", gate)
            paid = await world.payment(gate)
            await place.call("the call that buys", gate, paid)
            await place.hub("supported", "GET", "/supported")
            also = {"accepts": [{"network": "base-sepolia", "paymentAddress": PAYEE}]}
            both = await place.gate("golden-base-both", **also)
            await place.call("real money and play money: the gate's own", both)
            await place.call(
                "real money and play money: the other", both, headers={"X-Payment-Network": "base-sepolia"}
            )
            good = world.asking(recipient=PAYEE)
            await place.hub("verify", "POST", "/verify", body=good)
            alias = {**good["paymentRequirements"], "network": "base-mainnet"}
            named = {**good["paymentPayload"], "network": "base-mainnet"}
            body = {**good, "paymentRequirements": alias, "paymentPayload": named, "confirm": True}
            await place.hub("settle, by the network's other name", "POST", "/settle", body=body)


async def test_solana_mainnet(tmp_path: Path, target: RecordingTarget) -> None:
    async with mainnet_market(target, tmp_path) as market:
        names = {urlsplit(market.url).netloc: "gateway.example"} | FEE_PAYERS
        with recorded("solana_mainnet", names) as recording:
            gate = await market.gate(slug="golden-mainnet")
            await recording.ask("the 402", "GET", gate["accessUrl"])
            shape_b = {"Accept": 'application/json;profile="x402-b"'}
            await recording.ask("the 402 in shape B", "GET", gate["accessUrl"], shape_b)
            paid = {"X-Payment": await market.payment(await market.requirements(gate))}
            await recording.ask("the call that buys", "GET", gate["accessUrl"], paid)
            await recording.ask("supported", "GET", market.url + "/hub/supported")
