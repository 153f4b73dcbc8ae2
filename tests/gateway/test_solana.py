"""A gate that is paid on Solana, from its creation to its credits (contract 3.1, 4.1 to 4.3; spec 2.3, 2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest_asyncio
from solders.keypair import Keypair

from tests.core.solana_payments import OTHER, compute_limit, compute_price, lighthouse
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket, header_of, solana_market
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.fields import Recipient
from tollkeeper.core.solana.rules import SolanaAsset
from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.stack import Options
from tollkeeper.sandbox.wallets import derive_solana_wallet, derive_wallets

EVM_OWNER = checksum_address(derive_wallets().owner.address)
MINT = NETWORKS[NETWORK].usdc.address


@pytest_asyncio.fixture
async def market(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SolanaMarket]:
    async with solana_market(target, Options(data_dir=tmp_path)) as running:
        yield running


@asynccontextmanager
async def silent_node() -> AsyncIterator[str]:
    """A node that takes a connection and says nothing."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()
        await writer.wait_closed()
        left.set()

    left = asyncio.Event()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await left.wait()


def refusal(answer: Answer) -> dict[str, Any]:
    """The error of a refused payment."""
    body = answer.json()
    assert (answer.status, body["error"]["type"]) == (402, "payment"), answer.body
    error: dict[str, Any] = body["error"]
    return error


async def test_a_call_is_bought_on_solana_and_its_credits_are_counted_down(market: SolanaMarket) -> None:
    gate = await market.gate(credits=2)
    assert (gate["network"], gate["paymentAddress"]) == (NETWORK, market.owner)
    wanted = await market.requirements(gate)
    assert (wanted["scheme"], wanted["network"], wanted["asset"]) == ("exact", NETWORK, MINT)
    assert (wanted["maxAmountRequired"], wanted["payTo"]) == ("10000", market.owner)
    fee_payers = [one.address for one in market.wallets.fee_payers]
    assert list(wanted["extra"]) == ["feePayer"]
    assert wanted["extra"]["feePayer"] in fee_payers
    buyer, had = str(market.wallet.pubkey()), await market.balance(market.owner)
    payment = await market.payment(wanted)
    bought, again, spent = [await market.pay(gate, payment) for _ in range(3)]
    assert (bought.status, again.status, spent.status) == (200, 200, 402), spent.body
    receipt = bought.receipt
    assert receipt is not None
    assert (receipt["success"], receipt["network"], receipt["payer"]) == (True, NETWORK, buyer)
    assert receipt["amount"] == "10000"
    statuses = await market.node("getSignatureStatuses", [receipt["transaction"]])
    assert statuses["value"][0]["err"] is None
    assert [one.headers["x-credits-remaining"] for one in (bought, again)] == ["1", "0"]
    assert await market.balance(market.owner) == had + 10_000
    assert [one.header("x-payer") for one in market.target.requests] == [buyer, buyer]
    assert spent.json()["errorDetail"]["code"] == "CREDITS_EXHAUSTED"


async def test_the_facilitators_record_shows_the_purchase(market: SolanaMarket) -> None:
    gate = await market.gate(title="On Solana")
    bought = await market.pay(gate, await market.payment(await market.requirements(gate)))
    assert bought.status == 200
    wallet = str(market.wallet.pubkey())
    message_url = f"{market.url}/api/v1/auth/message?walletAddress={wallet}"
    message = (await market.buyer.ask("GET", message_url)).json()["message"]
    login = {"message": message, "signature": str(market.wallet.sign_message(message.encode()))}
    session = await market.buyer.ask("POST", f"{market.url}/api/v1/auth/login", body=login)
    headers = {"Authorization": f"Bearer {session.json()['accessToken']}"}
    url = f"{market.url}/hub/api/v1/history?limit=10&offset=0&network={NETWORK}"
    (item,) = (await market.buyer.ask("GET", url, headers=headers)).json()["history"]
    assert (item["status"], item["network"], item["chainId"], item["signerAddress"]) == (
        "success",
        NETWORK,
        None,
        wallet,
    )
    assert item["purchaseData"]["slug"] == gate["slug"]


