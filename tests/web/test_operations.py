"""The operator's page on the admin address: it tells what is so, to this machine alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
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
                await expect(page.locator("main")).to_contain_text("Operations of this program (serve)")
                nodes = page.get_by_role("region", name="Table: Nodes of the networks")
                await expect(nodes).to_contain_text("base-sepolia")
                await expect(nodes).to_contain_text("asked")
                await expect(page.get_by_role("region", name="Table: Purchases without")).to_contain_text("PARKED")
                keys = page.get_by_role("region", name="Table: Keys")
                await expect(keys).to_contain_text("sealed values (encryption_keys)")
                doctor = page.get_by_role("region", name="Table: What doctor finds")
                await expect(doctor.locator("tbody tr").first).to_be_visible()
                assert await findings(page) == []
                assert await page.evaluate("document.documentElement.scrollWidth") == 320
                assert shown.faults == []
        for path in ("/ops", "/assets/x/app.css"):
            answer = await buyer.ask("GET", admin + path, headers={"Host": "evil.test"})
            assert (path, answer.status) == (path, 404)
        assert (await buyer.ask("POST", admin + "/ops")).status == 404
        assert (await buyer.ask("GET", admin + "/metrics", headers={"Host": "prometheus.test"})).status == 200


async def test_a_parked_payment_is_told_with_the_command_that_grants_it(
    embedded_chain: ChainUnderTest, tmp_path: Path, browser: Browser
) -> None:
    port = free_port()
    database = tmp_path / "own.db"
    async with (
        composed(embedded_chain.url, database, metrics_address=("127.0.0.1", port)) as url,
        Buyer(derive_wallets().buyer) as buyer,
        window(browser, viewport={"width": 320, "height": 640}) as shown,
    ):
        body = {"targetUrl": "http://127.0.0.1:9/", "price": "0.01", "slug": "parked-here"}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        for _ in range(2):
            paid = await buyer.ask(
                "GET", gate["accessUrl"], headers=buyer.take(await buyer.ask("GET", gate["accessUrl"]))
            )
            assert paid.error_code == "UPSTREAM_UNREACHABLE"
        with closing(sqlite3.connect(database)) as rows, rows:
            (known, nonce), (unknown, other) = rows.execute("SELECT number, nonce FROM purchases").fetchall()
            rows.execute("UPDATE purchases SET state = 'PARKED', failure = 'outcome_unknown'")
            rows.execute("UPDATE purchases SET transaction_hash = NULL WHERE number = ?", (unknown,))
            (transaction,) = rows.execute(
                "SELECT transaction_hash FROM purchases WHERE number = ?", (known,)
            ).fetchone()
        page = await shown.page()
        await page.goto(f"http://127.0.0.1:{port}/ops")
        waiting = page.get_by_role("region", name="Table: Payments that wait for you")
        await expect(waiting).to_contain_text(f"tollkeeper payments honour {transaction} --gate parked-here")
        await expect(waiting).to_contain_text(
            f"tollkeeper payments honour TRANSACTION --gate parked-here --nonce {other}"
        )
        await expect(waiting).not_to_contain_text(nonce)
        await expect(page.locator("main")).not_to_contain_text("`")
        assert await findings(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == 320


async def test_a_name_that_leads_here_and_a_form_get_nothing(embedded_chain: ChainUnderTest, tmp_path: Path) -> None:
    port = free_port()
    admin = f"http://127.0.0.1:{port}"
    async with (
        composed(embedded_chain.url, tmp_path / "own.db", metrics_address=("127.0.0.1", port)),
        Buyer(derive_wallets().buyer) as buyer,
    ):
        for host in ("evil.test", f"evil.test:{port}", "127.0.0.1.evil.test", "localhost.evil.test"):
            answer = await buyer.ask("GET", admin + "/ops", headers={"Host": host})
            assert (host, answer.status, answer.error_code) == (host, 404, "NOT_FOUND")
        for host in (f"127.0.0.1:{port}", "localhost", "[::1]"):
            assert (await buyer.ask("GET", admin + "/ops", headers={"Host": host})).status == 200
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await buyer.ask(method, admin + "/ops")).status == 404
        policy = (await buyer.ask("GET", admin + "/ops")).headers["content-security-policy"]
        for rule in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'none'"):
            assert rule in policy
