"""A person's whole way through the paywall with a wallet on EVM, in a real browser."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer
from tests.web.browsing import EvmWallet, Window, window
from tollkeeper.sandbox.wallets import derive_wallets

IN_A_BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "User-Agent": "Mozilla/5.0 (X11; Linux)"}
BYTES_MAX = 15 * 1024
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db0"
    "0000000049454e44ae426082"
)


def answering(content: bytes, media_type: str, status: str = "200 OK", extra: str = "") -> Any:
    """A target that answers with this."""

    async def answer(_request: Received, writer: Writer) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\n{extra}content-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    return answer


async def opened(shown: Window, gate: dict[str, Any], path: str = "") -> Page:
    """The gate's page, once it is ready."""
    page = await shown.page()
    await page.goto(gate["accessUrl"] + path)
    return page


async def bought(shown: Window, gate: dict[str, Any]) -> Page:
    """The gate's page, once its result is there."""
    page = await opened(shown, gate)
    await page.get_by_role("button", name="with Test Wallet").click()
    await expect(page.locator("#result")).to_be_visible(timeout=30_000)
    return page


async def test_a_person_sees_what_is_sold_pays_and_spends_the_credits(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    gate = await market.gate(title="Weather", description="Of every town", price="0.25", credits=3)
    before = market.stack.balance_micro(wallet.wallet.address)
    async with window(browser, wallet) as shown:
        page = await opened(shown, gate, "?city=Oslo")
        for text in ("Weather", "Of every town", "0.25 USDC", "3 calls", "Base Sepolia (test money)"):
            await expect(page.locator("main")).to_contain_text(text)
        await page.get_by_role("button", name="Pay 0.25 USDC with Test Wallet").click()
        await expect(page.locator("#result")).to_contain_text('"served": true', timeout=30_000)
        await expect(page.locator("#credits")).to_have_text("2 of 3 credits left.")
        link = page.locator("#receipt a")
        transaction = await link.inner_text()
        assert re.fullmatch("0x[0-9a-f]{64}", transaction)
        assert await link.get_attribute("href") == f"https://sepolia.basescan.org/tx/{transaction}"
        for left in (1, 0):
            await page.get_by_role("button", name="Call again").click()
            await expect(page.locator("#credits")).to_have_text(f"{left} of 3 credits left.")
        await expect(page.get_by_role("button", name="Call again")).to_be_hidden()
        await page.get_by_role("button", name="Pay 0.25 USDC with Test Wallet").click()
        await expect(page.locator("#credits")).to_have_text("2 of 3 credits left.", timeout=30_000)
        assert shown.faults == ["Failed to load resource: the server responded with a status of 402 (Payment Required)"]
    assert wallet.asked.count("eth_signTypedData_v4") == 2
    assert market.stack.balance_micro(wallet.wallet.address) == before - 500_000
    assert [one.path for one in market.target.requests] == ["/?city=Oslo"] * 4


async def test_credits_are_kept_for_the_next_visit(market: Market, browser: Browser, wallet: EvmWallet) -> None:
    gate = await market.gate(credits=5)
    async with window(browser, wallet) as shown:
        page = await bought(shown, gate)
        await page.reload()
        await expect(page.locator("#credits")).to_have_text("4 of 5 credits left.")
        await expect(page.locator("#wallets")).to_be_hidden()
        await page.get_by_role("button", name="Call again").click()
        await expect(page.locator("#credits")).to_have_text("3 of 5 credits left.")
    assert wallet.asked.count("eth_signTypedData_v4") == 1


async def test_an_answer_is_shown_by_its_kind(market: Market, browser: Browser, wallet: EvmWallet) -> None:
    html = b"<h1>Hello</h1><script>parent.document.title = 'stolen'</script>"
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><script>parent.x=1</script></svg>"
    binary = bytes(range(256)) * 9
    gate = await market.gate(credits=9)
    market.target.answer = answering(b"a plain\ntext", "text/plain")
    async with window(browser, wallet) as shown:
        page = await bought(shown, gate)
        body = page.locator("#body")
        await expect(body.locator("pre")).to_have_text("a plain\ntext")

        async def again(content: bytes, media_type: str) -> None:
            market.target.answer = answering(content, media_type)
            left = int((await page.locator("#credits").inner_text()).split()[0])
            await page.get_by_role("button", name="Call again").click()
            await expect(page.locator("#credits")).to_contain_text(f"{left - 1} of")

        await again(html, "text/html; charset=utf-8")
        frame = body.locator("iframe")
        assert await frame.get_attribute("sandbox") == ""
        await expect(page.frame_locator("#body iframe").locator("h1")).to_have_text("Hello")
        assert "stolen" not in await page.title()
        await again(PNG, "image/png")
        await expect(body.locator("img")).to_have_js_property("naturalWidth", 1)
        await again(svg, "image/svg+xml")
        await expect(body.locator("img")).to_have_js_property("naturalWidth", 9)
        await again(b"%PDF-1.4\n%%EOF", "application/pdf")
        assert str(await body.locator("iframe").get_attribute("src")).startswith("blob:")
        await again(binary, "application/octet-stream")
        await expect(body).to_contain_text("2,304 bytes")
        await expect(body).to_contain_text(hashlib.sha256(binary).hexdigest())
        async with page.expect_download() as saving:
            await body.get_by_role("link", name="Save").click()
        assert (await (await saving.value).path()).read_bytes() == binary
        await again(b"", "application/octet-stream")
        await expect(body).to_have_text("The answer is empty.")


async def test_a_bought_file_is_downloaded_with_its_size_and_digest(
    market: Market, browser: Browser, wallet: EvmWallet
) -> None:
    content = b"%PDF-1.4 a report" * 99
    form = aiohttp.FormData({"price": "0.02", "resourceType": "file", "title": "Report"})
    form.add_field("file", content, filename="report.pdf", content_type="application/pdf")
    bearer = await market.buyer.login(market.stack.gateway_url)
    answer = await market.ask("POST", "/api/v1/paygates", form=form, headers={"Authorization": f"Bearer {bearer}"})
    assert answer.status == 201, answer.body
    gate = answer.json()
    wallet.wallet = derive_wallets().second_buyer
    async with window(browser, wallet) as shown:
        page = await opened(shown, gate)
        await expect(page.locator("main")).to_contain_text("report.pdf (1,683 bytes, application/pdf)")
        await page.get_by_role("button", name="with Test Wallet").click()
        body = page.locator("#body")
        await expect(body).to_contain_text(hashlib.sha256(content).hexdigest(), timeout=30_000)
        await expect(body).to_contain_text("1,683 bytes")
        async with page.expect_download() as saving:
            await body.get_by_role("link", name="Download report.pdf").click()
        assert (await (await saving.value).path()).read_bytes() == content


@pytest.mark.parametrize(
    "headers",
    [
        {"Accept": "*/*", "User-Agent": "Mozilla/5.0"},
        {"Accept": "text/html", "User-Agent": "curl/8"},
        {"Accept": "application/json", "User-Agent": "Mozilla/5.0"},
        {**IN_A_BROWSER, "X-Payment": "nonsense"},
        {**IN_A_BROWSER, "Payment-Signature": "nonsense"},
    ],
)
async def test_whoever_is_no_person_at_a_browser_gets_json(market: Market, headers: dict[str, str]) -> None:
    answer = await market.ask("GET", (await market.gate())["accessUrl"], headers=headers)
    assert (answer.status, answer.headers["content-type"]) == (402, "application/json")
    assert answer.json()["accepts"]


async def test_a_page_has_the_status_and_the_headers_of_its_402(market: Market) -> None:
    gate = await market.gate()
    plain = await market.ask("GET", gate["accessUrl"])
    page = await market.ask("GET", gate["accessUrl"], headers=IN_A_BROWSER)
    own = {"content-type", "content-length", "date", "x-request-id", "ratelimit"}
    assert page.status == 402
    assert {name: value for name, value in page.headers.items() if name in plain.headers and name not in own} == {
        name: value for name, value in plain.headers.items() if name not in own
    }
    assert page.headers["content-type"] == "text/html; charset=utf-8"


async def test_a_page_shows_what_its_gate_asks_for_by_now(market: Market) -> None:
    gate = await market.gate(price="0.01")
    first = await market.ask("GET", gate["accessUrl"], headers=IN_A_BROWSER)
    assert (await market.ask("GET", gate["accessUrl"], headers=IN_A_BROWSER)).body == first.body
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"price": "0.07"})
    assert b"0.07 USDC" in (await market.ask("GET", gate["accessUrl"], headers=IN_A_BROWSER)).body


