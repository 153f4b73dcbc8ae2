"""Gates that ask who calls, and those that take more than GET: the same wallet signs in, and a form is the request."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.gateway.market import Market
from tests.web.browsing import REJECTED, EvmWallet, SolanaSigner, WalletError, window
from tollkeeper.sandbox.wallets import derive_wallets

PAY = "with Test Wallet"


async def test_who_signs_in_first_pays_at_a_gate_that_asks_who_calls(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    gate = await market.gate(requireAuth=True, credits=2)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        answer = await page.goto(gate["accessUrl"])
        assert answer is not None
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        await expect(page.locator("main")).to_contain_text("You sign in with your wallet, which costs nothing")
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        await page.get_by_role("button", name="Call again").click()
        await expect(page.locator("#credits")).to_have_text("0 of 2 credits left.")
    assert [one for one in wallet.asked if one != "eth_chainId"] == [
        "eth_requestAccounts",
        "personal_sign",
        "eth_signTypedData_v4",
    ]


async def test_on_solana_the_same_wallet_signs_in(
    market: Market, browser: Browser, solana_wallet: SolanaSigner
) -> None:
    gate = await market.gate(
        requireAuth=True, network="solana-devnet", paymentAddress=market.stack.solana.pay_to, creditBinding="wallet"
    )
    async with window(browser, None, solana_wallet) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await page.get_by_role("button", name="with Test Solana Wallet").click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
    assert solana_wallet.asked == ["connect", "signMessage", "signTransaction"]


async def test_credits_of_a_wallet_are_spent_by_signing_in_on_any_browser(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    gate = await market.gate(creditBinding="wallet", credits=2)
    for left in (1, 0):
        async with window(browser, wallet) as shown:
            page = await shown.page()
            await page.goto(gate["accessUrl"])
            await page.get_by_role("button", name=PAY).click()
            await expect(page.locator("#credits")).to_have_text(f"{left} of 2 credits left.", timeout=30_000)
    assert wallet.asked.count("eth_signTypedData_v4") == 1


async def test_another_account_signs_in_anew_and_pays_for_itself(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    gate = await market.gate(creditBinding="wallet")
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        wallet.wallet = derive_wallets().second_buyer
        await page.get_by_role("button", name=PAY).click()
        await expect(page.get_by_role("button", name=PAY)).to_be_enabled()
        await expect(page.get_by_role("alert")).to_be_empty()
    assert (wallet.asked.count("personal_sign"), wallet.asked.count("eth_signTypedData_v4")) == (2, 2)


async def test_a_sign_in_that_is_declined_charges_nothing(market: Market, browser: Browser, wallet: EvmWallet) -> None:
    async def decline(asked: str) -> None:
        if asked == "personal_sign":
            raise WalletError(*REJECTED)

    wallet.before = decline
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await page.goto((await market.gate(requireAuth=True))["accessUrl"])
        await page.get_by_role("button", name=PAY).click()
        await expect(page.get_by_role("alert")).to_contain_text("You declined in your wallet. Nothing was charged.")
    assert "eth_signTypedData_v4" not in wallet.asked


@pytest.mark.parametrize("method", ["POST", "GET, POST, DELETE"])
async def test_another_method_has_a_form_for_query_and_body(
    market: Market, browser: Browser, wallet: EvmWallet, method: str
) -> None:
    gate = await market.gate(method=method, credits=2)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        answer = await page.goto(gate["accessUrl"] + "?city=Bergen")
        assert answer is not None
        assert answer.status == (405 if method == "POST" else 402)
        if method != "POST":
            await page.get_by_label("Method").select_option("POST")
        await expect(page.get_by_label("Query")).to_have_value("city=Bergen")
        await page.get_by_label("Query").fill("city=Oslo&day=2")
        await page.get_by_role("textbox", name="Body").fill('{"of": "mine"}')
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        await page.get_by_role("textbox", name="Body").fill("another")
        await page.get_by_label("Type of the body").select_option("text/plain")
        await page.get_by_role("button", name="Call again").click()
        await expect(page.locator("#credits")).to_have_text("0 of 2 credits left.")
    first, second = market.target.requests
    assert (first.method, first.path, first.body) == ("POST", "/?city=Oslo&day=2", b'{"of": "mine"}')
    assert first.header("content-type") == "application/json"
    assert (second.body, second.header("content-type")) == (b"another", "text/plain")
