"""What an owner reads of his sales, in a real browser: live, in lists, and one by one."""

from __future__ import annotations

import csv
import io
import json
import re

from playwright.async_api import Browser, expect

from tests.gateway.market import Market
from tests.web.browsing import window
from tests.web.owning import appeared, created, gate_of, logged_in, owner_wallet
from tests.web.test_page_safety import HOSTILE, findings
from tests.web.test_paywall import answering


async def test_a_sale_appears_live_and_is_followed_to_its_payment(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("watches"), viewport={"width": 320, "height": 640}) as shown:
        page = await logged_in(shown, market)
        gate = await gate_of(market, await created(page, market.target.url, Title=HOSTILE, Credits="3"))
        await page.goto(market.stack.gateway_url + "/app")
        for link in await page.get_by_role("navigation", name="Pages").get_by_role("link").all():
            await expect(link).to_be_in_viewport()
        await expect(page.locator("#feed-state")).to_have_text("Live", timeout=15_000)
        payment, _ = await market.buy(gate)
        sale = page.locator("#feed li")
        await expect(sale).to_contain_text("sold for 0.01 USDC", timeout=15_000)
        await market.pay(gate, payment)
        await expect(sale).to_have_count(2, timeout=15_000)
        await expect(sale.first).to_contain_text("served")
        await page.reload()
        await expect(sale).to_have_count(2)
        await expect(page.locator("#feed-state")).to_have_text("Live", timeout=15_000)
        await expect(page.get_by_role("img", name=re.compile("Revenue by PayGate: .*0.01"))).to_be_visible()
        assert await findings(page) == []
        await sale.last.get_by_role("link").click()
        await expect(page.locator("main")).to_contain_text("Settled and confirmed on the chain")
        await expect(page.get_by_role("img", name=re.compile("Payment verified.*Target asked"))).to_be_visible()
        assert await findings(page) == []
        await page.get_by_role("link", name=re.compile("^pur_")).click()
        await expect(page.locator("main")).to_contain_text("1 of 3 left")
        await expect(page.get_by_role("link", name=re.compile("^0x[0-9a-f]{64}$"))).to_be_visible()
        assert await findings(page) == []
        await page.locator("main dd").get_by_role("link", name=HOSTILE).click()
        await expect(page.locator("#did")).to_be_visible()
        await expect(page.get_by_role("img", name=re.compile("Paid calls by outcome: 2 served"))).to_be_visible()
        for path in (page.url, "/app", "/app/requests", "/app/payments"):
            await page.goto(path if "://" in path else market.stack.gateway_url + path)
            for details in await page.locator("summary").all():
                await details.click()
            assert (path, await findings(page)) == (path, [])
            assert (path, await page.evaluate("document.documentElement.scrollWidth")) == (path, 320)
        assert shown.faults == []


async def test_lists_have_the_same_filters_as_page_csv_and_json(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("accounts")) as shown:
        page = await logged_in(shown, market)
        url = market.stack.gateway_url
        good = await gate_of(market, await created(page, market.target.url, Title="=Good", Credits="2"))
        bad = await gate_of(market, await created(page, "http://127.0.0.1:9/", Title="Bad"))
        await market.buy(good)
        _, failed = await market.buy(bad)
        assert failed.status == 502
        rows = page.locator("tbody tr")
        await appeared(page, url + "/app/requests?outcome=failed")
        await expect(rows).to_contain_text("UPSTREAM_UNREACHABLE")
        await rows.get_by_role("link").first.click()
        await expect(page.locator("main")).to_contain_text("could not be connected to")
        await page.goto(url + "/app")
        await expect(page.locator(".warn")).to_contain_text("Bad: 1 failed calls within a day (UPSTREAM_UNREACHABLE)")
        await expect(page.locator("#feed")).to_contain_text("Bad: sold for 0.01 USDC, failed")
        payer = market.buyer.wallet.address
        for path, query, count in (
            ("payments", "", 2),
            ("payments", "?held=true", 1),
            ("payments", "?status=failed", 0),
            ("payments", f"?payer={payer}&status=paid", 2),
            ("payments", "?from=2020-01-01&to=2020-02-01", 0),
            ("requests", "?outcome=served", 1),
            ("requests", "?limit=1&outcome=challenged", 1),
            ("requests", f"?payer={payer}", 2),
        ):
            answer = await page.request.get(f"{url}/app/{path}.json{query}")
            assert (path, query, len((await answer.json())["data"])) == (path, query, count)
            text = await (await page.request.get(f"{url}/app/{path}.csv{query}")).text()
            assert (path, query, len(list(csv.DictReader(io.StringIO(text))))) == (path, query, count)
        text = await (await page.request.get(url + "/app/payments.csv")).text()
        assert {row["title"] for row in csv.DictReader(io.StringIO(text))} == {"'=Good", "Bad"}  # no formula
        for wrong in ("?outcome=none", "?payer=none", "?from=never", "?limit=0", "?paygate=x"):
            assert (await page.request.get(url + "/app/requests" + wrong)).status == 400


async def test_another_owner_s_requests_and_payments_are_not_there(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("sells here")) as shown:
        page = await logged_in(shown, market)
        url = market.stack.gateway_url
        link = await created(page, market.target.url)
        await market.buy(await gate_of(market, link))
        await expect(page.locator("main")).to_be_visible()
        await appeared(page, url + "/app/requests?outcome=served")
        request = json.loads(await (await page.request.get(url + "/app/requests.json?outcome=served")).text())["data"][
            0
        ]
        paths = (
            f"/app/requests/{request['requestId']}",
            f"/app/payments/{request['purchaseId']}",
            f"/app/paygates/{request['paygateId']}",
            f"/app/paygates/{request['paygateId']}/edit",
            f"/app/requests?paygate={request['paygateId']}",
            f"/app/payments.csv?paygate={request['paygateId']}",
        )
        assert [(await page.request.get(url + path)).status for path in paths] == [200] * 6
    async with window(browser, owner_wallet("looks elsewhere")) as shown:
        page = await logged_in(shown, market)
        assert [(await page.request.get(url + path)).status for path in paths] == [404, 404, 403, 403, 403, 403]
        assert (await (await page.request.get(url + "/app/payments.json")).json())["data"] == []


async def test_the_feed_goes_on_behind_the_event_that_was_seen_last(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("resumes")) as shown:
        page = await logged_in(shown, market)
        gate = await gate_of(market, await created(page, market.target.url, Credits="3"))
        payment, _ = await market.buy(gate)
        await market.pay(gate, payment)
        await page.goto(market.stack.gateway_url + "/app")
        read = """async ([last, many]) => {
            const abort = new AbortController(), found = [];
            const headers = last ? {'Last-Event-ID': last} : {};
            const answer = await fetch('/app/events?since=1', {headers, signal: abort.signal});
            const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
            let text = '';
            while (found.length < many) {
                text += (await reader.read()).value;
                found.splice(0, found.length, ...[...text.matchAll(/^id: (.*)$/gm)].map((one) => one[1]));
            }
            abort.abort();
            return found;
        }"""
        first, second = await page.evaluate(read, ["", 2])
        assert await page.evaluate(read, [first, 1]) == [second]
        market.target.answer = answering(b"no", "text/plain", "500 Broken")
        await market.pay(gate, payment)
        [third] = await page.evaluate(read, [second, 1])
        assert third not in {first, second}
