"""Logins of a wallet at a gateway or hub: one by a key, and one that this machine keeps from `login` to `logout`.

An access token is good for 15 minutes, a refresh token for seven days and once. So a kept login is refreshed under a
lock, and the new pair is written before it is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
from yarl import URL

from tollkeeper.client.requests import RefusedError, ask, require_unheard
from tollkeeper.client.state_folder import locked, open_folder, read_state, write_state
from tollkeeper.core.keys.handover import challenge_of
from tollkeeper.core.keys.siwe import login_chains, read_message
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.wallets import parse_wallet

if TYPE_CHECKING:
    from collections.abc import Callable
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


# A login by the wallet of a browser on this machine, without a key here (contract 11).
# 1. This program makes a secret, listens on a port of the loopback address, and opens the dashboard's page with the
#    secret's hash, the port, and a short code that it shows as well.
# 2. The user compares the codes there and lets the program in. The browser comes to the port with a one-time code.
# 3. The program shows the one-time code and the secret to the gateway, and gets a login of its own.
# So a stranger's link logs nobody in, and a one-time code alone is worth nothing.

_HOST: Final = "127.0.0.1"
_SECONDS: Final = 300
_HEAD_MAX_BYTES: Final = 16_384
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ23456789"  # none that is taken for another, and no words
_DONE: Final = "You can close this page: the command line goes on.\n"
_NOTHING: Final = "There is nothing here.\n"


async def log_in_by_browser(
    session: aiohttp.ClientSession, server: str, dashboard: str, open_page: Callable[[str, str], None]
) -> JsonObject:
    """Return the gateway's answer to a login that a browser let in.

    `open_page` is told the page's URL and the code that both sides show. Raises: RefusedError.
    """
    require_unheard(server)
    require_unheard(dashboard)
    verifier = secrets.token_urlsafe(32)
    shown = "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(2))
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    listener = await asyncio.start_server(
        lambda reader, writer: _answer(reader, writer, told), _HOST, 0, limit=_HEAD_MAX_BYTES
    )
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        query = {"port": port, "code": shown, "challenge": challenge_of(verifier)}
        open_page(f"{dashboard}/app/terminal?{urlencode(query)}", shown)
        try:
            async with asyncio.timeout(_SECONDS):
                code = await told
        except TimeoutError:
            raise RefusedError(f"nobody let this program in within {_SECONDS // 60} minutes: run it again") from None
    proof = {"code": code, "verifier": verifier, "port": port}
    return await ask(session, "POST", f"{server}/api/v1/auth/handover", has="accessToken", json=proof)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: asyncio.Future[str]) -> None:
    """Take the one-time code from the browser's request, and from nothing else that asks at this port."""
    try:
        async with asyncio.timeout(10):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, *_ = head.split(" ", 2)
        parts = urlsplit(target)
        code = parse_qs(parts.query).get("code", [""])[0]
        is_code = method == "GET" and parts.path == "/" and bool(code)
        status, text = ("200 OK", _DONE) if is_code else ("404 Not Found", _NOTHING)
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n"
            f"Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()
        if is_code and not told.done():
            told.set_result(code)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # whoever it was, the browser comes again
    finally:
        writer.close()
