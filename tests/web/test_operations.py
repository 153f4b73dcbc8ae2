"""The operator's page on the admin address: it tells what is so, to this machine alone."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, expect

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.ports import free_port
from tests.web.browsing import window
from tests.web.test_page_safety import findings
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


async def test_an_operator_sees_nodes_signers_and_what_waits(
    embedded_chain: ChainUnderTest, tmp_path: Path, browser: Browser
) -> None:
    port = free_port()
    admin = f"http://127.0.0.1:{port}"
    async with (
        composed(embedded_chain.url, tmp_path / "own.db", metrics_address=("127.0.0.1", port)),
        Buyer(derive_wallets().buyer) as buyer,
    ):
        for scheme in ("light", "dark"):
            async with window(browser, color_scheme=scheme, viewport={"width": 320, "height": 640}) as shown:
                page = await shown.page()
                await page.goto(admin + "/ops")
                await expect(page.locator("main")).to_contain_text("Operations of this serve")
                nodes = page.get_by_role("region", name="Table: Nodes of the networks")
                await expect(nodes).to_contain_text("base-sepolia")
                await expect(nodes).to_contain_text("asked")
                await expect(page.get_by_role("region", name="Table: Purchases without")).to_contain_text("PARKED")
                assert await findings(page) == []
                assert await page.evaluate("document.documentElement.scrollWidth") == 320
                assert shown.faults == []
        for path in ("/ops", "/assets/x/app.css"):
            answer = await buyer.ask("GET", admin + path, headers={"Host": "evil.test"})
            assert (path, answer.status) == (path, 404)
        assert (await buyer.ask("POST", admin + "/ops")).status == 404
        assert (await buyer.ask("GET", admin + "/metrics", headers={"Host": "prometheus.test"})).status == 200
