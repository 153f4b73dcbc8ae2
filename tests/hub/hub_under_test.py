"""A hub on a real socket in front of a real node, and payments to bring to it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tollkeeper.api import clock_ms
from tollkeeper.auth import Auth
from tollkeeper.chains.evm.config import EvmConfig
from tollkeeper.core.evm.encoding import Authorization, authorization_digest, personal_message_digest, sign_digest
from tollkeeper.core.http.client_addresses import ClientAddresses
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.hub.app import Hub, create_app
from tollkeeper.hub.evm.account import EvmAccount
from tollkeeper.hub.evm.nonce_lanes import LaneKeeper
from tollkeeper.hub.evm.signer import Signer
from tollkeeper.hub.evm.watch import EvmWatch
from tollkeeper.hub.families import HubNetwork
from tollkeeper.hub.settlement.recovery import SettlementRecovery
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database

PUBLIC_URL: Final = "https://hub.example/hub"
NETWORK: Final = "base-sepolia"
_FIRST_PASS_SECONDS: Final = 5


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        """`error.code` of a refusal."""
        code: str = self.body["error"]["code"]
        return code

    @property
    def reason(self) -> str | None:
        """Why verify or settle said no."""
        reason: str | None = self.body.get("errorReason", self.body.get("invalidReason"))
        return reason


@dataclass(frozen=True)
class TestPayment:
    """A signed authorization with the body that verify and settle take."""

    __test__ = False

    authorization: Authorization
    body: dict[str, Any]

    @property
    def status_path(self) -> str:
        """Where the hub shows its public status."""
        return f"/payments/{NETWORK}/{self.authorization.payer}/{self.authorization.nonce}"

    def asking(self, **fields: Any) -> dict[str, Any]:
        """The body with other or further top-level fields."""
        return {**self.body, **fields}

    def requiring(self, **fields: Any) -> dict[str, Any]:
        """The body with other requirements."""
        return {**self.body, "paymentRequirements": {**self.body["paymentRequirements"], **fields}}


def new_payment(
    chain: ChainUnderTest,
    *,
    signer: TestWallet | None = None,
    signature: bytes | None = None,
    separator: bytes | None = None,
    **changes: Any,
) -> TestPayment:
    """A payment of the buyer to the owner; `changes` are fields of the authorization."""
    if signer is not None:
        changes.setdefault("payer", signer.address)
    authorization = chain.authorization(**changes)
    if signature is None and separator is not None:
        digest = authorization_digest(separator, authorization)
        signature = sign_digest(digest, (signer or chain.wallets.buyer).private_key)
    signature = signature or chain.sign(authorization, signer=signer)
    return TestPayment(authorization, settle_body(chain, authorization, signature))


def settle_body(chain: ChainUnderTest, authorization: Authorization, signature: bytes) -> dict[str, Any]:
    """What a resource server sends to verify or settle."""
    return {
        "x402Version": 1,
        "paymentPayload": {
            "x402Version": 1,
            "scheme": "exact",
            "network": NETWORK,
            "payload": {
                "signature": "0x" + signature.hex(),
                "authorization": {
                    "from": authorization.payer,
                    "to": authorization.pay_to,
                    "value": str(authorization.value),
                    "validAfter": str(authorization.valid_after),
                    "validBefore": str(authorization.valid_before),
                    "nonce": authorization.nonce,
                },
            },
        },
        "paymentRequirements": {
            "scheme": "exact",
            "network": NETWORK,
            "maxAmountRequired": "10000",
            "asset": USDC_ADDRESS,
            "payTo": chain.wallets.owner.address,
            "resource": "https://gate.example/abc",
            "description": "",
            "mimeType": "",
            "maxTimeoutSeconds": 60,
            "extra": {"name": chain.token_name, "version": "2"},
        },
    }


@dataclass
class HubUnderTest:
    """A running hub and an HTTP client of it."""

    hub: Hub
    database: Database
    url: str
    http: aiohttp.ClientSession

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        """One request."""
        async with self.http.request(method, self.url + path, **options) as response:
            return Answer(response.status, json.loads(await response.read() or b"null"), response.headers)

    async def get(self, path: str, **headers: str) -> Answer:
        """GET; header names with underscores for hyphens."""
        return await self.send("GET", path, headers=_headers(headers))

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        """POST of a JSON body; header names with underscores for hyphens."""
        return await self.send("POST", path, data=json.dumps(body).encode(), headers=_headers(headers))

    async def settle(self, payment: TestPayment, *, key: str | None = None, **fields: Any) -> Answer:
        """Settle with confirmation unless `confirm` says otherwise; `prefer` is that header."""
        headers = {} if key is None else {"Idempotency-Key": key}
        if "prefer" in fields:
            headers["Prefer"] = fields.pop("prefer")
        body = payment.asking(**{"confirm": True, **fields})
        return await self.send("POST", "/settle", data=json.dumps(body).encode(), headers=headers)

    async def status(self, payment: TestPayment) -> str:
        """The public status; "unknown" where the hub knows no such payment."""
        answer = await self.get(payment.status_path)
        return "unknown" if answer.status == 404 else str(answer.body["status"])

    async def wait_for_status(self, payment: TestPayment, wanted: str, *, seconds: float = 60) -> Answer:
        """Polls the public status until it is `wanted`."""
        async with asyncio.timeout(seconds):
            while await self.status(payment) != wanted:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                await asyncio.sleep(0.02)
        return await self.get(payment.status_path)

    @property
    def recovery(self) -> SettlementRecovery[Any, Any, Any]:
        """Of the EVM networks."""
        return self.hub.recoveries[Family.EVM]

    @property
    def lanes(self) -> LaneKeeper:
        """The keeper of the signers' nonces."""
        return lanes_of(self.hub)

    @property
    def account(self) -> EvmAccount:
        """Of the chain's network."""
        account = self.hub.accounts[NETWORK]
        assert isinstance(account, EvmAccount)
        return account

    async def complete(self) -> None:
        """One pass of recovery, now, over everything."""
        await self.recovery.complete(clock_ms() + 3_600_000)

    async def login(self, wallet: TestWallet) -> str:
        """A bearer of that wallet."""
        message = (await self.get(f"/api/v1/auth/message?walletAddress={wallet.address}")).body["message"]
        signature = "0x" + sign_digest(personal_message_digest(message.encode()), wallet.private_key).hex()
        answer = await self.post("/api/v1/auth/login", {"message": message, "signature": signature})
        return f"Bearer {answer.body['accessToken']}"


