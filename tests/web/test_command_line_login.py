"""`tollkeeper login` without a key: the wallet of a real browser lets the command line in."""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Browser, expect

from tests.cli.processes import clean_environment, command
from tests.gateway.market import Market
from tests.web.browsing import window
from tests.web.owning import logged_in, owner_wallet
from tollkeeper.sandbox.wallets import derive_wallet


async def test_the_command_line_logs_in_by_the_wallet_of_a_browser(
    market: Market, browser: Browser, tmp_path: Path
) -> None:
    environ = clean_environment({"XDG_STATE_HOME": str(tmp_path), "BROWSER": "true"})
    gateway = market.stack.gateway_url
    login = await asyncio.create_subprocess_exec(
        *command("login", "--gateway", gateway),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert login.stderr is not None
        code, page_url = [(await login.stderr.readline()).decode().split()[-1] for _ in range(2)]
        async with window(browser, owner_wallet("command line")) as shown:
            page = await logged_in(shown, market, page_url.removeprefix(f"{gateway}/app"))
            await expect(page.locator("main")).to_contain_text(code)
            await page.get_by_role("button", name="It is the same").click()
            await expect(page.locator("body")).to_contain_text("You can close this page")
        said, wrote = await asyncio.wait_for(login.communicate(), 60)
    finally:
        if login.returncode is None:
            login.kill()
    assert login.returncode == 0, wrote.decode()
    wallet = derive_wallet("command line").key.address
    assert said.decode() == f"{wallet} is logged in at {gateway}.\n"
    who = await asyncio.create_subprocess_exec(*command("whoami"), env=environ, stdout=asyncio.subprocess.PIPE)
    assert (await who.communicate())[0].decode() == f"{wallet} at {gateway}\n"
