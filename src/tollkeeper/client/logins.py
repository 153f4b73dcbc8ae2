"""Logins of a wallet at a gateway or hub: one by a key, and one that this machine keeps from `login` to `logout`.

An access token is good for 15 minutes, a refresh token for seven days and once. So a kept login is refreshed under a
lock, and the new pair is written before it is used.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from yarl import URL

from tollkeeper.client.requests import RefusedError, ask, require_unheard
from tollkeeper.client.state_folder import locked, open_folder, read_state, write_state
from tollkeeper.core.keys.siwe import login_chains, read_message
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.wallets import parse_wallet

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.keys.wallet_keys import WalletKey

_FOLDER: Final = "logins"
_CURRENT: Final = "current.json"
_FRESH_SECONDS: Final = 14 * 60  # of the 15 minutes of an access token


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLogin:
    """A login at the server with this URL."""

    server: str
    wallet: str
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    at_seconds: int


async def log_in(session: aiohttp.ClientSession, base_url: str, key: WalletKey) -> str:
    """Return an access token of the gateway or hub at `base_url` (specification 5.3). Raises: RefusedError."""
    token: str = (await sign_in(session, base_url, key))["accessToken"]
    return token


async def sign_in(session: aiohttp.ClientSession, base_url: str, key: WalletKey) -> JsonObject:
    """Return the answer to a login of this wallet at `base_url`. Raises: RefusedError."""
    base = require_unheard(base_url)
    asked = await ask(session, "GET", f"{base_url}/api/v1/auth/message?walletAddress={key.address}", has="message")
    _check_message(asked["message"], base, key)
    proof = {"message": asked["message"], "signature": key.sign_text(asked["message"])}
    return await ask(session, "POST", f"{base_url}/api/v1/auth/login", has="accessToken", json=proof)


def _check_message(text: object, base: URL, key: WalletKey) -> None:
    """Refuse to sign what is no login of this wallet at the server that was asked, but might be one elsewhere.

    Raises: RefusedError.
    """
    try:
        message = read_message(str(text))
        is_here = URL(message.public_url) == base.origin()
    except ValueError as error:
        raise RefusedError(
            f"{base} asks to sign something else than a login message ({error}), and nothing was signed"
        ) from None
    if not is_here:
        raise RefusedError(
            f"{base} asks to sign a login at {message.public_url}, and nothing was signed: a login is good there. If "
            "both are yours, use that URL, or set public_url"
        )
    chains = {login_chains([network])[key.family] for network in NETWORKS.values()}
    if message.wallet != parse_wallet(key.address) or message.chain not in chains:
        raise RefusedError(f"{base} asks to sign a login of another wallet or chain, and nothing was signed")


class KeptLogins:
    """The logins that this machine's user keeps, one for each server, and the server of the last one."""

    def __init__(self) -> None:
        """Raises: RefusedError where the folder cannot be made."""
        self._folder = open_folder(_FOLDER)

    def keep(self, server: str, wallet: str, answer: JsonMapping) -> None:
        """Keep a login by the server's answer to it. Raises: RefusedError."""
        tokens = (answer.get("accessToken"), answer.get("refreshToken"))
        if not all(isinstance(token, str) for token in tokens):
            raise RefusedError(f"{server} does not answer as a gateway does: is that one's URL?")
        access, refresh = map(str, tokens)
        now = int(time.time())
        login = KeptLogin(server=server, wallet=wallet, access_token=access, refresh_token=refresh, at_seconds=now)
        write_state(self._path(server), asdict(login))
        write_state(self._folder / _CURRENT, {"server": server})

    def find(self, server: str) -> KeptLogin | None:
        """Return the login at a server."""
        try:
            return msgspec.convert(read_state(self._path(server)), KeptLogin)
        except msgspec.ValidationError:
            return None

    def forget(self, server: str) -> None:
        """Keep the login at a server no longer."""
        self._path(server).unlink(missing_ok=True)

    @property
    def current_server(self) -> str | None:
        """The server of the last login; None once it has ended."""
        server = read_state(self._folder / _CURRENT).get("server")
        return server if isinstance(server, str) and self.find(server) else None

    async def access_token(self, session: aiohttp.ClientSession, server: str) -> str | None:
        """Return an access token of the login at a server, refreshed where it is old; None without a login.

        Raises: RefusedError where the login has ended.
        """
        with locked(self._folder):
            login = self.find(server)
            if login is None or time.time() < login.at_seconds + _FRESH_SECONDS:
                return None if login is None else login.access_token
            require_unheard(server)
            try:
                answer = await ask(
                    session, "POST", f"{server}/api/v1/auth/refresh", json={"refreshToken": login.refresh_token}
                )
            except RefusedError as error:
                if "INVALID_TOKEN" in str(error):
                    self.forget(server)
                    raise RefusedError(f"the login at {server} has ended: run `tollkeeper login` again") from error
                raise
            self.keep(server, login.wallet, answer)
            return str(answer["accessToken"])

    def _path(self, server: str) -> Path:
        return self._folder / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"
