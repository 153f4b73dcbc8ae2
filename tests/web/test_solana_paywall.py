"""A person's way through the paywall with a wallet on Solana; the gateway makes the transaction."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.gateway.market import Market
from tests.web.browsing import REJECTED, EvmWallet, SolanaSigner, WalletError, window

NETWORK = "solana-devnet"
PAY = "with Test Solana Wallet"


async def on_solana(market: Market, **fields: object) -> dict[str, Any]:
    """A gate that is paid on Solana."""
    return await market.gate(network=NETWORK, paymentAddress=market.stack.solana.pay_to, **fields)


async def test_a_person_pays_on_solana_and_spends_the_credits(
    market: Market, browser: Browser, solana_wallet: SolanaSigner
) -> None:
    gate, solana = await on_solana(market, credits=2), market.stack.solana
    before = solana.balance_micro(solana.buyer_address)
    async with window(browser, None, solana_wallet) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await expect(page.locator("main")).to_contain_text("Solana devnet (test money)")
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        link = page.locator("#receipt a")
        address = f"https://explorer.solana.com/tx/{await link.inner_text()}?cluster=devnet"
        assert await link.get_attribute("href") == address
        await page.get_by_role("button", name="Call again").click()
        await expect(page.locator("#credits")).to_have_text("0 of 2 credits left.")
    assert solana_wallet.asked == ["connect", "signTransaction"]
    assert solana.balance_micro(solana.buyer_address) == before - 10_000


async def test_where_a_gate_is_paid_on_both_families_the_network_is_chosen(
    market: Market, browser: Browser, wallet: EvmWallet, solana_wallet: SolanaSigner
) -> None:
    gate = await market.gate(accepts=[{"network": NETWORK, "paymentAddress": market.stack.solana.pay_to}])
    async with window(browser, wallet, solana_wallet) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await expect(page.get_by_role("button", name="with Test Wallet")).to_be_visible()
        await expect(page.get_by_role("button", name=PAY)).to_be_hidden()
        await page.get_by_label("Network").select_option("Solana devnet (test money)")
        await expect(page.get_by_role("button", name="with Test Wallet")).to_be_hidden()
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
    assert not wallet.asked


async def test_what_is_declined_on_solana_charges_nothing(
    market: Market, browser: Browser, solana_wallet: SolanaSigner
) -> None:
    async def decline(asked: str) -> None:
        if asked == "signTransaction":
            raise WalletError(*REJECTED)

    solana_wallet.before = decline
    async with window(browser, None, solana_wallet) as shown:
        page = await shown.page()
        await page.goto((await on_solana(market))["accessUrl"])
        await page.get_by_role("button", name=PAY).click()
        await expect(page.get_by_role("alert")).to_contain_text("You declined in your wallet. Nothing was charged.")


async def test_a_wallet_of_another_cluster_signs_nothing(
    market: Market, browser: Browser, solana_wallet: SolanaSigner
) -> None:
    solana_wallet.chains = ("solana:mainnet",)
    async with window(browser, None, solana_wallet) as shown:
        page = await shown.page()
        await page.goto((await on_solana(market))["accessUrl"])
        await page.get_by_role("button", name=PAY).click()
        await expect(page.get_by_role("alert")).to_contain_text(
            "Switch it to Solana devnet (test money), and try again"
        )
    assert solana_wallet.asked == ["connect"]


async def test_a_transaction_is_made_of_what_its_gate_asks_for(market: Market) -> None:
    gate, payer = await on_solana(market), market.stack.solana.buyer_address
    wish = {"slug": gate["slug"], "network": NETWORK, "payer": payer}
    made = [await market.ask("POST", "/api/v1/solana/transactions", body=wish) for _ in range(2)]
    assert [one.status for one in made] == [200, 200]
    assert made[0].json()["transaction"] != made[1].json()["transaction"]
    assert made[0].headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"slug": "no-such-gate"}, "NOT_FOUND"),
        ({"network": "base-sepolia"}, "INVALID_NETWORK"),
        ({"network": "solana-mainnet"}, "INVALID_NETWORK"),
        ({"network": "mars"}, "INVALID_NETWORK"),
        ({"payer": "nobody"}, "INVALID_ADDRESS"),
        ({"payer": "PAYEE"}, "INVALID_PARAMETER"),
        ({"payer": ""}, "MISSING_PARAMETER"),
    ],
)
async def test_what_cannot_be_paid_has_no_transaction(market: Market, change: dict[str, str], code: str) -> None:
    gate, solana = await on_solana(market), market.stack.solana
    wish = {"slug": gate["slug"], "network": NETWORK, "payer": solana.buyer_address, **change}
    wish = {name: solana.pay_to if value == "PAYEE" else value for name, value in wish.items()}
    refused = await market.ask("POST", "/api/v1/solana/transactions", body=wish)
    assert refused.error_code == code


async def test_a_gate_that_sells_nothing_has_no_transaction(market: Market) -> None:
    gate = await on_solana(market, isEnabled=False)
    wish = {"slug": gate["slug"], "network": NETWORK, "payer": market.stack.solana.buyer_address}
    assert (await market.ask("POST", "/api/v1/solana/transactions", body=wish)).status == 404
