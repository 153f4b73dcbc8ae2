"""Nobody but its owner reads or changes anything through the dashboard, whatever a stranger's page or gate does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.gateway.market import Market
from tests.web.browsing import window
from tests.web.owning import created, logged_in, owner_wallet
from tests.web.test_paywall import answering

# What a hostile page tries, from whatever origin it got.
ATTACK = """
<!doctype html><title>hostile</title><h1>hostile</h1>
<script>
  const tell = (what) => { document.title += ' ' + what; };
  fetch('/app/paygates.json', {credentials: 'include'}).then((one) => one.text())
    .then((text) => tell(text.includes('accessUrl') ? 'READ' : 'nothing'), () => tell('nothing'));
  navigator.serviceWorker?.register('/SLUG', {scope: '/app'}).then(() => tell('WORKER'), () => tell('none'));
  try {
    document.cookie = 'tollkeeper_session=stolen; path=/app';
    tell(document.cookie ? 'COOKIE' : 'no');
  } catch { tell('no'); }
</script>
"""


async def test_a_hostile_target_reads_and_changes_nothing_of_the_dashboard(market: Market, browser: Browser) -> None:
    gate = await market.gate(credits=9)
    for kind in ("text/html", "image/svg+xml", "text/javascript"):
        html = ATTACK.replace("SLUG", gate["slug"])
        content = html if kind == "text/html" else f"<svg xmlns='http://www.w3.org/2000/svg'>{html}</svg>"
        market.target.answer = answering(content.encode(), kind, extra="Service-Worker-Allowed: /\r\n")
        async with window(browser, owner_wallet("victim")) as shown:
            page = await logged_in(shown, market)
            _, bought = await market.buy(gate)
            await page.context.set_extra_http_headers({"X-Credit-Token": bought.headers["x-credit-token"]})
            answer = await page.goto(gate["accessUrl"])
            assert answer is not None
            assert answer.status == 200
            await page.wait_for_load_state("networkidle")
            for word in ("READ", "WORKER", "COOKIE"):
                assert word not in await page.title()
            await page.goto(market.stack.gateway_url + "/app/paygates")
            await expect(page.get_by_role("button", name="Log out")).to_be_visible()


async def posted(page: Page, url: str, fields: dict[str, str]) -> None:
    """Send a form to the URL from whatever page is open."""
    await page.evaluate(
        """([url, fields]) => {
            const form = Object.assign(document.createElement('form'), {action: url, method: 'post'});
            for (const [name, value] of Object.entries(fields)) {
                form.append(Object.assign(document.createElement('input'), {name, value}));
            }
            document.body.append(form); form.submit();
        }""",
        [url, fields],
    )


async def test_a_form_of_another_page_changes_nothing(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("forged")) as shown:
        page = await logged_in(shown, market)
        await created(page, market.target.url, Title="Kept")
        await page.get_by_role("link", name="To the PayGate").click()
        url = page.url
        token = await page.locator("input[name=csrf]").first.get_attribute("value")
        market.target.answer = answering(b"<title>other</title>", "text/html")
        other = await shown.page()
        await other.goto(market.target.url)  # the same site to cookies, and another origin
        await posted(other, url + "/delete", {"csrf": token or ""})
        await expect(other.locator("main")).to_contain_text("another web page")
        for wrong in ("", "0" * 32):
            await page.evaluate(
                "wrong => document.querySelectorAll('[name=csrf]').forEach((one) => { one.value = wrong; })", wrong
            )
            await page.get_by_role("button", name="Sell no more").click()
            await expect(page.locator("main")).to_contain_text("nothing was done")
            await page.goto(url)
        await expect(page.locator("main")).to_contain_text("Selling")


async def test_no_page_stands_in_a_frame_and_none_runs_another_s_script(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("framed")) as shown:
        page = await logged_in(shown, market)
        answer = await page.reload()
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        for rule in (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ):
            assert rule in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        market.target.answer = answering(f"<iframe src='{page.url}'></iframe>".encode(), "text/html")
        await page.goto(market.target.url)
        inside = page.frame_locator("iframe").locator("h1")
        await expect(inside).to_have_count(1)  # the browser's own, which says that it was refused
        await expect(inside).not_to_have_text("PayGates")


async def test_a_login_link_logs_nobody_in_and_leads_nowhere_else(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("linked")) as shown:
        for onward in (
            "//evil.test",
            "https://evil.test/app",
            "/\\evil.test",
            "javascript:alert(1)",
            "/../..//evil.test",
        ):
            page = await shown.page()
            await page.goto(f"{market.stack.gateway_url}/app/login?next={onward}&accessToken=x&session=x")
            await page.get_by_role("button", name="Log in with Test Wallet").click()
            await expect(page.get_by_role("button", name="Log out")).to_be_visible(timeout=30_000)
            assert page.url.startswith(market.stack.gateway_url + "/app")
            await page.get_by_role("button", name="Log out").click()
            await expect(page.locator("h1")).to_have_text("Log in with your wallet")


async def test_a_login_begins_a_session_of_its_own_and_a_logout_ends_it(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("fixed")) as shown:
        url = market.stack.gateway_url
        await shown.context.add_cookies(
            [
                {"name": name, "value": "planted", "url": url + "/app"}
                for name in ("tollkeeper_session", "tollkeeper_renewal")
            ]
        )
        page = await logged_in(shown, market)
        cookies: dict[str, Any] = {
            one["name"]: one for one in await shown.context.cookies(url + "/app") if one["path"] == "/app"
        }
        for name in ("tollkeeper_session", "tollkeeper_renewal"):
            assert cookies[name]["value"] != "planted"
            assert (cookies[name]["httpOnly"], cookies[name]["sameSite"], cookies[name]["path"]) == (
                True,
                "Strict",
                "/app",
            )
        assert cookies["tollkeeper_session"]["value"] not in await page.evaluate("document.cookie")
        await page.get_by_role("button", name="Log out").click()
        await expect(page.locator("h1")).to_have_text("Log in with your wallet")
        bearer = {"Authorization": "Bearer " + cookies["tollkeeper_session"]["value"]}
        assert (await market.ask("GET", "/api/v1/auth/me", headers=bearer)).status == 401
        await shown.context.add_cookies(list(cookies.values()))
        await page.goto(url + "/app/paygates")
        await expect(page.locator("h1")).to_have_text("Log in with your wallet")


async def test_a_session_goes_on_when_its_access_token_is_over(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("renews")) as shown:
        page = await logged_in(shown, market)
        await shown.context.clear_cookies(name="tollkeeper_session")
        await page.reload()
        await expect(page.locator("h1")).to_have_text("PayGates")


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test:80", ""])
async def test_a_name_that_was_led_here_gets_nothing(market: Market, host: str) -> None:
    answer = await market.ask("GET", "/app/login", headers={"Host": host or "evil.test:8402"})
    assert (answer.status, answer.error_code) == (404, "NOT_FOUND")


async def test_another_name_of_this_machine_leads_to_the_dashboard_s_own(market: Market, browser: Browser) -> None:
    async with window(browser) as shown:
        page = await shown.page()
        port = market.stack.gateway_url.rpartition(":")[2]
        await page.goto(f"http://localhost:{port}/app/login?next=/paygates")
        assert page.url == market.stack.gateway_url + "/app/login?next=/paygates"


async def test_a_stranger_s_page_logs_nobody_in(market: Market, browser: Browser) -> None:
    """Who is logged in as somebody else saves his gates, and his payment address, where that one reads them."""
    url, stranger = market.stack.gateway_url, owner_wallet("stranger")
    market.target.answer = answering(b"<title>other</title>", "text/html")
    async with window(browser) as shown:
        other, page = await shown.page(), await shown.page()
        asked = await page.request.get(f"{url}/app/login/message?walletAddress={stranger.wallet.key.address}")
        message = (await asked.json())["message"]
        signed = {"message": message, "signature": stranger.wallet.key.sign_text(message)}
        await other.goto(market.target.url)  # the same site to cookies, and another origin
        for media_type in ("text/plain", "application/json"):
            await other.evaluate(
                """([url, body, type]) => fetch(url, {method: 'POST', mode: type === 'text/plain' ? 'no-cors' : 'cors',
                    credentials: 'include', headers: {'Content-Type': type}, body}).catch(() => {})""",
                [url + "/app/login", json.dumps(signed), media_type],
            )
        await posted(other, url + "/app/login/test", {})
        await expect(other.locator("main")).to_contain_text("another web page")
        await page.goto(url + "/app/paygates")
        await expect(page.locator("h1")).to_have_text("Log in with your wallet")
        assert [one["name"] for one in await shown.context.cookies(url + "/app")] == []
        sent = await page.request.post(url + "/app/login", data=signed, headers={"Origin": url})
        assert sent.status == 200  # the signature was good: sent by the page itself it logs in


@pytest.mark.parametrize("path", ["/", "/docs", "/app/login", "/no-such-gate", "/app/terminal"])
async def test_no_page_of_ours_stands_in_a_frame(market: Market, browser: Browser, path: str) -> None:
    framed = f"<iframe src='{market.stack.gateway_url}{path}'></iframe>".encode()
    market.target.answer = answering(framed, "text/html")
    async with window(browser) as shown:
        page = await shown.page()
        await page.goto(market.target.url)
        inside = page.frame_locator("iframe").locator("body")
        await expect(inside).to_contain_text("refused to connect")  # the browser's own words