async def test_who_is_paid_on_solana_need_not_name_the_network(market: SolanaMarket) -> None:
    """The specification's create has no field for it; the sandbox's default network is another family's."""
    body = {"targetUrl": market.target.url, "price": "0.01"}
    url, paygates = market.url, f"{market.url}/api/v1/paygates"
    named = (await market.buyer.ask("POST", paygates, body={**body, "paymentAddress": market.owner})).json()
    assert (named["network"], named["paymentAddress"]) == (NETWORK, market.owner)
    wallet = str(market.wallet.pubkey())
    message = (await market.buyer.ask("GET", f"{url}/api/v1/auth/message?walletAddress={wallet}")).json()["message"]
    login = {"message": message, "signature": str(market.wallet.sign_message(message.encode()))}
    token = (await market.buyer.ask("POST", f"{url}/api/v1/auth/login", body=login)).json()["accessToken"]
    own = await market.buyer.ask("POST", paygates, body=body, headers={"Authorization": f"Bearer {token}"})
    assert (own.json()["network"], own.json()["paymentAddress"]) == (NETWORK, wallet)
    assert (await market.pay(named, await market.payment(await market.requirements(named)))).status == 200


async def test_exactly_the_price_is_taken(market: SolanaMarket) -> None:
    gate = await market.gate()
    wanted = await market.requirements(gate)
    for amount, code, reason in (
        (9_999, "INSUFFICIENT_AMOUNT", "invalid_exact_svm_payload_amount_insufficient"),
        (10_001, "PAYMENT_INVALID", "invalid_exact_svm_payload_transaction_amount_mismatch"),
    ):
        error = refusal(await market.pay(gate, await market.payment(wanted, amount=amount)))
        assert (error["code"], error["details"]["reason"]) == (code, reason)
        assert (error["details"]["expected"], error["details"]["found"]) == ("10000", str(amount))
    assert market.target.requests == []


async def test_another_recipient_mint_or_signature_is_refused_before_the_hub_is_asked(market: SolanaMarket) -> None:
    gate = await market.gate()
    wanted = await market.requirements(gate)
    stranger = str(OTHER.pubkey())
    drafted = await market.draft(wanted)
    for header, code in (
        (await market.payment(wanted, pay_to=stranger), "PAYMENT_INVALID"),
        (await market.payment(wanted, mint=stranger), "PAYMENT_INVALID"),
        (await market.payment(wanted, decimals=9), "PAYMENT_INVALID"),
        (header_of(type(drafted)(drafted.instructions, drafted.fee_payer, (), drafted.blockhash)), "INVALID_SIGNATURE"),
        (header_of(drafted, "solana-mainnet"), "INVALID_NETWORK"),
        (header_of(drafted, "base-sepolia"), "PAYMENT_INVALID"),
    ):
        assert refusal(await market.pay(gate, header))["code"] == code
    assert market.target.requests == []
    assert (await market.pay(gate, header_of(drafted))).status == 200


async def test_who_holds_too_little_is_told_what_is_missing(market: SolanaMarket) -> None:
    gate = await market.gate(price="2000")
    wanted = await market.requirements(gate)
    poor = replace(market, wallets=replace(market.wallets, buyer=derive_solana_wallet("poor")))
    for buyer, told in ((market, "does not hold what the payment moves"), (poor, "has no account of this token")):
        error = refusal(await market.pay(gate, await buyer.payment(wanted)))
        assert error["code"] == "INSUFFICIENT_FUNDS"
        assert f"the payer's wallet {told}: nothing was charged; fund it" in error["message"]


async def test_a_fee_payer_that_is_not_the_hubs_gets_nothing(market: SolanaMarket) -> None:
    gate = await market.gate()
    wanted = await market.requirements(gate)
    wanted["extra"] = {"feePayer": str(OTHER.pubkey())}
    error = refusal(await market.pay(gate, await market.payment(wanted)))
    assert error["details"]["reason"] == "fee_payer_not_managed_by_facilitator"
    assert error["message"].startswith("the payment names a fee payer that is none of the facilitator's")
    assert error["message"].endswith("nothing was charged; sign a new payment of what a new 402 asks for")


