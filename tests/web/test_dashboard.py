"""An owner's way through the dashboard, in a real browser."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.gateway.market import Market
from tests.web.browsing import SolanaSigner, WalletError, window
from tests.web.owning import created, gate_of, logged_in, owner_wallet
from tests.web.test_page_safety import HOSTILE, findings
from tests.web.test_paywall import answering


async def test_an_owner_sells_within_the_first_minutes(market: Market, browser: Browser, tmp_path: Path) -> None:
    async with window(browser, owner_wallet("first minutes")) as shown:
        page = await logged_in(shown, market)
        await page.get_by_role("link", name="New PayGate").click()
        await page.get_by_label("Target URL").fill(market.target.url)
        await page.get_by_role("button", name="Test the target").click()
        await expect(page.locator("#tested")).to_contain_text("The target answered 200", timeout=15_000)
        await page.get_by_label("Title").fill("Weather")
        await expect(page.locator("#preview")).to_contain_text("Weather")
        await page.get_by_label("Price in USDC").fill("0.05")
        await page.get_by_label("Credits", exact=True).fill("2")
        await page.get_by_role("button", name="Create the PayGate").click()
        link = page.get_by_role("link", name=re.compile("^http"))
        await expect(link).to_be_visible(timeout=15_000)
        url = await link.inner_text()
        _, answer = await market.buy(await gate_of(market, url))
        assert answer.status == 200
        await page.get_by_role("link", name="To the PayGate").click()
        await expect(page.locator("main")).to_contain_text("0.05 USDC")
        await page.get_by_role("link", name="Edit", exact=True).click()
        await page.get_by_label("Price in USDC").fill("0.07")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("h1")).to_have_text("Weather: saved", timeout=15_000)
        assert (await market.challenge(await gate_of(market, url)))["paymentRequired"]["amount"] == "0.07"
        file = tmp_path / "report.txt"
        await asyncio.to_thread(file.write_bytes, b"report" * 100_000)
        await page.goto(f"{market.stack.gateway_url}/app/paygates/new?kind=file")
        await page.get_by_label("File").set_input_files(file)
        await page.get_by_role("button", name="Create the PayGate").click()
        await expect(page.locator("h1")).to_have_text("report.txt: created", timeout=15_000)
        await page.get_by_role("link", name="All PayGates").click()
        async with page.expect_download() as downloading:
            await page.get_by_role("link", name="CSV").click()
        download = await (await downloading.value).path()
        rows = list(csv.DictReader(io.StringIO(await asyncio.to_thread(download.read_text))))
        assert [(row["title"], row["price"], row["purchases"]) for row in rows] == [
            ("", "0.01", "0"),
            ("Weather", "0.07", "1"),
        ]
        await page.get_by_role("link", name="Weather").click()
        await page.get_by_role("link", name="Delete").click()
        await expect(page.locator("main")).to_contain_text("Buyers hold 1 credits, for which they paid 0.025 USDC")
        await page.get_by_role("button", name="Delete it and void 1 credits").click()
        await expect(page.locator("main")).to_contain_text("1 credits are void")
        assert (await market.ask("GET", url)).status == 404
        assert [one for one in shown.faults if "402" not in one] == []


async def test_a_wallet_on_solana_logs_in(market: Market, browser: Browser, solana_wallet: SolanaSigner) -> None:
    async with window(browser, solana=solana_wallet) as shown:
        page = await logged_in(shown, market)
        await expect(page.locator(".who")).to_contain_text(solana_wallet.wallet.address[:6])
        assert solana_wallet.asked == ["connect", "signMessage"]


async def test_a_login_that_is_declined_says_so_and_can_be_tried_again(market: Market, browser: Browser) -> None:
    wallet = owner_wallet("declines")

    async def decline(method: str) -> None:
        if method == "personal_sign" and wallet.asked.count(method) == 1:
            raise WalletError(4001, "User rejected the request.")

    wallet.before = decline
    async with window(browser, wallet, announces=False) as shown:
        page = await shown.page()
        await page.goto(market.stack.gateway_url + "/app")
        button = page.get_by_role("button", name="Log in with the wallet in this browser")
        await button.click()
        await expect(page.locator("#error")).to_have_text("You declined in your wallet. Press the button to try again.")
        await button.click()
        await expect(page.locator("h1")).to_have_text("Overview", timeout=15_000)


async def test_what_is_wrong_stands_at_its_field_and_nothing_typed_is_lost(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("mistakes")) as shown:
        page = await logged_in(shown, market, "/paygates/new")
        await page.get_by_label("Target URL").fill(market.target.url)
        await page.get_by_label("Title").fill("Kept")
        await page.get_by_label("Price in USDC").fill("1,5")
        await page.get_by_role("button", name="Create the PayGate").click()
        await expect(page.locator("#price-error")).to_be_visible(timeout=15_000)
        await expect(page.get_by_label("Price in USDC")).to_have_attribute("aria-invalid", "true")
        await expect(page.get_by_label("Title")).to_have_value("Kept")
        await page.get_by_label("Price in USDC").fill("1.5")
        await page.get_by_label("Who may spend").select_option("wallet")
        await page.get_by_label("Credits expire after seconds").fill("86400")
        await page.get_by_label("Headers for the target").fill("X-Key: secret-of-the-target")
        await page.get_by_label("Further networks").fill("solana-devnet " + market.stack.solana.pay_to)
        await page.get_by_role("button", name="Create the PayGate").click()
        await expect(page.locator("h1")).to_have_text("Kept: created", timeout=15_000)
        await page.get_by_role("link", name="To the PayGate").click()
        await page.get_by_role("link", name="Edit", exact=True).click()
        await page.get_by_text("How it is paid for and served").click()
        await expect(page.get_by_label("Who may spend")).to_have_value("wallet")
        await expect(page.locator("main")).to_contain_text(re.compile("Set: x-key", re.IGNORECASE))
        assert "secret-of-the-target" not in await page.content()


async def test_lists_are_searched_filtered_and_paged(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("many gates")) as shown:
        page = await logged_in(shown, market)
        for title in ("Alpha 100%", "Beta_1", "Gamma"):
            await created(page, market.target.url, Title=title)
        await page.goto(market.stack.gateway_url + "/app/paygates?limit=2")
        rows = page.locator("table").first.locator("tbody tr")  # below it are those that nobody owns
        await expect(rows).to_have_count(2)
        await page.get_by_role("link", name="Next").click()
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("Alpha")
        await page.get_by_role("searchbox").fill("0%")
        await page.get_by_role("button", name="Filter").click()
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("Alpha 100%")
        await rows.get_by_role("link", name="Alpha").click()
        await page.get_by_role("button", name="Sell no more").click()
        await expect(page.locator("main")).to_contain_text("Not selling")
        await page.goto(market.stack.gateway_url + "/app/paygates?state=enabled")
        await expect(rows).to_have_count(2)
        answer = await page.request.get(market.stack.gateway_url + "/app/paygates.json?q=beta_")
        assert [one["title"] for one in (await answer.json())["data"]] == ["Beta_1"]


async def test_a_paygate_without_an_owner_is_claimed(market: Market, browser: Browser) -> None:
    gate = await market.gate(title="Nobody's own")
    async with window(browser, owner_wallet("claims")) as shown:
        page = await logged_in(shown, market)
        await page.locator(f"form[action='/app/paygates/{gate['id']}/claim'] button").click()
        await expect(page.get_by_role("link", name="Edit", exact=True)).to_be_visible()
        await page.goto(market.stack.gateway_url + "/app/paygates")
        await expect(page.locator("tbody").first).to_contain_text("Nobody's own")


async def test_a_secret_is_shown_once(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("signs")) as shown:
        page = await logged_in(shown, market, "/paygates/new")
        await page.get_by_label("Target URL").fill(market.target.url)
        await page.get_by_text("How it is paid for and served").click()
        await page.get_by_label("Signed requests").select_option("hmac")
        await page.get_by_role("button", name="Create the PayGate").click()
        shown_once = page.locator("dd code")
        await expect(shown_once).to_have_count(2, timeout=15_000)
        first = await shown_once.nth(1).inner_text()
        await page.get_by_role("link", name="To the PayGate").click()
        await expect(page.locator("main")).not_to_contain_text(first)
        await page.get_by_role("button", name="New HMAC secret").click()
        await expect(shown_once).to_have_count(2)
        assert await shown_once.nth(1).inner_text() != first


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_on_the_owner_s_pages_and_none_is_wider_than_a_telephone(
    market: Market, browser: Browser, scheme: str
) -> None:
    market.target.answer = answering(b"no", "text/html", "500 Broken")
    options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": 320, "height": 640}}
    async with window(browser, owner_wallet(f"axe {scheme}"), **options) as shown:
        page = await shown.page()
        await page.goto(market.stack.gateway_url + "/app/login")
        await expect(page.get_by_role("button", name="Log in with Test Wallet")).to_be_visible()
        assert await findings(page) == []
        await page.get_by_role("button", name="Log in with Test Wallet").click()
        await expect(page.locator("h1")).to_have_text("Overview", timeout=15_000)
        assert await findings(page) == []
        await created(page, market.target.url, Title="T" * 90, Description="D" * 200)
        assert await findings(page) == []
        await page.get_by_role("link", name="To the PayGate").click()
        gate = page.url
        for path in (
            "/app/paygates",
            gate,
            gate + "/edit",
            gate + "/delete",
            "/app/paygates/new?kind=file",
            "/app/none",
        ):
            await page.goto(path if "://" in path else market.stack.gateway_url + path)
            for details in await page.locator("summary").all():
                await details.click()
            assert (path, await findings(page)) == (path, [])
            assert (path, await page.evaluate("document.documentElement.scrollWidth")) == (path, 320)


async def test_a_stranger_s_words_are_words(market: Market, browser: Browser) -> None:
    await market.gate(title=HOSTILE, description=HOSTILE)
    async with window(browser, owner_wallet("reads")) as shown:
        page = await logged_in(shown, market)
        await expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
        await page.get_by_role("link", name=HOSTILE).click()
        await expect(page.locator("h1")).to_have_text(HOSTILE)
        assert await page.title() == HOSTILE
        assert shown.faults == []


async def test_the_keyboard_is_enough(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("keys")) as shown:
        page = await logged_in(shown, market)
        await page.get_by_role("link", name="New PayGate").focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Target URL").focus()
        await page.keyboard.type(market.target.url)
        await page.keyboard.press("Enter")  # the first button of a form is what Enter presses: it must save
        await expect(page.locator("h1")).to_contain_text("created", timeout=15_000)


async def reached(page: Page, wanted: Locator) -> None:
    """Press Tab until it has the focus."""
    await expect(wanted).to_be_visible(timeout=30_000)
    for _ in range(60):
        if await wanted.evaluate("one => one === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"the keyboard never comes to {wanted}")


async def test_from_the_login_to_the_deletion_the_keyboard_is_enough(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("only keys")) as shown:
        page = await shown.page()
        await page.goto(market.stack.gateway_url + "/app/paygates")
        await reached(page, page.get_by_role("button", name=re.compile("Log in with Test")))
        await page.keyboard.press("Enter")
        await reached(page, page.get_by_role("link", name="New PayGate"))
        await page.keyboard.press("Enter")
        await reached(page, page.get_by_label("Target URL"))
        await page.keyboard.type(market.target.url)
        await reached(page, page.get_by_role("button", name="Test the target"))
        await page.keyboard.press("Space")
        await expect(page.locator("#tested")).to_contain_text("The target answered 200", timeout=30_000)
        await reached(page, page.get_by_role("button", name="Create the PayGate"))
        await page.keyboard.press("Enter")
        await reached(page, page.get_by_role("link", name="To the PayGate"))
        await page.keyboard.press("Enter")
        await reached(page, page.get_by_role("button", name="Sell no more"))
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_contain_text("Not selling", timeout=30_000)
        await reached(page, page.get_by_role("link", name=re.compile("^Delete")))
        await page.keyboard.press("Enter")
        await reached(page, page.get_by_role("button", name=re.compile("^Delete")))
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_contain_text("You have no PayGate yet", timeout=30_000)
        await reached(page, page.get_by_role("button", name="Log out"))
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("Log in with your wallet")
