"""Nothing that a seller, a target or a buyer wrote runs in any page: it is shown as the words that it is."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from tests.gateway.market import Market
from tests.web.browsing import EvmWallet, window
from tests.web.owning import appeared, logged_in, owner_wallet
from tests.web.test_page_safety import HOSTILE
from tests.web.test_paywall import answering

_RUN: Final = "window.stolen=document.title=String.fromCharCode(115,116,111,108,101,110)"
FILE_NAME: Final = f"'><img src=x onerror={_RUN}>.svg"
SVG: Final = f"<svg xmlns='http://www.w3.org/2000/svg' onload={_RUN!r}><script>{_RUN}</script></svg>"
SPOKEN: Final = f'text/html; x="><script>{_RUN}</script>'


async def harmless(page: Any) -> None:
    """Nothing of it ran, and nothing of it became an element."""
    assert await page.evaluate("window.stolen") is None, page.url
    assert await page.title() != "stolen", page.url
    assert await page.locator("main img[onerror], main script:not([type='application/json'])").count() == 0, page.url


async def bearer_of(market: Market, wallet: EvmWallet) -> dict[str, str]:
    return {"Authorization": "Bearer " + await market.buyer.login(market.stack.gateway_url, wallet.wallet.key)}


async def made(market: Market, bearer: dict[str, str], **fields: object) -> dict[str, Any]:
    body = {"targetUrl": market.target.url, "price": "0.01", "credits": 3, "title": HOSTILE, **fields}
    answer = await market.ask("POST", "/api/v1/paygates", body=body, headers=bearer)
    assert answer.status == 201, answer.body
    return answer.json()


async def made_of_file(market: Market, bearer: dict[str, str]) -> dict[str, Any]:
    form = aiohttp.FormData(default_to_multipart=True, quote_fields=False)
    form.add_field("price", "0.01")
    form.add_field("resourceType", "file")
    form.add_field("file", SVG.encode(), filename=FILE_NAME, content_type="image/svg+xml")
    answer = await market.ask("POST", "/api/v1/paygates", form=form, headers=bearer)
    assert answer.status == 201, answer.body
    gate: dict[str, Any] = answer.json()
    assert "onerror" in gate["fileName"]
    return gate


async def test_no_page_of_the_dashboard_runs_what_sellers_and_targets_wrote(market: Market, browser: Browser) -> None:
    wallet = owner_wallet("hostile words")
    bearer = await bearer_of(market, wallet)
    gate, file = await made(market, bearer, description=HOSTILE), await made_of_file(market, bearer)
    market.target.answer = answering(SVG.encode(), "image/svg+xml")
    await market.buy(gate)
    await market.buy(file)
    async with window(browser, wallet, viewport={"width": 320, "height": 640}) as shown:
        page = await logged_in(shown, market)
        url = market.stack.gateway_url
        await appeared(page, url + "/app/requests?outcome=served")
        await page.goto(url + "/app")
        await expect(page.locator("#feed-state")).to_have_text("Live", timeout=15_000)
        await market.buy(gate)  # comes by the feed, which a script of ours shows
        await expect(page.locator("#feed li")).to_have_count(3, timeout=30_000)
        await expect(page.locator("#feed")).to_contain_text(HOSTILE)
        await harmless(page)
        request = (await (await page.request.get(url + "/app/requests.json?outcome=served")).json())["data"][0]
        for path in (
            *("", "/paygates", "/requests", "/payments", "/settings"),
            *(f"/paygates/{one['id']}{below}" for one in (gate, file) for below in ("", "/edit", "/delete")),
            f"/requests/{request['requestId']}",
            f"/payments/{request['purchaseId']}",
        ):
            await page.goto(f"{url}/app{path}")
            await expect(page.get_by_role("button", name="Log out")).to_be_visible()
            await harmless(page)
            assert await page.evaluate("document.documentElement.scrollWidth") == 320, path
        assert shown.faults == []


async def test_what_a_target_answers_to_a_test_and_to_the_test_buyer_is_text(market: Market, browser: Browser) -> None:
    wallet = owner_wallet("hostile targets")
    gate = await made(market, await bearer_of(market, wallet))
    async with window(browser, wallet) as shown:
        page = await logged_in(shown, market)
        for status, extra in (("200 OK", ""), ("302 Found", f"location: {SPOKEN}\r\n")):
            market.target.answer = answering(SVG.encode(), SPOKEN, status, extra=extra)
            await page.goto(f"{market.stack.gateway_url}/app/paygates/{gate['id']}/edit")
            await page.get_by_role("button", name="Test the target").click()
            await expect(page.locator("#tested")).to_contain_text("<script>", timeout=30_000)
            await harmless(page)
        market.target.answer = answering(SVG.encode(), "text/html")
        await page.goto(f"{market.stack.gateway_url}/app/paygates/{gate['id']}")
        await page.get_by_role("button", name="Pay as the test buyer").click()
        await expect(page.locator("pre")).to_contain_text("<svg", timeout=30_000)
        await harmless(page)
        assert shown.faults == []


async def test_a_paywall_shows_the_name_of_a_file_and_its_svg_runs_nothing(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    gate = await made_of_file(market, await bearer_of(market, owner_wallet("hostile files")))
    async with window(browser, wallet) as shown:
        page = await shown.page()
        await page.goto(gate["accessUrl"])
        await expect(page.locator("h1")).to_have_text(gate["fileName"])
        await harmless(page)
        await page.get_by_role("button", name="with Test Wallet").click()
        await expect(page.locator("#result")).to_contain_text("SHA-256", timeout=30_000)
        await harmless(page)


@pytest.mark.parametrize("slug", ["<script>", "a'b\"c", "javascript:x", "../../app", "a b", "%3Cscript%3E"])
async def test_a_slug_holds_nothing_but_letters_digits_and_two_signs(market: Market, slug: str) -> None:
    body = {"targetUrl": market.target.url, "price": "0.01", "slug": slug}
    refused = await market.ask("POST", "/api/v1/paygates", body=body)
    assert (refused.status, refused.error_code) == (400, "INVALID_PARAMETER")