async def test_what_the_chain_or_the_fee_payer_would_not_take_is_told_in_words_with_the_details(
    market: SolanaMarket,
) -> None:
    gate = await market.gate()
    draft = await market.draft(await market.requirements(gate))
    limit, price, moved, note = draft.instructions
    guarded = lighthouse(market.wallet.pubkey())  # which this chain has no program for
    for instructions, told, found in (
        (
            (limit, price, moved, note, guarded),
            "the chain would not carry the payment out",
            "InvalidProgramForExecution",
        ),
        ((limit, compute_price(100_001), moved, note), "the payment's compute price is above", 100_001),
        ((compute_limit(400_001), price, moved, note), "the payment's compute limit is above", 400_001),
    ):
        error = refusal(await market.pay(gate, header_of(replace(draft, instructions=instructions))))
        assert error["message"].startswith(told)
        assert "nothing was charged" in error["message"]
        assert error["details"]["found"] == found


async def test_either_of_the_hubs_fee_payers_may_be_named(market: SolanaMarket) -> None:
    """A 402 of before the hub advertised another one is paid like every other."""
    gate = await market.gate()
    wanted = await market.requirements(gate)
    for one in market.wallets.fee_payers:
        wanted["extra"] = {"feePayer": one.address}
        assert (await market.pay(gate, await market.payment(wanted))).status == 200


async def test_one_payment_presented_many_times_at_once_is_one_purchase(market: SolanaMarket) -> None:
    gate = await market.gate(credits=3)
    had = await market.balance(market.owner)
    payment = await market.payment(await market.requirements(gate))
    answers = await asyncio.gather(*(market.pay(gate, payment) for _ in range(20)))
    assert sorted(one.status for one in answers) == [200] * 3 + [402] * 17
    assert await market.balance(market.owner) == had + 10_000


async def test_two_honest_payments_of_the_same_bytes_are_charged_once_and_the_second_is_told_to_sign_again(
    market: SolanaMarket,
) -> None:
    first, second = await market.gate(), await market.gate()
    had = await market.balance(market.owner)
    wanted = await market.requirements(first)
    same = await market.draft(wanted, text=b"")
    header = header_of(same)
    assert (await market.pay(first, header)).status == 200
    used_up = (await market.pay(first, header)).json()
    assert used_up["errorDetail"]["code"] == "CREDITS_EXHAUSTED"
    assert used_up["errorDetail"]["message"].endswith("sign a new payment")
    assert "one transaction, which is charged once" in used_up["errorDetail"]["message"]
    elsewhere = refusal(await market.pay(second, header))
    assert elsewhere["code"] == "NONCE_ALREADY_USED"
    assert elsewhere["details"]["reason"] == "duplicate_settlement"
    assert elsewhere["message"].endswith("sign a new payment")
    assert await market.balance(market.owner) == had + 10_000
    assert (await market.pay(second, await market.payment(wanted))).status == 200


async def test_a_seller_without_a_token_account_is_named_and_nothing_is_charged(market: SolanaMarket) -> None:
    gate = await market.gate(paymentAddress=str(Keypair().pubkey()))
    assert len(gate["warnings"]) == 1
    buyer = str(market.wallet.pubkey())
    had = await market.balance(buyer)
    error = refusal(await market.pay(gate, await market.payment(await market.requirements(gate))))
    assert error["details"]["reason"] == "invalid_exact_svm_payload_transaction_receiver_ata_not_found"
    assert "no token account" in error["message"]
    assert await market.balance(buyer) == had


async def test_the_owner_is_told_when_a_gate_is_saved_whose_wallet_has_no_token_account(market: SolanaMarket) -> None:
    assert "warnings" not in await market.gate()
    wallet = str(Keypair().pubkey())
    gate = await market.gate(
        network="base-sepolia",
        paymentAddress=EVM_OWNER,
        accepts=[{"network": NETWORK, "paymentAddress": wallet}],
    )
    (warning,) = gate["warnings"]
    assert (warning["field"], warning["network"]) == ("accepts", NETWORK)
    assert warning["message"].startswith(f"{wallet} has no USDC token account on {NETWORK} yet")
    url = f"{market.url}/api/v1/paygates/{gate['id']}"
    renamed = await market.buyer.ask("PUT", url, body={"title": "Weather"})
    assert (renamed.status, renamed.json()["warnings"]) == (200, gate["warnings"])
    assert "warnings" not in (await market.buyer.ask("GET", url)).json()
    await market.node("sandbox_openAccount", wallet)
    saved = await market.buyer.ask("PUT", url, body={"title": "Weather again"})
    assert "warnings" not in saved.json()


