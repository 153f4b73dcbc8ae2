"""The dashboard's host answers nothing of a stranger's; front page and sandbox lead to what is sold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, expect

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.market import Market
from tests.ports import free_port
from tests.web.browsing import window
from tests.web.owning import owner_wallet
from tests.web.test_page_safety import findings
from tollkeeper.core.configuration import PublicUrl
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


async def test_the_dashboard_s_host_answers_nothing_of_a_stranger_s(
    embedded_chain: ChainUnderTest, tmp_path: Path, browser: Browser
) -> None:
    port = free_port()
    app = f"app.localhost:{port}"
    wallet = owner_wallet("apart")
    signed: list[str] = []

    async def note(method: str) -> None:
        signed.append(method)

    wallet.before = note
    async with (
        composed(embedded_chain.url, tmp_path / "own.db", at=port, app_url=f"http://{app}") as url,
        Buyer(derive_wallets().buyer) as buyer,
        window(browser, wallet) as shown,
    ):
        body = {"targetUrl": "http://127.0.0.1:9/", "price": "0.01", "slug": "stranger"}
        assert (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).status == 201
        assert (await buyer.ask("GET", url + "/stranger")).status == 402
        page = await shown.page()
        await page.goto(url + "/app/login")  # this machine's other name leads there
        assert page.url == f"http://{app}/app/login"
        paths = ["/stranger", "/stranger/below", "/files/1", "/api/v1/paygates", "/docs", "/hub/supported", "/none"]
        ask = "paths => Promise.all(paths.map((path) => fetch(path).then((one) => one.status)))"
        assert await page.evaluate(ask, paths) == [404] * len(paths)
        await page.goto(f"http://{app}/")
        message = json.loads(
            await page.evaluate(
                "a => fetch('/app/login/message?walletAddress=' + a).then((one) => one.text())", "0x" + "12" * 20
            )
        )["message"]
        assert message.startswith(f"{app} wants you to sign in")
        await page.get_by_role("button", name="Log in with Test Wallet").click()
        await expect(page.get_by_role("button", name="Log out")).to_be_visible(timeout=30_000)
        assert "personal_sign" in signed


async def test_where_others_reach_it_there_is_no_dashboard_without_a_host_of_its_own(
    embedded_chain: ChainUnderTest, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"public_url": PublicUrl("https://gate.example", "gate.example"), "app_url": None}
    async with (
        composed(embedded_chain.url, tmp_path / "own.db", **changes) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        for host in ("gate.example", "127.0.0.1", "app.example"):
            answer = await buyer.ask("GET", url + "/app", headers={"Host": host})
            assert (answer.status, answer.error_code) == (404, "NOT_FOUND")
            assert "app_url" in answer.json()["error"]["message"]


async def test_the_front_page_shows_a_real_402_and_leads_on(market: Market, browser: Browser) -> None:
    url = market.stack.gateway_url
    await market.gate(title="First")
    for scheme in ("light", "dark"):
        async with window(browser, color_scheme=scheme, viewport={"width": 320, "height": 640}) as shown:
            page = await shown.page()
            await page.goto(url + "/")
            await page.get_by_role("button", name="Ask without paying").click()
            await expect(page.locator("#told")).to_contain_text("HTTP 402")
            await expect(page.locator("#told")).to_contain_text("maxAmountRequired")
            assert await findings(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth") == 320
            await page.get_by_role("link", name="The API").click()
            await expect(page.locator("h1")).to_have_text("Tollkeeper gateway")
            assert await findings(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth") == 320
            await page.go_back()
            await page.get_by_role("link", name="Sell your API").click()
            await expect(page.locator("h1")).to_have_text("Log in with your wallet")
    icon = await market.ask("GET", url + "/favicon.ico")
    assert (icon.status, icon.headers["content-type"]) == (200, "image/svg+xml")


async def test_in_the_sandbox_the_test_owner_logs_in_and_the_test_buyer_pays(market: Market, browser: Browser) -> None:
    gate = await market.gate(title="Played", credits=2)
    async with window(browser) as shown:
        page = await shown.page()
        await page.goto(market.stack.gateway_url + "/app")
        await page.get_by_role("button", name="Log in as the test owner").click()
        await expect(page.locator("#feed-state")).to_have_text("Live", timeout=15_000)
        loaded = "performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0)"
        assert 0 < await page.evaluate(loaded) <= 100 * 1024
        await page.goto(f"{market.stack.gateway_url}/app/paygates/{gate['id']}")
        await page.get_by_role("button", name="Claim it").click()
        await page.get_by_role("button", name="Pay as the test buyer").click()
        await expect(page.locator("h1")).to_have_text("Played: the test buyer got 200", timeout=30_000)
        await expect(page.locator("pre")).to_contain_text("served")
        await expect(page.locator(".good")).to_contain_text("0x")
        await page.get_by_role("link", name="To the overview").click()
        await expect(page.locator("#feed")).to_contain_text("Played: sold for 0.01 USDC", timeout=15_000)
