"""The page is of use to everybody, and a hostile seller's words and answers change nothing in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import axe_playwright_python
import pytest
from playwright.async_api import Browser, Page, expect

from tests.gateway.market import Market
from tests.web.browsing import EvmWallet, window
from tests.web.test_paywall import answering

AXE: Final = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
HOSTILE: Final = (
    "</script><script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">{{7*7}}'\"&"
)


async def findings(page: Page) -> list[str]:
    """What axe-core finds. It runs beside the page's policy, which lets no script of anybody else's in."""
    await page.evaluate(AXE)
    found: dict[str, Any] = await page.evaluate("axe.run()")
    return [f"{one['id']}: {json.dumps([node['html'] for node in one['nodes']])}" for one in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_before_and_after_payment(
    market: Market, browser: Browser, wallet: EvmWallet, scheme: Any
) -> None:
    gate = await market.gate(title="Weather", description="Of every town", method="GET, POST", credits=3)
    async with window(browser, wallet, color_scheme=scheme, viewport={"width": 320, "height": 640}) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await expect(page.get_by_role("button", name="with Test Wallet")).to_be_visible()
        assert await findings(page) == []
        await page.get_by_role("button", name="with Test Wallet").click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        assert await findings(page) == []
        await page.goto(market.stack.gateway_url + "/no-such-gate")
        assert await findings(page) == []


@pytest.mark.parametrize("width", [320, 768, 1280])
async def test_nothing_is_wider_than_the_window(
    market: Market, browser: Browser, wallet: EvmWallet, width: int
) -> None:
    market.target.answer = answering(b'{"long": "' + b"x" * 900 + b'"}', "application/json")
    gate = await market.gate(title="T" * 80, description="D" * 300, credits=2)
    async with window(browser, wallet, viewport={"width": width, "height": 640}) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await page.get_by_role("button", name="with Test Wallet").click()
        await expect(page.locator("#result")).to_contain_text("xxx", timeout=30_000)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_the_keyboard_is_enough(market: Market, browser: Browser, wallet: EvmWallet) -> None:
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await page.goto((await market.gate(credits=2))["accessUrl"])
        pay = page.get_by_role("button", name="with Test Wallet")
        await expect(pay).to_be_enabled()
        await page.keyboard.press("Tab")
        await expect(pay).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#result")).to_be_focused(timeout=30_000)
        again = page.get_by_role("button", name="Call again")
        for _ in range(9):
            if await again.evaluate("one => one === document.activeElement"):
                break
            await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("#credits")).to_have_text("0 of 2 credits left.")


async def test_without_javascript_the_price_and_how_to_pay_are_there(market: Market, browser: Browser) -> None:
    gate = await market.gate(title="Weather", price="0.25", credits=3, method="POST")
    async with window(browser, java_script_enabled=False) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        main = page.locator("main")
        for text in ("0.25 USDC", "3 calls", "needs JavaScript", f"tollkeeper pay '{gate['accessUrl']}' --method POST"):
            await expect(main.get_by_text(text).first).to_be_visible()
        await expect(main).to_contain_text(f"curl -i -X POST '{gate['accessUrl']}'")
        await expect(page.locator("#pay")).to_be_hidden()


async def test_a_seller_s_words_are_words(market: Market, browser: Browser, wallet: EvmWallet) -> None:
    gate = await market.gate(title=HOSTILE, description=HOSTILE)
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await expect(page.locator("h1")).to_have_text(HOSTILE)
        await page.get_by_role("button", name="with Test Wallet").click()
        await expect(page.locator("#result")).to_contain_text("served", timeout=30_000)
        assert await page.title() == f"{HOSTILE}: 0.01 USDC"
        assert len(shown.faults) == 1, shown.faults


async def test_a_seller_s_html_runs_nothing_and_leads_nobody_away(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    html = (
        b"<title>x</title><script>top.document.title='stolen'</script><meta http-equiv=refresh content='0;url=/api'>"
        b"<img src=x onerror=\"top.document.title='stolen'\"><a id=away href='/api' target=_top>away</a>"
        b"<form action='/api/v1/transfer' method=post><button>pay</button></form><h1>Hello</h1>"
    )
    market.target.answer = answering(html, "text/html")
    async with window(browser, wallet) as shown:
        page = await shown.page()
        url = (await market.gate())["accessUrl"]
        await page.goto(url)
        await page.get_by_role("button", name="with Test Wallet").click()
        frame = page.frame_locator("#body iframe")
        await expect(frame.locator("h1")).to_have_text("Hello", timeout=30_000)
        await frame.locator("#away").click()
        await frame.get_by_role("button", name="pay").click()
        await expect(frame.locator("h1")).to_have_text("Hello")
        assert page.url == url
        assert "stolen" not in await page.title()


async def test_the_policy_lets_no_script_of_anybody_else_in(market: Market, browser: Browser) -> None:
    async with window(browser) as shown:
        page = await shown.page()
        answer = await page.goto((await market.gate(title="Weather"))["accessUrl"])
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert rule in policy
        assert "unsafe" not in policy
        await page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.stolen = 1'}))"
        )
        assert await page.evaluate("window.stolen") is None
        framed = await shown.page()
        await framed.goto("data:text/html,<iframe src='" + page.url + "'></iframe>")
        shown_there = framed.frame_locator("iframe").locator("h1")
        await expect(shown_there).to_have_count(1)  # the browser's own, which says that it was refused
        await expect(shown_there).not_to_have_text("Weather")
