"""A gate that is paid on several networks (contract 3.1, 4.1): real money and play money, each to its own recipient."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed, settings_for
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.version1 import encode_header
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.chain import EmbeddedChain
from tollkeeper.sandbox.evm.engine import EngineAccount, GenesisAccount
from tollkeeper.sandbox.evm.node import RELAYER_BALANCE_WEI, open_engine, planted_token
from tollkeeper.sandbox.evm.rpc import evm_rpc_app
from tollkeeper.sandbox.rpc_server import RpcServer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import NetworkSettings

BASE = NETWORKS["base"]
SEPOLIA_PAYEE = "0x" + "71" * 20
BASE_PAYEE = "0x" + "72" * 20
BOTH = {"paymentAddress": SEPOLIA_PAYEE, "accepts": [{"network": "base", "paymentAddress": BASE_PAYEE}]}


@dataclass(slots=True)
class TwoNetworks:
    """A program with two networks, and where to look."""

    url: str
    buyer: Buyer
    target: RecordingTarget
    database: Path
    base_rpc_url: str

    async def gate(self, **fields: object) -> dict[str, Any]:
        body = {"price": "0.01", "targetUrl": self.target.url, **BOTH, **fields}
        answer = await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        return answer.json()

    async def asked(self, gate: dict[str, Any], network: str | None = None) -> Answer:
        headers = {} if network is None else {"X-Payment-Network": network}
        return await self.buyer.ask("GET", gate["accessUrl"], headers=headers)

    async def update(self, gate: dict[str, Any], **fields: object) -> None:
        answer = await self.buyer.ask("PUT", f"{self.url}/api/v1/paygates/{gate['id']}", body=fields)
        assert answer.status == 200, answer.body


@asynccontextmanager
async def base_node() -> AsyncIterator[tuple[RpcServer, str]]:
    wallets = derive_wallets()
    genesis = {
        BASE.usdc.address: planted_token({wallets.buyer.address: 10**9}),
        wallets.relayer.address: GenesisAccount(EngineAccount(balance=RELAYER_BALANCE_WEI), {}),
    }
    assert BASE.chain_id is not None
    chain = EmbeddedChain(
        open_engine(BASE.chain_id, None),
        chain_id=BASE.chain_id,
        genesis=genesis,
        clock_ms=lambda: time.time_ns() // 1_000_000,
    )
    node = RpcServer(evm_rpc_app(chain).answer_body, port=0)
    try:
        yield node, await node.start()
    finally:
        await node.stop()


@pytest.fixture
async def two(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[TwoNetworks]:
    database = tmp_path / "two.db"
    networks = dict(settings_for(embedded_chain.url, database).networks)
    async with base_node() as (_, base_url):
        networks[BASE.name] = NetworkSettings(BASE, (base_url,))
        async with (
            composed(embedded_chain.url, database, networks=networks) as url,
            Buyer(derive_wallets().buyer) as buyer,
        ):
            yield TwoNetworks(url, buyer, target, database, base_url)


async def test_each_network_is_asked_for_and_paid_to_its_own_recipient(
    two: TwoNetworks, embedded_chain: ChainUnderTest
) -> None:
    gate = await two.gate(credits=2)
    assert gate["accepts"] == [{"network": "base", "paymentAddress": checksum_address(BASE_PAYEE)}]
    asked = {name: (await two.asked(gate, name)) for name in (None, "base-sepolia", "base", "base-mainnet")}
    for name, network, payee in (
        (None, "base-sepolia", SEPOLIA_PAYEE),
        ("base-sepolia", "base-sepolia", SEPOLIA_PAYEE),
        ("base", "base", BASE_PAYEE),
        ("base-mainnet", "base", BASE_PAYEE),
    ):
        body = asked[name].json()
        assert asked[name].status == 402
        # Nobody who only has play money is offered to pay real money, or the other way round.
        assert [(entry["network"], entry["payTo"]) for entry in body["accepts"]] == [(network, checksum_address(payee))]
        assert body["paymentRequired"]["network"] == network
        assert body["x402"]["address"] == checksum_address(payee)
    before = embedded_chain.balance(SEPOLIA_PAYEE)
    for name in ("base-sepolia", "base"):
        payment = two.buyer.sign(asked[name].json())
        for left in ("1", "0"):
            answer = await two.buyer.call(gate["accessUrl"], payment)
            assert (answer.status, answer.headers["x-credits-remaining"]) == (200, left)
            assert answer.receipt is not None
            assert answer.receipt["network"] == name
        assert (await two.buyer.call(gate["accessUrl"], payment)).error_code == "CREDITS_EXHAUSTED"
    assert embedded_chain.balance(SEPOLIA_PAYEE) - before == 10_000
    assert await two.buyer.balance_micro(two.base_rpc_url, BASE.usdc.address, BASE_PAYEE) == 10_000
    assert not [name for request in two.target.requests for name, _ in request.headers if "payment" in name]


async def test_a_refused_payment_stands_beside_the_network_that_was_asked_for(two: TwoNetworks) -> None:
    gate = await two.gate()
    challenge = (await two.asked(gate, "base")).json()
    wrong = {"accepts": [{**challenge["accepts"][0], "payTo": SEPOLIA_PAYEE}]}
    for headers, network in (({"X-Payment-Network": "base"}, "base"), ({"X-Payment-Network": "?"}, "base-sepolia")):
        answer = await two.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": two.buyer.sign(wrong), **headers})
        assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID")
        assert [entry["network"] for entry in answer.json()["accepts"]] == [network]
    assert two.target.requests == []


async def test_a_network_that_the_gate_is_not_paid_on_is_named_as_such(two: TwoNetworks) -> None:
    gate = await two.gate()
    plain = await two.gate(accepts=[])
    for where, named in ((gate, "solana-devnet"), (gate, "polygon"), (gate, ""), (plain, "base")):
        answer = await two.asked(where, named)
        assert (answer.status, answer.error_code) == (400, "INVALID_NETWORK")
        assert answer.json()["error"]["details"]["supported"] == (
            ["base-sepolia", "base"] if where is gate else ["base-sepolia"]
        )
    on_base = two.buyer.sign((await two.asked(gate, "base")).json())
    refused = await two.buyer.call(plain["accessUrl"], on_base)
    assert (refused.status, refused.error_code) == (402, "INVALID_NETWORK")
    elsewhere = json.loads(base64.b64decode(on_base))
    for network in ("base", "solana-devnet", "polygon"):
        payment = encode_header({**elsewhere, "network": network})
        for where, names in ((gate, "base-sepolia, base"), (plain, "base-sepolia")):
            if where is gate and network == "base":
                continue
            refused = await two.buyer.call(where["accessUrl"], payment)
            assert (refused.status, refused.error_code) == (402, "INVALID_NETWORK")
            details = refused.json()["error"]["details"]
            assert (details["expected"], details["found"]) == (names, network)


async def test_recipients_of_further_networks_are_stored_sealed(two: TwoNetworks) -> None:
    gate = await two.gate()
    payment = two.buyer.sign((await two.asked(gate, "base")).json())
    assert (await two.buyer.call(gate["accessUrl"], payment)).status == 200
    with beside(two.database) as database:
        for table in ("paygates", "paygate_versions", "purchases"):
            rows = str(database.execute(f"SELECT * FROM {table}").fetchall()).lower()  # noqa: S608 - names of ours
            assert BASE_PAYEE[2:] not in rows


async def test_a_changed_recipient_of_a_further_network_is_in_force_at_once_and_the_former_price_is_per_network(
    two: TwoNetworks,
) -> None:
    gate = await two.gate()
    on_base, on_sepolia = [two.buyer.sign((await two.asked(gate, name)).json()) for name in ("base", "base-sepolia")]
    await two.update(gate, price="0.5", accepts=[{"network": "base", "paymentAddress": "0x" + "73" * 20}])
    refused = await two.buyer.call(gate["accessUrl"], on_base)
    assert (refused.status, refused.error_code) == (402, "PAYMENT_INVALID")
    assert (await two.buyer.call(gate["accessUrl"], on_sepolia)).status == 200  # shown less than two minutes ago
    await two.update(gate, accepts=[])
    gone = await two.buyer.call(gate["accessUrl"], on_base)
    assert (gone.status, gone.error_code) == (402, "INVALID_NETWORK")


async def test_a_network_that_is_not_enabled_here_is_refused(two: TwoNetworks) -> None:
    body = {"price": "0.01", "targetUrl": two.target.url, **BOTH}
    body["accepts"] = [{"network": "solana-devnet", "paymentAddress": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"}]
    answer = await two.buyer.ask("POST", two.url + "/api/v1/paygates", body=body)
    assert (answer.status, answer.error_code) == (400, "INVALID_NETWORK")
