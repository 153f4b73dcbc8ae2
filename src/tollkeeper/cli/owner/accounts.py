"""`tollkeeper login`, `logout` and `whoami`: which wallet's gates this machine's commands manage."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.cli.options import KeyFile, read_wallet_key
from tollkeeper.cli.output import EXIT_FAILED, refuse, tell
from tollkeeper.cli.owner.at_gateway import AsJson, Gateway, OwnerKey, at_gateway, gateway_url, show_json

if TYPE_CHECKING:
    from tollkeeper.client.gateway_account import GatewayAccount
    from tollkeeper.core.json_types import JsonObject


def login_command(
    *,
    gateway: Gateway = None,
    key_file: KeyFile = None,
    dashboard: Annotated[
        str | None, typer.Option("--app-url", help="The dashboard's URL, where it is not the gateway's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Log a wallet in at a gateway, and keep the login for the commands that follow.

    Without --key-file the wallet of your browser signs: the dashboard opens, and asks whether this program may log in.
    Commands without --gateway are for this gateway then.

    Example: tollkeeper login --key-file wallet.key --gateway https://gate.example.org
    """
    import asyncio

    from tollkeeper.client.logins import KeptLogins, log_in_by_browser, sign_in
    from tollkeeper.client.requests import RefusedError, open_session

    key = None if key_file is None else read_wallet_key(key_file)

    async def log_in() -> tuple[str, str]:
        url, kept = gateway_url(gateway), KeptLogins()
        async with open_session() as session:
            if key is None:
                answer = await log_in_by_browser(session, url, (dashboard or url).rstrip("/"), _open_page)
            else:
                answer = await sign_in(session, url, key)
        user = answer.get("user")
        wallet = key.address if key is not None else str(user.get("walletAddress") if isinstance(user, dict) else "")
        kept.keep(url, wallet, answer)
        return url, wallet

    try:
        url, wallet = asyncio.run(log_in())
    except RefusedError as error:
        refuse(str(error), code=EXIT_FAILED)
    if as_json:
        show_json({"gateway": url, "walletAddress": wallet})
    else:
        tell(f"{wallet} is logged in at {url}.")


def _open_page(page: str, code: str) -> None:
    """Show the dashboard's page in a browser, and how to open it where there is none."""
    import webbrowser

    tell(f"Let this program in on the page that opens, if it shows the same code: {code}", err=True)
    tell(f"  {page}", err=True)
    tell("No browser on this machine? Press Ctrl-C, and name the wallet's key by --key-file.", err=True)
    webbrowser.open(page)


def logout_command(*, gateway: Gateway = None, as_json: AsJson = False) -> None:
    """End the login at a gateway, there and on this machine.

    Example: tollkeeper logout
    """

    async def log_out(account: GatewayAccount) -> tuple[str, bool]:
        from tollkeeper.client.logins import KeptLogins

        if account.token is not None:
            await account.ask("POST", "/api/v1/auth/logout")
        KeptLogins().forget(account.url)
        return account.url, account.token is not None

    url, was_in = at_gateway(gateway, None, log_out)
    if as_json:
        show_json({"gateway": url, "loggedOut": was_in})
    else:
        tell(f"The login at {url} has ended." if was_in else f"There was no login at {url}.")


def whoami_command(*, gateway: Gateway = None, key_file: OwnerKey = None, as_json: AsJson = False) -> None:
    """Tell which wallet is logged in, and where.

    Example: tollkeeper whoami
    """

    async def ask(account: GatewayAccount) -> JsonObject:
        if account.token is None:
            refuse(f"nobody is logged in at {account.url}: run `tollkeeper login`", code=EXIT_FAILED)
        return {"gateway": account.url, **await account.ask("GET", "/api/v1/auth/me", has="walletAddress")}

    me = at_gateway(gateway, key_file, ask)
    if as_json:
        show_json(me)
    else:
        tell(f"{me['walletAddress']} at {me['gateway']}")