async def test_a_page_is_at_most_15_kilobytes_in_all(
    market: Market, browser: Browser, wallet: EvmWallet, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = await market.gate(
        title="Weather of every town",
        description="Temperature, wind and rain, each hour. " * 5,
        accepts=[{"network": "solana-devnet", "paymentAddress": market.stack.solana.pay_to}],
    )
    async with window(browser, wallet) as shown:
        page = await shown.page()
        wire = await shown.context.new_cdp_session(page)
        await wire.send("Network.enable")
        sizes: list[int] = []
        wire.on("Network.loadingFinished", lambda told: sizes.append(int(told["encodedDataLength"])))
        await page.goto(gate["accessUrl"], wait_until="networkidle")
        await expect(page.get_by_role("button", name="with Test Wallet")).to_be_visible()
        paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    told = f"paywall: {sum(sizes)} bytes over the wire in {len(sizes)} answers, first paint after {paint:.0f} ms"
    with capsys.disabled():
        sys.stdout.write(f"\n{told}\n")
    assert len(sizes) >= 5
    assert sum(sizes) <= BYTES_MAX


def test_a_start_loads_no_engine_of_templates() -> None:
    imports = "import sys, tollkeeper.serving.composition, tollkeeper.gateway.app, tollkeeper.web.paywall"
    told = subprocess.run([sys.executable, "-c", f"{imports}; print('jinja2' in sys.modules)"], stdout=-1, check=True)
    assert told.stdout.strip() == b"False"
