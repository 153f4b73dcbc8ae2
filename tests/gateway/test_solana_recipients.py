"""Who is paid on Solana is a wallet: owners are told when they save a gate, buyers when they pay (contract 3.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.core.solana_payments import account_of
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket, solana_market
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.fields import Recipient
from tollkeeper.core.solana.rules import SolanaAsset
from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.stack import Options

MINT = NETWORKS[NETWORK].usdc.address
ASSETS = {NETWORK: SolanaAsset(NETWORKS[NETWORK], MINT)}
MEMO_OF_OLD = "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"  # a program that the chain has from the start
DERIVED = str(Pubkey.find_program_address([b"vault"], Pubkey.from_string(MEMO_OF_OLD))[0])


@pytest_asyncio.fixture
async def market(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SolanaMarket]:
    async with solana_market(target, Options(data_dir=tmp_path)) as running:
        yield running


async def test_a_token_account_in_a_wallets_place_is_refused_and_the_wallet_named(market: SolanaMarket) -> None:
    own = str(account_of(market.owner))
    refused = await market.create(paymentAddress=own)
    assert (refused.status, refused.error_code) == (400, "INVALID_ADDRESS")
    error = refused.json()["error"]
    assert error["details"] == {"field": "paymentAddress", "network": NETWORK}
    assert f"name the wallet that it belongs to, {market.owner}" in error["message"]
    beside = await market.create(
        network="base-sepolia",
        paymentAddress="0x" + "11" * 20,
        accepts=[{"network": NETWORK, "paymentAddress": own}],
    )
    assert (beside.error_code, beside.json()["error"]["details"]["field"]) == ("INVALID_ADDRESS", "accepts")


@pytest.mark.parametrize("address", [MEMO_OF_OLD, "1nc1nerator11111111111111111111111111111111"])
async def test_a_program_is_refused(market: SolanaMarket, address: str) -> None:
    assert (await market.create(paymentAddress=address)).error_code == "INVALID_ADDRESS"
    gate = await market.gate()
    url = f"{market.url}/api/v1/paygates/{gate['id']}"
    changed = await market.buyer.ask("PUT", url, body={"paymentAddress": address, "title": "Weather"})
    assert changed.error_code == "INVALID_ADDRESS"
    kept = (await market.buyer.ask("GET", url)).json()
    assert (kept["paymentAddress"], kept["title"]) == (market.owner, "")


async def test_an_address_without_a_key_is_saved_with_a_warning_and_paid_once_it_can_be(market: SolanaMarket) -> None:
    gate = await market.gate(paymentAddress=DERIVED)
    (warning,) = gate["warnings"]
    assert (warning["field"], warning["network"]) == ("paymentAddress", NETWORK)
    assert warning["message"].startswith(f"{DERIVED} is no wallet: it lies off the curve")
    assert warning["message"].endswith("nobody can pay this PayGate there: name a wallet")
    wanted = await market.requirements(gate)
    had = await market.balance(str(market.wallet.pubkey()))
    refused = await market.pay(gate, await market.payment(wanted))
    error = refused.json()["error"]
    assert (refused.status, error["code"]) == (402, "PAYMENT_INVALID")
    assert "is no wallet's (it lies off the curve" in error["message"]
    assert "nothing was charged" in error["message"]
    assert "naming a wallet" in error["message"]
    assert await market.balance(str(market.wallet.pubkey())) == had
    await market.node("sandbox_openAccount", DERIVED)
    url = f"{market.url}/api/v1/paygates/{gate['id']}"
    (warning,) = (await market.buyer.ask("PUT", url, body={"title": "Vault"})).json()["warnings"]
    assert warning["message"].endswith("only the program that derived it can spend from there")
    assert (await market.pay(gate, await market.payment(wanted))).status == 200


async def test_whose_token_account_was_signed_away_is_told_who_would_be_paid() -> None:
    """As by those who make a wallet sign a new authority for it. Buyers pay the account that belongs to the address."""
    async with SolanaNode() as node:
        wallet, thief = (str(Keypair().pubkey()) for _ in range(2))
        taken = node.chain.account(node.chain.open_account(thief))
        assert taken is not None
        node.chain._put(str(account_of(wallet)), bytes(taken.data))  # noqa: SLF001 - as its owner's signature leaves it
        asked = TokenAccounts({NETWORK: SolanaChain(SolanaConfig(NETWORKS[NETWORK], (node.url,)))})
        (warning,) = await asked.warnings((Recipient(NETWORK, wallet),), ASSETS)
        assert f"of {wallet} on {NETWORK} belongs to {thief}, who gets what is paid there" in warning["message"]
        lent = str(Keypair().pubkey())
        opened = node.chain.account(node.chain.open_account(lent))
        assert opened is not None
        own = bytearray(bytes(opened.data))
        own[72:108], own[121] = b"\x01\0\0\0" + bytes(Pubkey.from_string(thief)), 1
        node.chain._put(str(account_of(lent)), bytes(own))  # noqa: SLF001 - as its owner's approval leaves it
        (warning,) = await asked.warnings((Recipient(NETWORK, lent),), ASSETS)
        assert warning["message"].startswith(f"{thief} may spend from the USDC token account of {lent}")
        own[121] = 0  # it is used up
        node.chain._put(str(account_of(lent)), bytes(own))  # noqa: SLF001 - the same
        assert await asked.warnings((Recipient(NETWORK, lent),), ASSETS) == []
        await asked.aclose()


async def test_a_seller_with_a_wallet_and_no_token_account_is_not_called_anything_else(market: SolanaMarket) -> None:
    gate = await market.gate(paymentAddress=str(Keypair().pubkey()))
    refused = await market.pay(gate, await market.payment(await market.requirements(gate)))
    assert "no token account" in refused.json()["error"]["message"]
    assert "no wallet" not in refused.json()["error"]["message"]


async def test_what_is_wrong_is_told_as_far_as_it_shows_and_a_node_that_is_down_stops_no_save() -> None:
    async with SolanaNode() as node:
        other = str(Keypair().pubkey())
        node.chain._put(other, bytes(node.chain.account(MINT).data))  # type: ignore[union-attr]  # noqa: SLF001 - a mint more
        token_account = node.chain.open_account(str(Keypair().pubkey()))
        asked = TokenAccounts({NETWORK: SolanaChain(SolanaConfig(NETWORKS[NETWORK], (node.url,)))})
        for address in (other, token_account):
            recipient = Recipient(NETWORK, address)
            with pytest.raises(ApiError) as refusal:
                await asked.warnings((recipient,), ASSETS)
            assert refusal.value.code == "INVALID_ADDRESS"
            (warning,) = await asked.warnings((recipient,), ASSETS, (recipient,))
            assert "is no wallet" in warning["message"]
        await asked.aclose()
    recipients = tuple(Recipient(NETWORK, address) for address in (token_account, other))
    down = TokenAccounts({NETWORK: SolanaChain(SolanaConfig(NETWORKS[NETWORK], ("http://127.0.0.1:9",)))})
    for accounts in (down, TokenAccounts({})):
        (warning,) = await accounts.warnings(recipients, ASSETS)  # what no key has shows in the address itself
        assert warning["message"].startswith(f"{token_account} is no wallet: it lies off the curve")
        await accounts.aclose()
