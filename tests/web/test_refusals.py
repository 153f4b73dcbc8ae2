"""What keeps a payment from its end: each is said in a sentence, and nobody pays twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from playwright.async_api import Browser, Page, expect
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, HostileHub, run_hostile_hub
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget
from tests.web.browsing import REJECTED, EvmWallet, WalletError, window
from tollkeeper.gateway.call import state
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallet, derive_wallets
from tollkeeper.settings.model import Role

PAYEE = "0x" + "77" * 20
PAY = "with Test Wallet"


async def pressed(page: Page, url: str) -> None:
    """The page, once its payment was begun."""
    await page.goto(url)
    await page.get_by_role("button", name=PAY).click()


async def test_without_a_wallet_the_page_says_what_to_do(market: Market, browser: Browser) -> None:
    async with window(browser) as shown:
        page = await shown.page()
        await page.goto((await market.gate())["accessUrl"])
        await expect(page.locator("#no-wallet")).to_contain_text("There is no wallet for this network in your browser")


async def test_a_wallet_that_does_not_announce_itself_is_found(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    async with window(browser, wallet, announces=False) as shown:
        page = await shown.page()
        await page.goto((await market.gate())["accessUrl"])
        await page.get_by_role("button", name="with the wallet in this browser").click()
        await expect(page.locator("#result")).to_be_visible(timeout=30_000)


@pytest.mark.parametrize("method", ["eth_requestAccounts", "eth_signTypedData_v4"])
async def test_what_is_declined_in_the_wallet_charges_nothing_and_may_be_tried_again(
    market: Market, browser: Browser, wallet: EvmWallet, method: str
) -> None:
    async def decline(asked: str) -> None:
        if asked == method and wallet.asked.count(method) == 1:
            raise WalletError(*REJECTED)

    wallet.before = decline
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, (await market.gate())["accessUrl"])
        await expect(page.get_by_role("alert")).to_have_text(
            "You declined in your wallet. Nothing was charged. Press the button to try again."
        )
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_be_visible(timeout=30_000)
        await expect(page.get_by_role("alert")).to_be_empty()


@pytest.mark.parametrize(("known", "added"), [({1, 84532}, 0), ({1}, 1)])
async def test_a_wallet_on_another_network_is_switched(
    market: Market, browser: Browser, wallet: EvmWallet, known: set[int], added: int
) -> None:
    wallet.chain_id, wallet.known_chains = 1, known
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, (await market.gate())["accessUrl"])
        await expect(page.locator("#result")).to_be_visible(timeout=30_000)
    assert wallet.chain_id == 84532
    assert wallet.asked.count("wallet_addEthereumChain") == added


async def test_a_wallet_that_stays_on_another_network_signs_nothing(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    wallet.chain_id, wallet.is_stubborn = 1, True
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, (await market.gate())["accessUrl"])
        await expect(page.get_by_role("alert")).to_contain_text("Switch it to Base Sepolia (test money), and try again")
    assert "eth_signTypedData_v4" not in wallet.asked


async def test_too_little_usdc_charges_nothing_and_another_account_may_pay(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    rich, wallet.wallet = wallet.wallet, derive_wallet("somebody without any USDC")
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, (await market.gate())["accessUrl"])
        await expect(page.get_by_role("alert")).to_have_text(
            "Your wallet holds too little USDC on this network. Nothing was charged. "
            "Add USDC or choose another account, and pay again."
        )
        wallet.wallet = rich
        await page.get_by_role("button", name=PAY).click()
        await expect(page.locator("#result")).to_be_visible(timeout=30_000)


async def test_a_payment_that_ran_out_while_it_was_signed_is_not_sent(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    gate = await market.gate()
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await page.clock.install()

        async def take_long(asked: str) -> None:
            if asked == "eth_signTypedData_v4":
                await page.clock.fast_forward("05:00")

        wallet.before = take_long
        await pressed(page, gate["accessUrl"])
        await expect(page.get_by_role("alert")).to_contain_text("The payment ran out while you signed it. Nothing was")
    assert not market.target.requests


async def test_a_gate_that_is_not_there_says_so_in_a_page(market: Market, browser: Browser) -> None:
    async with window(browser) as shown:
        page = await shown.page()
        answer = await page.goto(market.stack.gateway_url + "/no-such-gate")
        assert answer is not None
        assert answer.status == 404
        await expect(page.locator("main")).to_contain_text("There is no such PayGate. Nothing was charged.")


@dataclass(slots=True)
class Apart:
    """A gateway whose hub is reached through a proxy that a test commands."""

    url: str
    hub: HostileHub
    chain: ChainUnderTest
    buyer: Buyer
    target: RecordingTarget

    async def gate(self, **fields: object) -> str:
        """The URL of a new gate."""
        body = {"price": "0.01", "targetUrl": self.target.url, "paymentAddress": PAYEE, **fields}
        answer = await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        return str(answer.json()["accessUrl"])


@pytest.fixture
async def apart(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Apart]:
    node = embedded_chain.url
    async with (
        composed(node, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hub,
        composed(node, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub.url) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Apart(url, hub, embedded_chain, buyer, target)


async def settling_slowly(hub: HostileHub) -> asyncio.Event:
    """From now on nothing is settled before this event."""
    event = asyncio.Event()

    async def wait(_request: web.Request, forward: Forward) -> web.StreamResponse:
        await event.wait()
        return await forward()

    hub.settling = wait
    return event


@pytest.mark.parametrize("binding", ["payment", "wallet"])
async def test_a_reload_in_the_middle_of_a_settlement_loses_nothing(
    apart: Apart, browser: Browser, wallet: EvmWallet, binding: str
) -> None:
    url = await apart.gate(credits=1, creditBinding=binding)
    before, settled = apart.chain.balance(PAYEE), await settling_slowly(apart.hub)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, url)
        await until(lambda: apart.hub.settles, 30)
        with capture_logs() as logs:
            await page.reload()
            await until(lambda: "client_gone" in [one["event"] for one in logs], 30)
        await expect(page.get_by_role("status")).to_contain_text("You have paid here before the page was reloaded")
        settled.set()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        await expect(page.locator("#credits")).to_have_text("0 of 1 credits left.")
    assert apart.chain.balance(PAYEE) == before + 10_000
    assert len(apart.target.requests) == 1
    assert wallet.asked.count("eth_signTypedData_v4") == 1


async def test_where_the_token_holds_the_credits_its_payer_signs_in_after_a_reload(
    apart: Apart, browser: Browser, wallet: EvmWallet
) -> None:
    url = await apart.gate(credits=2, creditBinding="token")
    settled = await settling_slowly(apart.hub)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, url)
        await until(lambda: apart.hub.settles, 30)
        with capture_logs() as logs:
            await page.reload()
            await until(lambda: "client_gone" in [one["event"] for one in logs], 30)
        settled.set()
        await expect(page.get_by_role("alert")).to_contain_text("You have credits here. Sign in", timeout=30_000)
        await page.get_by_role("button", name="Sign in with Test Wallet").click()
        await expect(page.locator("#credits")).to_have_text("1 of 2 credits left.", timeout=30_000)
        await page.get_by_role("button", name="Call again").click()
        await expect(page.locator("#credits")).to_have_text("0 of 2 credits left.")
    assert wallet.asked.count("eth_signTypedData_v4") == 1


async def test_a_slow_settlement_is_waited_for_and_not_paid_again(
    apart: Apart, browser: Browser, wallet: EvmWallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    url = await apart.gate()
    before, settled = apart.chain.balance(PAYEE), await settling_slowly(apart.hub)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, url)
        await expect(page.get_by_role("status")).to_contain_text("Wait, and do not pay again", timeout=30_000)
        await expect(page.get_by_role("button", name=PAY)).to_be_disabled()
        settled.set()
        await expect(page.locator("#result")).to_contain_text("served", timeout=60_000)
    assert apart.chain.balance(PAYEE) == before + 10_000


async def test_a_hub_that_is_down_leaves_the_payment_to_be_sent_again(
    apart: Apart, browser: Browser, wallet: EvmWallet
) -> None:
    url = await apart.gate()
    before = apart.chain.balance(PAYEE)
    apart.hub.is_down = True
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, url)
        await expect(page.get_by_role("alert")).not_to_be_empty(timeout=60_000)
        apart.hub.is_down = False
        await page.get_by_role("button", name="Ask again").click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=60_000)
    assert apart.chain.balance(PAYEE) == before + 10_000
    assert wallet.asked.count("eth_signTypedData_v4") == 1


async def test_a_connection_that_breaks_leaves_the_payment_to_be_sent_again(
    apart: Apart, browser: Browser, wallet: EvmWallet
) -> None:
    url = await apart.gate()
    before, settled = apart.chain.balance(PAYEE), await settling_slowly(apart.hub)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await pressed(page, url)
        await until(lambda: apart.hub.settles, 30)
        with capture_logs() as logs:
            await page.evaluate("window.stop()")
            await until(lambda: "client_gone" in [one["event"] for one in logs], 30)
        await expect(page.get_by_role("alert")).to_contain_text("Your payment is kept in this browser")
        settled.set()
        await page.get_by_role("button", name="Ask again").click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
    assert apart.chain.balance(PAYEE) == before + 10_000