async def test_a_create_with_a_key_is_answered_again_with_its_warnings(market: SolanaMarket) -> None:
    body = {
        "targetUrl": market.target.url,
        "price": "0.01",
        "network": NETWORK,
        "paymentAddress": str(Keypair().pubkey()),
    }
    answers = [
        await market.buyer.ask(
            "POST", f"{market.url}/api/v1/paygates", body=body, headers={"Idempotency-Key": "a-key-of-one-create"}
        )
        for _ in range(2)
    ]
    first, again = [answer.json() for answer in answers]
    assert (first["id"], first["warnings"]) == (again["id"], again["warnings"])


async def test_a_node_that_is_silent_or_another_networks_neither_warns_nor_fails_a_save() -> None:
    recipients = (Recipient(NETWORK, str(Keypair().pubkey())),)
    assets = {NETWORK: SolanaAsset(NETWORKS[NETWORK], MINT)}
    async with SolanaNode() as node, SolanaNode(network=NETWORKS["solana-mainnet"]) as other, silent_node() as silent:
        for url, count in ((node.url, 1), (other.url, 0), (silent, 0), ("http://127.0.0.1:9", 0)):
            accounts = TokenAccounts({NETWORK: SolanaChain(SolanaConfig(NETWORKS[NETWORK], (url,)))})
            assert len(await accounts.warnings(recipients, assets)) == count
            assert await accounts.warnings(recipients, {}) == []
            await accounts.aclose()
    assert await TokenAccounts({}).warnings(recipients, assets) == []


async def test_an_old_blockhash_is_expired(market: SolanaMarket) -> None:
    gate = await market.gate()
    payment = await market.payment(await market.requirements(gate))
    await market.node("sandbox_advance")
    assert refusal(await market.pay(gate, payment))["code"] == "PAYMENT_EXPIRED"


async def test_a_gate_takes_both_families_and_shows_one_at_a_time(market: SolanaMarket) -> None:
    evm = EVM_OWNER
    accepts = [{"network": NETWORK, "paymentAddress": market.owner}]
    gate = await market.gate(network="base-sepolia", paymentAddress=evm, accepts=accepts)
    assert gate["accepts"] == accepts
    own, other = await market.requirements(gate), await market.requirements(gate, X_Payment_Network=NETWORK)
    assert [one["network"] for one in (own, other)] == ["base-sepolia", NETWORK]
    on_evm = await market.pay(gate, market.buyer.sign({"accepts": [own]}))
    on_solana = await market.pay(gate, await market.payment(other))
    assert (on_evm.status, on_solana.status) == (200, 200)
    assert [one.receipt and one.receipt["network"] for one in (on_evm, on_solana)] == ["base-sepolia", NETWORK]


async def test_the_credit_token_of_a_solana_purchase_spends_its_credits(market: SolanaMarket) -> None:
    gate = await market.gate(credits=2, creditBinding="token")
    bought = await market.pay(gate, await market.payment(await market.requirements(gate)))
    token = bought.headers["x-credit-token"]
    again = await market.buyer.ask("GET", gate["accessUrl"], headers={"X-Credit-Token": token})
    assert (bought.status, again.status) == (200, 200)


async def test_addresses_of_another_family_are_refused(market: SolanaMarket) -> None:
    for fields, code in (
        ({"paymentAddress": EVM_OWNER}, "INVALID_ADDRESS"),
        ({"paymentAddress": MINT}, "INVALID_ADDRESS"),
        ({"paymentAddress": market.wallets.fee_payers[0].address}, "INVALID_ADDRESS"),
        ({"network": "base-sepolia"}, "INVALID_ADDRESS"),
        ({"network": "solana-mainnet"}, "INVALID_NETWORK"),
    ):
        answer = await market.create(**fields)
        assert (answer.status, answer.error_code) == (400, code), answer.body
