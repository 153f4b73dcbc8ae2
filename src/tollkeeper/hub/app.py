"""The hub: its parts put together, and its ASGI application (contract 1, 2).

The four protocol endpoints are looked up in a dict and served on bare ASGI; everything else is Litestar's. Every path
is served both at the hub's root and under `/api/v1`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from litestar import Response

from tollkeeper.api import Shell, clock_ms, ok, refused
from tollkeeper.auth import auth_routes
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.bodies import StatusBody
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.client_addresses import ClientAddresses
from tollkeeper.core.http.signatures import Algorithm, VerifyingKey
from tollkeeper.core.limits import READINESS_WAIT_SECONDS
from tollkeeper.describing import Handlers, description_routes, route
from tollkeeper.hub.api import operations
from tollkeeper.hub.api.bodies import HubReady
from tollkeeper.hub.api.facilitator import Facilitator
from tollkeeper.hub.api.gateway_signature import Askers, TrustedKeys, local_path
from tollkeeper.hub.api.history import history_routes, status_routes
from tollkeeper.hub.api.standing import Standings
from tollkeeper.hub.api.transfer import Transfers
from tollkeeper.hub.families import FamilyDispatch, HubContext, account_of
from tollkeeper.hub.membership import Membership
from tollkeeper.hub.metrics import HubMetrics
from tollkeeper.hub.refusals import LogThrottle
from tollkeeper.hub.settlement.family import Sender, SettlementParts
from tollkeeper.hub.settlement.outcomes import SettlementRecords
from tollkeeper.storage.engine.database import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from litestar.types import ASGIApp, Receive, Send

    from tollkeeper.auth import Auth
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.hub.families import AnyAccount, HubNetwork
    from tollkeeper.storage.engine.database import Database

_LOG = structlog.get_logger("tollkeeper.hub")
API_PREFIX: Final = "/api/v1"
# Anybody may ask whether the hub is ready, as often as he likes: a node is asked so rarely for that.
_REACHED_SECONDS: Final = 1.0
# Where Litestar's routes have no prefix; everything else it knows under /api/v1.
_UNPREFIXED: Final = ("/payments/", "/healthz", "/readyz", "/.well-known/", "/openapi.json", "/docs")


class Hub:
    """Everything the hub is made of. `start` it in the event loop that serves it; `close` it before its database."""

    def __init__(  # noqa: PLR0913 - what a hub is composed of
        self,
        database: Database,
        auth: Auth,
        networks: Sequence[HubNetwork],
        *,
        public_url: str,
        trusted_keys: Mapping[str, Mapping[str, bytes]] | None = None,
        now_ms: Callable[[], int] = clock_ms,
        recovery_interval_seconds: float = 2.0,
        shared_life_seconds: float | None = None,
        clients: ClientAddresses | None = None,
    ) -> None:
        """`public_url`: where the hub is reached. `trusted_keys`: of gateways, by URL, Ed25519 public keys by key id.

        `shared_life_seconds`: other hub processes use the database too, and one that is silent for so long is dead;
        None where it is this one's alone. `clients`: whose addresses requests come from, behind trusted proxies.
        """
        self.database = database
        self.auth = auth
        self.public_url = public_url.rstrip("/")
        self.metrics = HubMetrics()
        self.membership = Membership(database, now_ms, shared_life_seconds)
        records = SettlementRecords(database, now_ms, self.status_url)
        parts = SettlementParts(database, now_ms, self.membership, self.metrics, Sender(self.membership))
        self.settling = FamilyDispatch(parts, records)
        # Kept as one dict for the hub's life, so that keys can be added and taken out while it runs.
        self.trusted_keys = TrustedKeys(
            (gateway, {name: VerifyingKey(Algorithm.ED25519, key) for name, key in keys.items()})
            for gateway, keys in (trusted_keys or {}).items()
        )
        context = HubContext(self.metrics, self.trusted_keys, now_ms)
        self.accounts: dict[str, AnyAccount] = {
            network.config.network.name: account_of(network, context) for network in networks
        }
        self._reached_until: dict[str, float] = {}  # event loop time, by network
        askers = Askers(self.trusted_keys, self.public_url, clients or ClientAddresses(), now_ms)
        shared = (self.accounts, self.settling, askers, now_ms)
        self.facilitator, self.transfers = Facilitator(*shared, LogThrottle(now_ms)), Transfers(*shared)
        self.standings = Standings(self.accounts, records, askers)
        self.recoveries = self.settling.recoveries(self.accounts, recovery_interval_seconds)

    async def start(self) -> None:
        """Join the database's other hubs, then `open`. Raises: StorageError."""
        await self.membership.start()
        await self.open()

    async def open(self) -> None:
        """Open the networks whose node answers, and begin to finish what a former run left.

        A network that cannot be opened now, for whatever reason, recovery opens.
        """
        await asyncio.gather(
            *(
                recovery.open_first(account)
                for recovery in self.recoveries.values()
                for account in recovery.accounts.values()
            )
        )
        for recovery in self.recoveries.values():
            recovery.start()

    async def close(self) -> None:
        """End background work and connections. What is unfinished is on disk."""
        for recovery in self.recoveries.values():
            await recovery.close()
        for account in self.accounts.values():
            await account.chain.close()
        await self.membership.close()

    def shortages(self) -> list[str]:
        """Return what an operator should know, though the hub works: signers without money, settlements set aside."""
        told = [
            f"{name}: the signer {relayer.signer.address} has no gas money"
            for name, account in self.accounts.items()
            for relayer in account.signers.relayers
            if relayer.balance.is_empty
        ]
        told += [f"{name}: {text}" for name, account in self.accounts.items() for text in account.obstacles]
        aside: dict[str, int] = {}
        for recovery in self.recoveries.values():  # each counts those of all networks
            aside.update(recovery.set_aside)
        return told + [f"{name}: {count} settlements cannot be worked on" for name, count in aside.items()]

    async def unreadiness(self) -> list[str]:
        """Say why the hub is not ready; empty when it is (contract 2).

        A signer without money is no reason: it is funded while the program runs.
        """
        found: list[str] = []
        try:
            async with asyncio.timeout(READINESS_WAIT_SECONDS):
                await self.database.read(Statement("SELECT 1 AS one"))
        except ApiError as error:
            found.append(f"database: {error.message}")
        except TimeoutError:
            found.append("database: it does not answer")
        for name, account in self.accounts.items():
            if account.chain.asset is None:
                found.append(f"{name}: {account.chain.problem}")
                continue
            now = asyncio.get_running_loop().time
            if now() < self._reached_until.get(name, 0.0):
                continue
            try:
                await account.reach()
                self._reached_until[name] = now() + _REACHED_SECONDS
            except RpcUnavailable as error:
                found.append(f"{name}: {error}")
        return found

    def status_url(self, key: PaymentKey) -> str:
        """Return the URL at which anybody can follow a payment."""
        return self.public_url + key.status_path


