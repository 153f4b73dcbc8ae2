"""The official facilitators of today, unmodified, as this gateway's `hub_url` (contract 4.4, 10.2).

They advertise no `confirm`, name no token and know no keys; an official client pays all the same, once. The same on
both families. Python's names both versions of x402, npm's version 2 alone: both are asked in version 2, whatever a
buyer shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.references.running import official_facilitator, official_solana_facilitator
from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.fixtures_chain import run_anvil_with_fiat_token
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.interop.official import FACILITATOR_CLIENTS_ON_SOLANA, sign
from tests.interop.servers import EVM, SOLANA, official_facilitator_of_version_2
from tests.node_thread import run_in_thread
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.version1 import encode_header
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets
from tollkeeper.settings.model import NetworkSettings, Role

PAYEE = "0x" + "77" * 20


@pytest.fixture(scope="module")
def anvil() -> Iterator[ChainUnderTest]:
    with run_anvil_with_fiat_token(derive_wallets()) as chain:
        yield chain


@pytest.fixture(scope="module", params=["x402-2.25.0", "@x402/core-2.27.0"])
def facilitator(request: pytest.FixtureRequest, anvil: ChainUnderTest) -> Iterator[str]:
    key = anvil.wallets.relayer.private_key_hex
    if request.param == "x402-2.25.0":
        with official_facilitator(anvil.url, key) as official:
            yield official.url
    else:
        with official_facilitator_of_version_2(anvil.url, key, EVM) as url:
            yield url


@pytest.fixture
async def gateway(tmp_path: Path, anvil: ChainUnderTest, facilitator: str) -> AsyncIterator[str]:
    async with composed(anvil.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=facilitator) as url:
        yield url
    assert_books_agree(tmp_path)


@pytest.fixture
async def recording() -> AsyncIterator[RecordingTarget]:
    async with recording_target() as running:
        yield running


async def paid_gate(buyer: Buyer, gateway: str, target: str, **fields: object) -> dict[str, Any]:
    body = {"price": "0.01", "targetUrl": target, "paymentAddress": PAYEE, **fields}
    answer = await buyer.ask("POST", gateway + "/api/v1/paygates", body=body)
    assert answer.status == 201, answer.body
    gate: dict[str, Any] = answer.json()
    return gate


@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed on the chain", "trusted"])
async def test_an_official_payment_is_settled_once_and_serves_what_it_bought(
    gateway: str, anvil: ChainUnderTest, recording: RecordingTarget, trust: dict[str, bool]
) -> None:
    async with Buyer(derive_wallets().buyer) as buyer:
        gate = await paid_gate(buyer, gateway, recording.url, credits=2, **trust)
        challenge = (await buyer.ask("GET", gate["accessUrl"])).json()
        assert (
            challenge["accepts"][0]["extra"]["name"] == "USDC"
        )  # the token's own, which the facilitator does not tell
        (payload,) = await asyncio.to_thread(
            sign, "x402-2.25.0", challenge["accepts"][0], [buyer.wallet.private_key_hex]
        )
        payment = encode_header(payload)
        before = anvil.balance(PAYEE)
        answers = [await buyer.call(gate["accessUrl"], payment) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 402]
        assert answers[2].error_code == "CREDITS_EXHAUSTED"
        assert anvil.balance(PAYEE) - before == 10_000
        assert len(recording.requests) == 2


@pytest.mark.parametrize("facilitator", ["x402-2.25.0"], indirect=True)
async def test_of_many_payments_at_once_those_that_were_carried_out_are_served(
    gateway: str, anvil: ChainUnderTest, recording: RecordingTarget
) -> None:
    """It signs with one account and loses count under load: what it then says is not the last word."""
    async with Buyer(derive_wallets().buyer) as buyer:
        gate = await paid_gate(buyer, gateway, recording.url)
        challenge = (await buyer.ask("GET", gate["accessUrl"])).json()
        before = anvil.balance(PAYEE)
        open_payments = [buyer.sign(challenge) for _ in range(8)]
        served = 0
        async with asyncio.timeout(90):
            for _ in range(3):
                answers = await asyncio.gather(*(buyer.call(gate["accessUrl"], one) for one in open_payments))
                served += sum(answer.status == 200 for answer in answers)
                undecided = [answer.status == 503 for answer in answers]
                assert {answer.status for answer in answers} <= {200, 402, 503}
                assert not any("accepts" in answer.json() for answer in answers if answer.status == 503)
                open_payments = [one for one, is_open in zip(open_payments, undecided, strict=True) if is_open]
                if not open_payments:
                    break
        assert served > 0
        assert anvil.balance(PAYEE) - before == 10_000 * served
        assert len(recording.requests) == served


@pytest.fixture(scope="module")
def solana_node() -> Iterator[SolanaNode]:
    with run_in_thread(SolanaNode()) as node:
        yield node


@pytest.fixture(scope="module", params=["x402-2.25.0", "@x402/core-2.27.0"])
def solana_facilitator(request: pytest.FixtureRequest, solana_node: SolanaNode) -> Iterator[str]:
    key = derive_solana_wallets().fee_payers[1].secret_key
    if request.param == "x402-2.25.0":
        with official_solana_facilitator(solana_node.url, key) as running:
            yield running.url
    else:
        with official_facilitator_of_version_2(solana_node.url, key, SOLANA) as url:
            yield url


@pytest.fixture
async def gateway_on_solana(tmp_path: Path, solana_node: SolanaNode, solana_facilitator: str) -> AsyncIterator[str]:
    network = NETWORKS["solana-devnet"]
    settings: dict[str, Any] = {
        "networks": {network.name: NetworkSettings(network, (solana_node.url,))},
        "default_network": network,
        "default_payment_address": derive_solana_wallets().owner.address,
    }
    database = tmp_path / "gateway.db"
    async with composed("", database, role=Role.GATEWAY, hub_url=solana_facilitator, **settings) as url:
        yield url
    assert_books_agree(tmp_path)


@pytest.mark.parametrize("client", ["x402-2.25.0", "npm-x402-1.2.0"])
@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed on the chain", "trusted"])
async def test_an_official_payment_on_solana_is_settled_once_and_serves_what_it_bought(
    gateway_on_solana: str, solana_node: SolanaNode, recording: RecordingTarget, client: str, trust: dict[str, bool]
) -> None:
    wallets, chain = derive_solana_wallets(), solana_node.chain
    async with Buyer(derive_wallets().buyer) as buyer:
        pay_to = {"paymentAddress": wallets.owner.address}
        gate = await paid_gate(buyer, gateway_on_solana, recording.url, credits=2, **pay_to, **trust)
        assert "warnings" not in gate
        (wanted,) = (await buyer.ask("GET", gate["accessUrl"])).json()["accepts"]
        (payload,) = await asyncio.to_thread(
            sign,
            FACILITATOR_CLIENTS_ON_SOLANA[client],
            wanted,
            [wallets.buyer.secret_key],
            rpcUrl=solana_node.url,
        )
        account = chain.open_account(wallets.owner.address)
        before, had = chain.token_balance(account), len(chain.executed)
        answers = [await buyer.call(gate["accessUrl"], encode_header(payload)) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 402]
        assert answers[2].error_code == "CREDITS_EXHAUSTED"
        assert chain.token_balance(account) - before == 10_000
        assert len(chain.executed) == had + 1
        assert len(recording.requests) == 2
