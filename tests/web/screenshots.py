"""`make screenshots`: each page at 320, 768 and 1280 px, light and dark, of a sandbox in which a little was sold."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page

from tests.gateway.composed import composed
from tests.interop.stack import Stack, sandbox
from tests.ports import free_port
from tests.web.browsing import browsing, window
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

_WIDTHS: Final = (320, 768, 1280)
_SCHEMES: Final = ("light", "dark")


async def _sell(page: Page, url: str, target_url: str) -> str:
    """Make PayGates of the test owner, sell at one, and fail at another. Return the first one's path."""
    await page.goto(url + "/app/login")
    await page.get_by_role("button", name="Log in as the test owner").click()
    await page.wait_for_selector("#feed-state")
    paths = []
    for title, target, price in (("Weather", target_url, "0.01"), ("Broken", "http://127.0.0.1:9/", "0.25")):
        await page.goto(url + "/app/paygates/new")
        await page.get_by_label("Target URL").fill(target)
        await page.get_by_label("Title").fill(title)
        await page.get_by_label("Description").fill("A forecast of every town, each hour.")
        await page.get_by_label("Price in USDC").fill(price)
        await page.get_by_label("Credits", exact=True).fill("5")
        await page.get_by_role("button", name="Create the PayGate").click()
        await page.get_by_role("link", name="To the PayGate").click()
        await page.wait_for_selector("#did")
        path = page.url.removeprefix(url)
        paths.append(path)
        for _ in range(2):
            await page.get_by_role("button", name="Pay as the test buyer").click()
            await page.get_by_role("link", name="To the PayGate").click()
            await page.wait_for_selector("#did")
    return paths[0]


async def _shoot(stack: Stack, home: Path, folder: Path) -> None:
    url, target_url, admin = stack.gateway_url, stack.target_url, ("127.0.0.1", free_port())
    async with (
        browsing() as browser,
        Buyer(derive_wallets().buyer) as buyer,
        composed(stack.rpc_url, home / "ops.db", metrics_address=admin),
    ):
        body = {"targetUrl": target_url, "price": "0.01", "credits": 3, "title": "Nobody's own", "slug": "forecast"}
        await buyer.ask("POST", url + "/api/v1/paygates", body=body)
        state: Any = None
        gate = ""
        async with window(browser) as first:
            gate = await _sell(await first.page(), url, target_url)
            page = await first.page()
            await page.goto(url + "/app/requests?outcome=served")
            request = await page.locator("tbody a").first.get_attribute("href") or ""
            await page.goto(url + "/app/payments")
            payment = await page.locator("tbody a").first.get_attribute("href") or ""
            state = await first.context.storage_state()
        paths = ["/", "/forecast", "/no-such-gate", "/docs", "/app", "/app/paygates", "/app/paygates/new", gate]
        paths += [gate + "/edit", gate + "/delete", "/app/requests", request, "/app/payments", payment, "/app/settings"]
        for scheme in _SCHEMES:
            for width in _WIDTHS:
                options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
                async with window(browser, storage_state=state, **options) as shown:
                    page = await shown.page()
                    for path in paths:
                        await page.goto(url + path)
                        name = path.strip("/").replace("/", "-").split("?")[0] or "home"
                        name = "request" if path == request else "payment" if path == payment else name
                        await page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
                    await page.goto("http://{}:{}/ops".format(*admin))
                    await page.screenshot(path=folder / f"ops-{width}-{scheme}.png", full_page=True)


def main() -> None:
    """Make the pictures in the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sandbox(Path(home) / "log.txt") as stack:
        asyncio.run(_shoot(stack, Path(home), folder))
    sys.stdout.write(f"{len(list(folder.glob('*.png')))} pictures are in {folder}\n")


if __name__ == "__main__":
    main()
