"""Buyers that are contracts, and strangers that know a payment's name but not its signature (contract 4.2, 4.3)."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.counterfactual import FACTORY, FutureWallet, plant_factory
from tests.chains.rpc_client import RpcClient
from tests.gateway.composed import composed, settings_for
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.fixture
def smart_wallet(market: Market) -> str:
    """A funded ERC-1271 wallet whose owner is the buyer."""
    wallets = derive_wallets()
    with closing(RpcClient(market.stack.rpc_url)) as rpc:
        chain = ChainUnderTest("sandbox", rpc, wallets, "USD Coin")
        wallet = chain.plant_smart_wallet(wallets.buyer.address)
        chain.mint(wallet, 1_000_000)
    return wallet


def signed_otherwise(payment: str, signature: str) -> str:
    """The same payment with another signature."""
    body = json.loads(base64.b64decode(payment))
    body["payload"]["signature"] = signature
    return base64.b64encode(json.dumps(body).encode()).decode()


async def test_a_contract_wallet_buys_and_spends_what_it_bought(market: Market, smart_wallet: str) -> None:
    gate = await market.gate(credits=2)
    payment = await market.payment(gate, lambda plain: replace(plain, payer=smart_wallet))
    answers = [await market.pay(gate, payment) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    assert answers[2].json()["errorDetail"]["code"] == "CREDITS_EXHAUSTED"
    assert len(market.target.requests) == 2


@pytest.mark.parametrize("signature", ["0x" + "00" * 65, "0x12", "0x" + "11" * 96])
async def test_a_signature_that_the_wallet_refuses_buys_nothing(
    market: Market, smart_wallet: str, signature: str
) -> None:
    gate = await market.gate()
    honest = await market.payment(gate, lambda plain: replace(plain, payer=smart_wallet))
    refused = await market.pay(gate, signed_otherwise(honest, signature))
    assert (refused.status, refused.json()["error"]["code"]) == (402, "INVALID_SIGNATURE")
    assert market.target.requests == []
    assert (await market.pay(gate, honest)).status == 200


async def test_who_knows_only_a_payment_s_name_spends_and_spoils_nothing(market: Market) -> None:
    gate = await market.gate(credits=3)
    payment = await market.payment(gate)
    forged = signed_otherwise(payment, "0x" + "22" * 65)
    answers = await asyncio.gather(*(market.pay(gate, which) for which in [forged] * 5 + [payment] + [forged] * 5))
    assert answers.pop(5).status == 200
    # The second where the payment had bought by then: a header that did not buy is worth nothing.
    assert {answer.error_code for answer in answers} <= {"INVALID_SIGNATURE", "CREDIT_TOKEN_REQUIRED"}
    assert (await market.pay(gate, forged)).error_code == "CREDIT_TOKEN_REQUIRED"
    assert [(await market.pay(gate, payment)).status for _ in range(3)] == [200, 200, 402]
    assert len(market.target.requests) == 3


async def credits_shown(market: Market, **headers: str) -> list[dict[str, Any]]:
    """What is told of held credits."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await market.ask("GET", "/api/v1/credits", headers=named)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


@pytest.mark.parametrize("signature", ["0x" + "22" * 65, "0x12", "0x" + "11" * 96])
async def test_who_knows_only_a_payment_s_name_is_told_nothing_of_its_credits(
    market: Market, smart_wallet: str, signature: str
) -> None:
    """A payment's name is public: it stands on the chain. Its answer is that of a payment which bought nothing."""
    gate = await market.gate(credits=3)
    bearer = f"Bearer {await market.buyer.login(market.stack.gateway_url)}"
    for payer in (market.buyer.wallet.address, smart_wallet):
        payment = await market.payment(gate, partial(replace, payer=payer))
        forged = signed_otherwise(payment, signature)
        before = await credits_shown(market, X_Payment=forged)
        assert (await market.pay(gate, payment)).status == 200
        assert await credits_shown(market, X_Payment=forged) == before == []
        (told,) = await credits_shown(market, X_Payment=payment)
        assert (told["granted"], told["remaining"]) == (3, 2)
        is_own = payer == market.buyer.wallet.address
        assert len(await credits_shown(market, X_Payment=forged, Authorization=bearer)) == is_own


@pytest.mark.parametrize("listed", [True, False])
async def test_a_wallet_buys_before_it_is_deployed_where_the_operator_lists_its_factory(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    listed: bool,  # noqa: FBT001
) -> None:
    chain = embedded_chain
    plant_factory(chain)
    wallet = FutureWallet(chain)
    chain.mint(wallet.address, 100_000)
    networks = settings_for(chain.url, tmp_path / "unused.db").networks
    if listed:
        networks = {name: replace(network, wallet_factories=(FACTORY,)) for name, network in networks.items()}
    async with (
        composed(chain.url, tmp_path / "books.db", networks=networks) as url,
        Buyer(chain.wallets.buyer) as buyer,
    ):
        body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": chain.wallets.owner.address, "credits": 2}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        challenge = (await buyer.ask("GET", gate["accessUrl"])).json()
        header = buyer.sign(challenge, lambda plain: replace(plain, payer=wallet.address))
        signed = decode_payment_header(header.encode())
        assert isinstance(signed.payload, EvmPayload)
        wrapped = wallet.sign(signed.payload.authorization)
        payment = signed_otherwise(header, "0x" + wrapped.hex())
        answers = [await buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": payment}) for _ in range(3)]
    if listed:
        assert [answer.status for answer in answers] == [200, 200, 402]
        assert (wallet.is_deployed, chain.balance(wallet.address)) == (True, 90_000)
    else:
        assert [answer.status for answer in answers] == [402] * 3
        assert answers[0].json()["error"]["details"]["reason"] == "eip6492_factory_not_allowed"
        assert (wallet.is_deployed, chain.balance(wallet.address)) == (False, 100_000)
