"""The login endpoints on a real socket, with wallets that sign."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from litestar import Litestar
from litestar.types import Receive, Scope, Send
from solders.keypair import Keypair
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tollkeeper.api import Shell, refused
from tollkeeper.auth import Auth, TrustedIssuers, auth_routes
from tollkeeper.core.evm.encoding import address_of_key, checksum_address, personal_message_digest, sign_digest
from tollkeeper.storage.engine.database import Database

PUBLIC_URL = "https://gate.example:8402"
START_MS = 1_750_000_000_123
KEYRING = [("key-1", bytes(range(32)))]


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    now_ms: int = START_MS

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


@dataclass(frozen=True)
class Wallet:
    """A key of an externally owned account."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    @property
    def address(self) -> str:
        return checksum_address(address_of_key(self.key))

    def sign(self, message: str) -> str:
        return "0x" + sign_digest(personal_message_digest(message.encode()), self.key).hex()


@dataclass(frozen=True)
class SolanaWallet:
    """A key of a Solana account."""

    pair: Keypair = field(default_factory=Keypair)

    @property
    def address(self) -> str:
        return str(self.pair.pubkey())

    def sign(self, message: str) -> str:
        return str(self.pair.sign_message(message.encode()))

    def sign_base64(self, message: str) -> str:
        return base64.b64encode(bytes(self.pair.sign_message(message.encode()))).decode()


def issuer(
    database: Database,
    clock: Callable[[], int],
    *,
    public_url: str = PUBLIC_URL,
    keyring: list[tuple[str, bytes]] = KEYRING,
    trusted: TrustedIssuers | None = None,
) -> Auth:
    """An issuer on `database` with a clock of the test's."""
    return Auth(database, keyring, public_url, clock, os.urandom, trusted=trusted)


@dataclass
class Client:
    """A client of one running server."""

    http: aiohttp.ClientSession
    base: str
    paths: list[str]

    async def send(
        self,
        method: str,
        path: str,
        **options: Any,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON body of one call."""
        async with self.http.request(method, self.base + path, **options) as response:
            return response.status, await response.json()

    async def login(self, wallet: Wallet | SolanaWallet) -> dict[str, Any]:
        """The body of a whole login."""
        _, body = await self.send("GET", "/api/v1/auth/message", params={"walletAddress": wallet.address})
        proof = {"message": body["message"], "signature": wallet.sign(body["message"])}
        status, body = await self.send("POST", "/api/v1/auth/login", json=proof)
        assert status == 200, body
        return body


def bearer(token: str) -> dict[str, str]:
    """The header that carries an access token."""
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def serving(auth: Auth, port: int = 0) -> AsyncIterator[Client]:
    """Serve the login endpoints of `auth` on a port of the loopback, by default a free one."""
    app = Shell(Litestar(auth_routes(auth), exception_handlers={Exception: refused}))
    paths: list[str] = []

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await app(scope, receive, send)

    # A busy machine may sign and import for long between two requests of one connection.
    config = uvicorn.Config(counted, log_level="warning", timeout_keep_alive=60)
    config.load()
    state = ServerState()  # the protocol alone: `uvicorn.Server` takes 0.2 s to notice that it should stop
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", port, backlog=512
    )
    port = server.sockets[0].getsockname()[1]
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield Client(http, f"http://127.0.0.1:{port}", paths)
    finally:
        server.close()
        for connection in list(state.connections):  # whose ends have not been seen yet
            connection.transport.close()
        await server.wait_closed()
        await asyncio.sleep(0)  # they are closed by then