def create_app(hub: Hub) -> ASGIApp:
    """Make the hub's ASGI application. Whoever serves it starts and closes the hub."""
    return Shell(Dispatcher(hub, _litestar(hub)), takes_doubled_root=True)


def _litestar(hub: Hub) -> ASGIApp:
    @route(operations.HEALTH)
    async def healthz() -> Response[bytes]:
        """Say that the process serves requests."""
        return ok(StatusBody("ok"))

    @route(operations.READY)
    async def readyz() -> Response[bytes]:
        """Database and one node per network answer; otherwise 503, with what is missing."""
        problems = await hub.unreadiness()
        if problems:
            raise ApiError(Code.UNAVAILABLE, "the hub is not ready", details={"problems": problems})
        return ok(HubReady("ready", hub.shortages()))

    handlers = [
        *auth_routes(hub.auth),
        *history_routes(hub.database, hub.auth),
        *status_routes(hub.database),
        healthz,
        readyz,
    ]
    described = description_routes("Tollkeeper hub", hub.public_url, handlers, operations.HOT, operations.IN_FRONT)
    return Handlers(
        route_handlers=[*described, *handlers],
        exception_handlers={Exception: refused},
        openapi_config=None,
        logging_config=None,
    )


class Dispatcher:
    """Routes by the path below the hub's place: the protocol endpoints by lookup, the rest to Litestar."""

    def __init__(self, hub: Hub, rest: ASGIApp) -> None:
        self._hub = hub
        self._rest = rest
        facilitator = hub.facilitator
        handlers = (
            facilitator.supported,
            facilitator.verify,
            facilitator.settle,
            hub.transfers.transfer,
            hub.standings.standing,
        )
        self._hot = {
            operation.path: (operation.method.upper(), handler)
            for operation, handler in zip(operations.HOT, handlers, strict=True)
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ANN401 - of any ASGI kind
        """Serve one request."""
        if scope["type"] != "http":
            return
        path = local_path(scope)
        if path.startswith("//"):  # of a client that joins a URL that ends with a slash and a path
            path = path[1:]
        if path.startswith(API_PREFIX + "/"):
            path = path[len(API_PREFIX) :]
        hot = self._hot.get(path)
        if hot is None:
            if not path.startswith(_UNPREFIXED):
                path = API_PREFIX + path
            inner: Any = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
            await self._rest(inner, receive, send)
            return
        method, handler = hot
        if scope["method"] != method and not (method == "GET" and scope["method"] == "HEAD"):
            allowed = "GET, HEAD" if method == "GET" else method
            raise ApiError(
                Code.METHOD_NOT_ALLOWED, f"use {method} here", headers={"Allow": allowed, "Cache-Control": "no-store"}
            )
        await handler(scope, receive, send)
