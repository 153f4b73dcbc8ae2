"""The direct transfer on Solana: the 402 asks for the body's own transfer, which is made once (contract 8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest_asyncio
from solders.keypair import Keypair

from tests.core.solana_payments import Draft
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import HostileHub, lose_answer, run_hostile_hub
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket, header_of, mainnet_market, solana_market
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.programs import associated_token_account
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.stack import Options
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets, fee_payers_of
from tollkeeper.settings.model import GasCaps, NetworkSettings, Role

PATH = "/api/v1/transfer"
FEE_LAMPORTS = 10_001  # of a usual transaction
MINT = NETWORKS[NETWORK].usdc.address


@pytest_asyncio.fixture
async def market(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SolanaMarket]:
    async with solana_market(target, Options(data_dir=tmp_path)) as running:
        yield running


async def drafted(market: SolanaMarket, amount: int = 25_000, pay_to: str = "", **changes: Any) -> Draft:
    """A transfer of the buyer's, to the owner unless somebody else is named."""
    return await drafted_at(f"{market.url}/hub", market, amount, pay_to, **changes)


async def drafted_at(
    hub_url: str, market: SolanaMarket, amount: int = 25_000, pay_to: str = "", **changes: Any
) -> Draft:
    """The same where the hub is elsewhere."""
    kinds = (await market.buyer.ask("GET", f"{hub_url}/supported")).json()["kinds"]
    fee_payer = next(kind["extra"] for kind in kinds if kind["network"] == NETWORKS[market.network].v1_name)
    wanted = {
        "payTo": pay_to or market.owner,
        "asset": NETWORKS[market.network].usdc.address,
        "maxAmountRequired": str(amount),
        "extra": fee_payer,
    }
    return await market.draft(wanted, **changes)


async def ask(market: SolanaMarket, draft: Draft, paid: str | None = None, **fields: Any) -> Answer:
    """The body's transfer, with a payment or without one; a field of None is left out."""
    body = {"network": market.network, "transaction": draft.payload().transaction, **fields}
    body = {name: value for name, value in body.items() if value is not None}
    headers = {} if paid is None else {"X-Payment": paid}
    return await market.buyer.ask("POST", market.url + PATH, body=body, headers=headers)


async def test_the_402_asks_for_the_transfer_of_the_body_and_a_fresh_payment_for_it_is_made(
    market: SolanaMarket,
) -> None:
    """The account's owner is asked of a node; an official client answers the 402 with another transaction."""
    described, had = await drafted(market), await market.balance(market.owner)
    asked = await ask(market, described)
    assert asked.status == 402, asked.body
    (requirements,) = asked.json()["accepts"]
    assert (requirements["payTo"], requirements["maxAmountRequired"]) == (market.owner, "25000")
    assert (requirements["network"], requirements["asset"]) == (NETWORK, MINT)
    assert requirements["extra"]["feePayer"] in {one.address for one in market.wallets.fee_payers}
    paid = await market.payment(requirements)
    done = await ask(market, described, paid)
    assert (done.status, done.json()["success"], done.json()["amount"]) == (200, True, "25000"), done.body
    receipt = done.receipt
    assert receipt is not None
    assert (receipt["transaction"], receipt["payer"]) == (done.json()["transaction"], str(market.wallet.pubkey()))
    assert await market.balance(market.owner) == had + 25_000
    own = await ask(market, described, header_of(described))
    assert own.status == 200, "the body's own was left unused, and is another transfer"
    assert await market.balance(market.owner) == had + 50_000


async def test_many_requests_with_one_payment_move_it_once(market: SolanaMarket) -> None:
    draft, had = await drafted(market), await market.balance(market.owner)
    answers = await asyncio.gather(*(ask(market, draft, header_of(draft)) for _ in range(20)))
    assert {(answer.status, answer.json()["success"]) for answer in answers} == {(200, True)}
    assert len({answer.json()["transaction"] for answer in answers}) == 1
    assert await market.balance(market.owner) == had + 25_000


