"""`tollkeeper login`, `logout` and `whoami`: which wallet's gates this machine's commands manage."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.cli.at_gateway import AsJson, Gateway, OwnerKey, at_gateway, gateway_url, show_json
from tollkeeper.cli.options import KeyFile, read_wallet_key
from tollkeeper.cli.output import EXIT_FAILED, refuse, tell

if TYPE_CHECKING:
    from typing import Any

    from tollkeeper.client.gateway_account import GatewayAccount


def login_command(*, gateway: Gateway = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Log a wallet in at a gateway, and keep the login for the commands that follow.

    Commands without --gateway are for this gateway then.

    Example: tollkeeper login --key-file wallet.key --gateway https://gate.example.org
    """
    import asyncio

    from tollkeeper.client.logins import KeptLogins, sign_in
    from tollkeeper.client.requests import RefusedError, open_session

    if key_file is None:
        refuse("name the wallet's key by --key-file", code=2)
    key = read_wallet_key(key_file)

    async def log_in() -> str:
        url = gateway_url(gateway)
        async with open_session() as session:
            KeptLogins().keep(url, key.address, await sign_in(session, url, key))
        return url

    try:
        url = asyncio.run(log_in())
    except RefusedError as error:
        refuse(str(error), code=EXIT_FAILED)
    if as_json:
        show_json({"gateway": url, "walletAddress": key.address})
    else:
        tell(f"{key.address} is logged in at {url}.")


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

    async def ask(account: GatewayAccount) -> dict[str, Any]:
        if account.token is None:
            refuse(f"nobody is logged in at {account.url}: run `tollkeeper login`", code=EXIT_FAILED)
        return {"gateway": account.url, **await account.ask("GET", "/api/v1/auth/me", has="walletAddress")}

    me = at_gateway(gateway, key_file, ask)
    if as_json:
        show_json(me)
    else:
        tell(f"{me['walletAddress']} at {me['gateway']}")
