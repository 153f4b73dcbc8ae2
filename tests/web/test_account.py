"""An owner's account: other logins end at once; a program logs in by the browser, and by no stranger's link."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Browser, Page, expect

from tests.gateway.market import Market
from tests.web.browsing import window
from tests.web.owning import logged_in, owner_wallet
from tests.web.test_page_safety import findings
from tollkeeper.core.keys.handover import challenge_of

VERIFIER = "what the program alone knows, for this one login"


async def waiting_program() -> tuple[asyncio.Server, int, asyncio.Future[str]]:
    """A program that waits at a port of its own for the code."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        if not told.done() and "code" in target:
            told.set_result(parse_qs(urlsplit(target).query)["code"][0])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1], told


async def taken_over(market: Market, code: str, verifier: str, port: int) -> Any:
    """What the API answers to the program."""
    return await market.ask("POST", "/api/v1/auth/handover", body={"code": code, "verifier": verifier, "port": port})


async def test_a_program_logs_in_by_the_browser_once_and_only_the_one_that_asked(
    market: Market, browser: Browser
) -> None:
    server, port, told = await waiting_program()
    async with server, window(browser, owner_wallet("terminal"), viewport={"width": 320, "height": 640}) as shown:
        page = await logged_in(
            shown, market, f"/terminal?port={port}&code=AB12-CD34&challenge={challenge_of(VERIFIER)}"
        )
        await expect(page.locator("main")).to_contain_text("AB12-CD34")
        assert await findings(page) == []
        assert not told.done()  # a link alone does nothing
        await page.get_by_role("button", name="It is the same").click()
        code = await asyncio.wait_for(told, 30)
        for verifier, where in (("another", port), (VERIFIER, port + 1)):
            assert (await taken_over(market, code, verifier, where)).status == 401
        first = await taken_over(market, code, VERIFIER, port)
        assert first.status == 200
        assert (await taken_over(market, code, VERIFIER, port)).status == 401
        assert (await taken_over(market, code[:-8] + "AAAAAAA=", VERIFIER, port)).status == 401
        bearer = {"Authorization": "Bearer " + first.json()["accessToken"]}
        assert (await market.ask("GET", "/api/v1/auth/me", headers=bearer)).status == 200
        await page.goto(market.stack.gateway_url + "/app/settings")
        assert await findings(page) == []
        await page.get_by_role("button", name="End the login").click()
        await expect(page.get_by_role("button", name="End the login")).to_have_count(0)
        assert (await market.ask("GET", "/api/v1/auth/me", headers=bearer)).status == 401
        await expect(page.get_by_role("button", name="Log out")).to_be_visible()


async def test_a_link_to_a_stranger_s_program_is_no_place_to_go(market: Market, browser: Browser) -> None:
    async with window(browser, owner_wallet("lured")) as shown:
        page: Page = await logged_in(shown, market)
        good = challenge_of(VERIFIER)
        for query in (
            f"port=99999&code=AB12&challenge={good}",
            f"port=1@evil.test&code=AB12&challenge={good}",
            f"port=80&code=<b>x</b>&challenge={good}",
            "port=80&code=AB12&challenge=short",
        ):
            answer = await page.goto(f"{market.stack.gateway_url}/app/terminal?{query}")
            assert answer is not None
            assert answer.status == 400
