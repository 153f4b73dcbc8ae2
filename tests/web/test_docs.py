"""The API's page: in a sandbox its reader tries each operation there, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, Page, expect

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.market import Market
from tests.web.browsing import window
from tests.web.test_page_safety import findings
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


async def opened(page: Page, market: Market, name: str, *, key: str = "") -> None:
    """The page with an operation unfolded, by the keyboard where a key is named."""
    await page.goto(market.stack.gateway_url + "/docs")
    await page.wait_for_selector("html[data-try=ready]")
    summary = page.locator("summary", has=page.get_by_text(name, exact=True))
    if key:
        await summary.focus()
        await page.keyboard.press(key)
    else:
        await summary.click()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_a_reader_tries_operations_as_they_stand(market: Market, browser: Browser) -> None:
    await market.gate()
    async with window(browser, viewport={"width": 320, "height": 640}) as shown:
        page = await shown.page()
        answer = page.get_by_role("region", name="The answer")
        for name, status in (
            ("POST /api/v1/paygates", 201),
            ("GET /api/v1/paygates/{gate_id}", 200),
            ("PUT /api/v1/paygates/{gate_id}", 200),
            ("POST /api/v1/paygates/{gate_id}/test", 200),
            ("POST /api/v1/sandbox/pay", 200),
            ("GET /healthz", 200),
        ):
            await opened(page, market, name)
            await page.get_by_role("button", name="Send").click()
            await expect(answer).to_contain_text(f"HTTP {status}\n", timeout=30_000)
        assert shown.faults == []
        assert await findings(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == 320


async def test_an_unpaid_call_shows_the_real_402_and_the_keyboard_is_enough(market: Market, browser: Browser) -> None:
    await market.gate(price="0.07")
    async with window(browser) as shown:
        page = await shown.page()
        await opened(page, market, "GET /{slug}", key="Enter")
        await page.keyboard.press("Tab")
        send = page.get_by_role("button", name="Send")
        for _ in range(20):
            if await send.evaluate("one => one === document.activeElement"):
                break
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        answer = page.get_by_role("region", name="The answer")
        await expect(answer).to_contain_text("HTTP 402\n", timeout=30_000)
        await expect(answer).to_contain_text('"amount": "0.07"')
        await expect(answer).to_be_focused()


async def test_a_token_is_sent_with_what_is_tried(market: Market, browser: Browser) -> None:
    async with window(browser) as shown:
        page = await shown.page()
        await opened(page, market, "GET /api/v1/auth/me")
        await page.get_by_label("Access token of a login").fill(await market.buyer.login(market.stack.gateway_url))
        await page.get_by_role("button", name="Send").click()
        answer = page.get_by_role("region", name="The answer")
        await expect(answer).to_contain_text(market.buyer.wallet.address[2:10], ignore_case=True, timeout=30_000)


async def test_elsewhere_the_page_has_no_script(embedded_chain: ChainUnderTest, tmp_path: Path) -> None:
    async with composed(embedded_chain.url, tmp_path / "own.db") as url, Buyer(derive_wallets().buyer) as buyer:
        answer = await buyer.ask("GET", url + "/docs")
        assert answer.status == 200
        assert b"<script" not in answer.body
        assert "script-src" not in answer.headers["content-security-policy"]
        assert (await buyer.ask("POST", url + "/api/v1/sandbox/pay", body={"paygateId": 1})).status == 404