async def test_any_wallet_may_be_paid_and_is_named_by_the_body_or_by_the_node(market: SolanaMarket) -> None:
    wallet = str(Keypair().pubkey())
    draft = await drafted(market, pay_to=wallet)
    nobody = await ask(market, draft)
    assert (nobody.status, nobody.error_code) == (400, "PAYMENT_INVALID")
    reason = "invalid_exact_svm_payload_transaction_receiver_ata_not_found"
    assert nobody.json()["error"]["details"]["reason"] == reason
    named = await ask(market, draft, header_of(draft), recipient=wallet)
    assert (named.status, named.json()["error"]["details"]["reason"]) == (400, reason)
    await market.node("sandbox_openAccount", wallet)
    for fields in ({}, {"recipient": wallet, "amount": "25000"}):
        fresh = await drafted(market, pay_to=wallet)
        assert (await ask(market, fresh, header_of(fresh), **fields)).status == 200
    assert await market.balance(wallet) == 50_000


async def test_a_payment_that_is_another_transfer_is_refused_and_unused(market: SolanaMarket) -> None:
    stranger = market.wallets.second_buyer
    had = [await market.balance(one) for one in (market.owner, stranger.address)]
    described = await drafted(market)
    other = replace(market, wallets=replace(market.wallets, buyer=stranger))
    for header in (
        header_of(await drafted(market, 25_001)),
        header_of(await drafted(market, pay_to=stranger.address)),
        header_of(await drafted(other)),
        header_of(described, "solana-mainnet"),
        header_of(described, "base-sepolia"),
        header_of(described, "nowhere"),
        "!",
    ):
        answer = await ask(market, described, header)
        refused = (answer.status, answer.error_code, answer.json()["error"]["type"])
        assert refused == (400, "PAYMENT_INVALID", "payment")
    assert [await market.balance(one) for one in (market.owner, stranger.address)] == had


async def test_refusals_are_bad_requests_with_the_code_of_their_cause(market: SolanaMarket) -> None:
    good, rich = await drafted(market), await drafted(market, 10**15)
    unsigned = Draft(good.instructions, good.fee_payer, (), good.blockhash)
    theirs = await drafted(market)
    strange_fee_payer = replace(theirs, fee_payer=Keypair().pubkey())
    elsewhere = {"network": "base-sepolia"}
    cases = [
        (await ask(market, unsigned), "INVALID_SIGNATURE", "payment"),
        (await ask(market, rich, header_of(rich)), "INSUFFICIENT_FUNDS", "payment"),
        (await ask(market, strange_fee_payer, header_of(strange_fee_payer)), "PAYMENT_INVALID", "payment"),
        (await ask(market, await drafted(market, 0)), "INVALID_AMOUNT", "validation"),
        (await ask(market, good, recipient=str(Keypair().pubkey())), "PAYMENT_INVALID", "payment"),
        (await ask(market, good, recipient="0x" + "71" * 20), "INVALID_ADDRESS", "validation"),
        (await ask(market, good, amount="24999"), "PAYMENT_INVALID", "payment"),
        (await ask(market, good, amount="lots"), "INVALID_AMOUNT", "validation"),
        (await ask(market, good, transaction="AQ=="), "PAYMENT_INVALID", "payment"),
        (await ask(market, good, transaction=None), "MISSING_PARAMETER", "validation"),
        (await ask(market, good, **elsewhere), "PAYMENT_INVALID", "payment"),
        (await ask(market, good, network="solana-mainnet"), "INVALID_NETWORK", "validation"),
    ]
    found = [(answer.status, answer.error_code, answer.json()["error"]["type"]) for answer, _, _ in cases]
    assert found == [(400, code, kind) for _, code, kind in cases]
    late = await drafted(market)
    await market.node("sandbox_advance")
    assert (await ask(market, late, header_of(late))).error_code == "PAYMENT_EXPIRED"


async def test_a_recipient_who_is_not_the_one_signed_for_is_refused_with_the_account_that_would_be_his(
    market: SolanaMarket,
) -> None:
    owner = market.wallets.second_buyer.address
    named = await ask(market, await drafted(market), recipient=owner)
    reason = "invalid_exact_svm_payload_transaction_transfer_to_incorrect_ata"
    assert (named.status, named.json()["error"]["details"]["reason"]) == (400, reason)
    assert named.json()["error"]["details"]["expected"] == associated_token_account(owner, MINT)


