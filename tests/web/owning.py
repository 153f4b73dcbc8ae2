"""An owner at the dashboard, in a real browser."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from playwright.async_api import Page, expect

from tests.gateway.market import Market
from tests.web.browsing import EvmWallet, Window
from tollkeeper.sandbox.wallets import derive_wallet


def owner_wallet(name: str) -> EvmWallet:
    """A wallet that nobody else in the tests has, so that its lists hold what its test made."""
    return EvmWallet(derive_wallet(name))


async def logged_in(shown: Window, market: Market, path: str = "/paygates") -> Page:
    """The dashboard's page of that path, behind a login with the window's wallet."""
    page = await shown.page()
    await page.goto(f"{market.stack.gateway_url}/app{path}")
    await page.get_by_role("button", name=re.compile("Log in with Test")).click()
    await expect(page.get_by_role("button", name="Log out")).to_be_visible(timeout=30_000)
    return page


async def created(page: Page, target_url: str, **fields: str) -> str:
    """Make a PayGate by its form. Return its public link."""
    await page.goto(re.sub("/app.*", "/app/paygates/new", page.url))
    await page.get_by_label("Target URL").fill(target_url)
    for label, text in fields.items():
        await page.get_by_label(label, exact=True).fill(text)
    await page.get_by_role("button", name="Create the PayGate").click()
    link = page.get_by_role("link", name=re.compile("^http"))
    await expect(link).to_be_visible(timeout=30_000)
    return await link.inner_text()


async def gate_of(market: Market, url: str) -> dict[str, Any]:
    """What a buyer needs to know of a PayGate."""
    answer = await market.ask("GET", url)
    assert answer.status == 402, answer.body
    return {"accessUrl": url, "method": "GET"}


async def appeared(page: Page, url: str) -> None:
    """Open a list again until it has a row; rows of the log are written off the hot path."""
    deadline = time.monotonic() + 30
    await page.goto(url)
    while await page.locator("tbody tr").count() == 0:
        assert time.monotonic() < deadline, f"nothing appeared at {url}"
        await asyncio.sleep(0.2)
        await page.goto(url)