def lanes_of(hub: Hub) -> LaneKeeper:
    """The keeper of the hub's signers' nonces."""
    watch = hub.recoveries[Family.EVM].watch
    assert isinstance(watch, EvmWatch)
    return watch.lanes


async def one_under_way(hub: HubUnderTest) -> None:
    """Whoever comes from now on, while nothing is mined, is not the first of those that may go together."""
    async with asyncio.timeout(30):
        while not any(relayer.in_flight for relayer in hub.account.signers.relayers):  # noqa: ASYNC110 - a count
            await asyncio.sleep(0.02)


async def in_the_pool(chain: ChainUnderTest, nonce: int) -> None:
    """The node has whatever the relayer signed below that nonce."""
    async with asyncio.timeout(60):
        while chain.nonce(chain.wallets.relayer) < nonce:  # noqa: ASYNC110 - of the node
            await asyncio.sleep(0.01)


def _headers(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def hub_config(rpc_url: str, **changes: Any) -> EvmConfig:
    """base-sepolia behind that node."""
    return replace(EvmConfig(NETWORKS[NETWORK], (rpc_url,), timeout_seconds=10.0), **changes)


def new_hub(
    database: Database,
    signer_keys: tuple[bytes, ...],
    config: EvmConfig,
    *,
    trusted_keys: Mapping[str, Mapping[str, bytes]] | None = None,
    now_ms: Callable[[], int] = clock_ms,
    recovery_interval_seconds: float = 3600,
    shared_life_seconds: float | None = None,
    clients: ClientAddresses | None = None,
) -> Hub:
    """A hub; behind its first pass its recovery sleeps unless told otherwise: a test says when it works."""
    auth = Auth(database, [("key-1", bytes(range(32)))], PUBLIC_URL, clock_ms, os.urandom)
    return Hub(
        database,
        auth,
        [HubNetwork(config, tuple(map(Signer, signer_keys)))],
        public_url=PUBLIC_URL,
        trusted_keys=trusted_keys,
        now_ms=now_ms,
        recovery_interval_seconds=recovery_interval_seconds,
        shared_life_seconds=shared_life_seconds,
        clients=clients,
    )


@asynccontextmanager
async def run_hub(directory: Path, chain: ChainUnderTest, **options: Any) -> AsyncIterator[HubUnderTest]:
    """A hub of the chain's relayer (or of `signer_keys`) on a free port.

    `rpc_url` puts something between hub and node.
    """
    keys = options.pop("signer_keys", (chain.wallets.relayer.private_key,))
    config = hub_config(options.pop("rpc_url", chain.url), **options.pop("config", {}))
    wrap: Callable[[Database], Database] = options.pop("wrap_database", lambda opened: opened)
    database = wrap(open_database(str(directory / "hub.db")))
    async with served(new_hub(database, keys, config, **options), database) as running:
        yield running
    assert_books_agree(directory)


@asynccontextmanager
async def served(hub: Hub, database: Database) -> AsyncIterator[HubUnderTest]:
    """The hub, started, over HTTP; both are closed behind the block."""
    try:
        await start_hub(hub)
        async with serving(create_app(hub)) as url, _client() as http:
            yield HubUnderTest(hub, database, url, http)
    finally:
        await hub.close()
        await database.close()


async def start_hub(hub: Hub) -> None:
    """Starts it and lets its recoveries look at everything once: on a slow machine they would meet what a test does."""
    first_passes = [_first_pass(recovery) for recovery in hub.recoveries.values()]
    await hub.start()
    with suppress(TimeoutError):  # one that meets a fault may last
        async with asyncio.timeout(_FIRST_PASS_SECONDS):
            await asyncio.gather(*(ended.wait() for ended in first_passes))


def _first_pass(recovery: SettlementRecovery[Any, Any, Any]) -> asyncio.Event:
    """Set once a recovery that is not started yet has looked at everything."""
    ended, complete = asyncio.Event(), recovery.complete

    async def watched(before_ms: int) -> None:
        try:
            await complete(before_ms)
        finally:
            ended.set()

    recovery.complete = watched  # type: ignore[method-assign]  # it is watched, and as it was
    return ended


def _client() -> aiohttp.ClientSession:
    # Below the time after which the hub closes an idle connection: a POST that meets that is not sent again.
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2))


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port of the loopback; its URL."""
    # Nothing is asked on a connection that it closes meanwhile, however slow the machine is (`_client`).
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_keep_alive=60)
    config.load()
    state = ServerState()  # the protocol alone: `uvicorn.Server` takes 0.2 s to notice that it should stop
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0, backlog=1024
    )
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in list(state.connections):  # whose ends have not been seen yet
            connection.transport.close()
        await server.wait_closed()
        await asyncio.sleep(0)  # they are closed by then


def fresh_nonce() -> str:
    """32 random bytes in hex."""
    return "0x" + secrets.token_hex(32)