async def test_the_main_network_goes_by_the_name_that_clients_know(tmp_path: Path, target: RecordingTarget) -> None:
    async with mainnet_market(target, tmp_path) as market:
        draft = await drafted(market)
        (requirements,) = (await ask(market, draft)).json()["accepts"]
        assert requirements["network"] == "solana"
        assert (await ask(market, draft, header_of(draft, "solana"), network="solana")).status == 200


async def test_transfers_leave_half_of_the_hours_fees_to_sales(tmp_path: Path, target: RecordingTarget) -> None:
    """Anybody may ask for them, as often as he likes: that a gateway asks the hub for them makes them no sales."""
    evm = derive_wallets()
    wallets = replace(derive_solana_wallets(), fee_payers=fee_payers_of(evm.relayer.private_key))
    async with SolanaNode(wallets=wallets) as node, Buyer(evm.buyer) as buyer:
        settings: dict[str, Any] = {
            "networks": {NETWORK: NetworkSettings(NETWORKS[NETWORK], (node.url,))},
            "default_network": NETWORKS[NETWORK],
            "gas": GasCaps(budget_per_hour_lamports=12 * FEE_LAMPORTS),
        }
        async with composed("", tmp_path / "together.db", **settings) as url:
            market = SolanaMarket(url, node.url, wallets, target, buyer)
            # One tenant alone gets a third (`core.shares`): of the half that is not kept for sales, then of the rest.
            for expected in (*[200] * 2, 503):
                draft = await drafted(market)
                assert (await ask(market, draft, header_of(draft))).status == expected
            gate = await market.gate()
            for expected in (*[200] * 3, 503):
                bought = await market.pay(gate, await market.payment(await market.requirements(gate)))
                assert bought.status == expected


async def test_a_gateway_without_a_node_behind_a_hub_that_loses_answers(
    tmp_path: Path, target: RecordingTarget
) -> None:
    """The body must name the wallet then; a payment of unknown outcome is asked for again and made once."""
    evm = derive_wallets()
    wallets = replace(derive_solana_wallets(), fee_payers=fee_payers_of(evm.relayer.private_key))
    network = NETWORKS[NETWORK]
    async with (
        SolanaNode(wallets=wallets) as node,
        composed(
            "", tmp_path / "hub.db", role=Role.HUB, networks={NETWORK: NetworkSettings(network, (node.url,))}
        ) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(evm.buyer) as buyer,
    ):
        apart: dict[str, Any] = {
            "role": Role.GATEWAY,
            "hub_url": hostile.url,
            "networks": {NETWORK: NetworkSettings(network, ())},
            "default_network": network,
        }
        async with composed("", tmp_path / "gateway.db", **apart) as url:
            market = SolanaMarket(url, node.url, wallets, target, buyer)
            named = {"recipient": market.owner}
            draft = await drafted_at(hostile.url, market)
            missing = await ask(market, draft)
            assert (missing.status, missing.error_code) == (400, "MISSING_PARAMETER")
            assert (await ask(market, draft, **named)).json()["x402"]["address"] == market.owner
            hostile.settling = lose_answer
            lost = await ask(market, draft, header_of(draft), **named)
            assert (lost.status, lost.error_code) == (503, "SETTLEMENT_PENDING")
            hostile.settling = HostileHub().settling
            for _ in range(2):
                assert (await ask(market, draft, header_of(draft), **named)).status == 200
            assert await market.balance(market.owner) == 25_000
            plain = (await buyer.ask("GET", hostile.url + "/supported")).json()
        hostile.supported = json.dumps({name: value for name, value in plain.items() if name != "apiVersion"})
        async with composed("", tmp_path / "foreign.db", **apart) as url:
            foreign = replace(market, url=url)
            draft = await drafted_at(hostile.url, market)
            done = await ask(foreign, draft, header_of(draft), **named)
            assert (done.status, done.json()["payer"]) == (200, str(market.wallet.pubkey())), done.body
            assert (await ask(foreign, draft, header_of(draft), **named)).error_code == "NONCE_ALREADY_USED"
            assert await market.balance(market.owner) == 50_000
