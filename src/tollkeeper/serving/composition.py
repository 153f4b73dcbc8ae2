"""The composition root: what `serve`, `gateway` and `hub` are made of, by their settings (contract 1, 4.3, 6).

In `serve` gateway and hub share one database and one issuer of logins, and the gateway reaches the hub without a
socket. What this module does not do: listen (`process` does).
"""
# ruff: noqa: PLC0415 - where they are processes of their own, the hub imports no gateway and a gateway no hub

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from tollkeeper.api import clock_ms
from tollkeeper.auth import Auth, TrustedIssuers
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.http.client_addresses import ClientAddresses
from tollkeeper.core.http.signatures import Algorithm, Parameters, SigningKey, content_digest, sign
from tollkeeper.core.limits import SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.gateway.encryption_keys import EncryptionKeys
from tollkeeper.gateway.facilitator.client import HubClient, Transport
from tollkeeper.gateway.facilitator.transports import AsgiTransport, HttpTransport
from tollkeeper.hub.api.gateway_signature import COVERED, GATEWAY_IN_PROCESS, LABEL, authority_of
from tollkeeper.serving.admin.socket import taking_orders
from tollkeeper.serving.books import inspection, reconciliation
from tollkeeper.serving.books.inspection import INTERVAL_SECONDS as INSPECTION_SECONDS
from tollkeeper.serving.books.inspection import keep_inspecting
from tollkeeper.serving.books.reconciliation import keep_reconciling
from tollkeeper.serving.config.file_stores import file_store
from tollkeeper.serving.http.access_log import AccessLog, Mounted
from tollkeeper.serving.http.app_host import AppHost
from tollkeeper.serving.http.asgi import Application
from tollkeeper.serving.http.origins import OriginGuard
from tollkeeper.serving.http.paced_starts import PacedStarts
from tollkeeper.serving.http.traces import Spans, TracedHub
from tollkeeper.serving.keys.files import KeyFiles
from tollkeeper.serving.keys.trusted_gateways import GatewayKeys
from tollkeeper.serving.metrics.metrics import Measured, serving_metrics
from tollkeeper.serving.metrics.operator_page import OperatorPage
from tollkeeper.serving.nodes import chain_of, config_of
from tollkeeper.settings.model import HUB_PREFIX, Role, Settings
from tollkeeper.storage.engine.nodes import require_same_clock, require_sealing_key
from tollkeeper.storage.urls import open_database, server_of
from tollkeeper.web.assets import Assets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from litestar.types import ASGIApp

    from tollkeeper.core.keys.sealing import KeyRing
    from tollkeeper.gateway.app import Gateway
    from tollkeeper.gateway.facilitator.client import Signer as RequestSigner
    from tollkeeper.hub.app import Hub
    from tollkeeper.serving.reloading import Reloading
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.web.play import Play

T = TypeVar("T")

# A node that does not answer must not hold up a start: the networks are opened in the background then.
_HUB_LIFE_SECONDS: Final = 10.0  # a hub that says nothing for so long is dead, on a database that others may use
_NODES_WAIT_SECONDS: Final = 2.0


@asynccontextmanager
async def compose(
    settings: Settings,
    inspection_seconds: float = INSPECTION_SECONDS,
    reloading: Reloading | None = None,
    play: Play | None = None,
) -> AsyncIterator[Application]:
    """The running application of these settings, until the block ends. Raises: StorageError.

    Its books are checked every `inspection_seconds`, more rarely where that takes long. `reloading` is given what new
    settings reach. `play`: the test wallets of a sandbox.
    """
    async with AsyncExitStack() as parts:
        database = open_database(settings.database_url)
        parts.push_async_callback(database.close)
        if server_of(settings.database_url) is not None:
            await require_same_clock(database, clock_ms)
        measured = Measured(spans=_spans(parts, settings))
        assets = Assets()
        await parts.enter_async_context(
            serving_metrics(settings.metrics_address, measured.text, assets, OperatorPage(settings, database))
        )
        auth = _auth(parts, settings, database)
        parts.push_async_callback(_end, asyncio.create_task(keep_inspecting(settings, database, inspection_seconds)))
        measured.books = (inspection.REGISTRY,)
        if settings.role is not Role.GATEWAY:
            parts.push_async_callback(_end, asyncio.create_task(keep_reconciling(settings, database)))
            measured.books += (reconciliation.REGISTRY,)
        if settings.role is Role.GATEWAY:
            hub_there = HttpTransport(_given(settings.hub_url))
            measured.gateway = gateway = await _open_gateway(parts, settings, database, auth, hub_there, assets)
            yield _fronted(PacedStarts(_gateway_app(gateway, settings, assets, play)), settings, measured, reloading)
            return
        prefix = HUB_PREFIX if settings.role is Role.SERVE else ""
        public_url = settings.public_url.text + prefix
        measured.hub = await _open_hub(parts, settings, database, auth, public_url)
        hub = _traced(_hub_app(measured.hub), measured.spans)
        if settings.role is Role.HUB:
            yield _fronted(hub, settings, measured, reloading)
            return
        hub_here = AsgiTransport(hub, {GATEWAY_IN_PROCESS: settings.public_url.text})
        measured.gateway = gateway = await _open_gateway(parts, settings, database, auth, hub_here, assets)
        app = Mounted(PacedStarts(_gateway_app(gateway, settings, assets, play)), HUB_PREFIX, hub)
        yield _fronted(app, settings, measured, reloading)


def _spans(parts: AsyncExitStack, settings: Settings) -> Spans | None:
    """Return the recorder of spans, which works until the parts end; None if no collector is configured."""
    if not settings.exports_spans:
        return None
    spans = Spans()
    parts.push_async_callback(spans.aclose)
    return spans


def _traced(hub: Application, spans: Spans | None) -> Application:
    return hub if spans is None else TracedHub(hub, spans)


def _fronted(app: Application, settings: Settings, measured: Measured, reloading: Reloading | None) -> Application:
    guarded = ("/api/", HUB_PREFIX + "/api/")
    calls = None if measured.gateway is None else measured.gateway.calls
    guard = OriginGuard(app, settings.public_url.text, settings.cors_origins, guarded)
    if reloading is not None:
        reloading.gateway, reloading.guard = measured.gateway, guard
    if calls is None or settings.app_url is None or settings.app_url == settings.public_url.text:
        return AccessLog(guard, calls, measured.counts, measured.spans)
    apart = AppHost(settings.app_url, guard, calls)
    return AccessLog(apart, apart, measured.counts, measured.spans)


def _auth(parts: AsyncExitStack, settings: Settings, database: Database) -> Auth:
    trusted = TrustedIssuers(settings.trusted_issuers, clock_ms)
    parts.push_async_callback(trusted.close)
    ring = _given(settings.auth_keys)
    named = [one.network for one in settings.networks.values()]
    networks = named if settings.default_network is None else [settings.default_network, *named]
    return Auth(
        database,
        tuple(ring.keys.items()),
        settings.public_url.text,
        clock_ms,
        os.urandom,
        networks=networks,
        trusted=trusted,
        page_url=settings.app_url,
    )


def _gateway_app(gateway: Gateway, settings: Settings, assets: Assets, play: Play | None) -> ASGIApp:
    from tollkeeper.gateway.app import create_app
    from tollkeeper.web.dashboard.routes import Dashboard
    from tollkeeper.web.home import home_routes
    from tollkeeper.web.play import play_routes

    dashboard = Dashboard(gateway, assets, settings.app_url, play)
    home = home_routes(gateway, assets, settings.app_url)
    return create_app(
        gateway,
        [assets.route(), dashboard.route(), *home],
        play_routes(gateway.management, play),
        None if play is None else lambda: f"assets/{assets.version}/docs.js",
    )


def _hub_app(hub: Hub) -> ASGIApp:
    from tollkeeper.hub.app import create_app

    return create_app(hub)


async def _open_hub(
    parts: AsyncExitStack,
    settings: Settings,
    database: Database,
    auth: Auth,
    public_url: str,
) -> Hub:
    from tollkeeper.hub.app import Hub
    from tollkeeper.hub.families import HubNetwork, signers_of

    keys = [key.reveal() for key in settings.signer_keys]
    signers = {
        family: signers_of(family, keys) for family in {one.network.family for one in settings.networks.values()}
    }
    networks = [HubNetwork(config_of(one, settings), signers[one.network.family]) for one in settings.networks.values()]
    own_keys = {settings.public_url.text: _public_keys(_given(settings.auth_keys))}
    hub = Hub(
        database,
        auth,
        networks,
        public_url=public_url,
        trusted_keys=own_keys if settings.role is Role.SERVE else {},
        clients=ClientAddresses(settings.trusted_proxies),
        shared_life_seconds=None if server_of(settings.database_url) is None else _HUB_LIFE_SECONDS,
    )
    parts.push_async_callback(hub.close)
    if settings.role is Role.HUB and settings.trusted_issuers:
        refreshing = asyncio.create_task(GatewayKeys(settings.trusted_issuers, hub.trusted_keys).keep_fresh())
        parts.push_async_callback(_end, refreshing)
    await hub.membership.start()  # however long that takes: without it nothing would ever be settled
    opening = asyncio.create_task(hub.open())
    parts.push_async_callback(_end, opening)
    await asyncio.wait({opening}, timeout=_NODES_WAIT_SECONDS)
    if opening.done():
        await opening
    return hub


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _open_gateway(
    parts: AsyncExitStack,
    settings: Settings,
    database: Database,
    auth: Auth,
    transport: Transport,
    assets: Assets,
) -> Gateway:
    from tollkeeper.gateway.app import Gateway
    from tollkeeper.serving.admin.commands import commands_of
    from tollkeeper.web.paywall import Paywall

    paths = settings.encryption_key_paths
    revoked = KeyFiles(paths).revoked() if paths else frozenset()
    keys = EncryptionKeys(_given(settings.encryption_keys), revoked)
    if server_of(settings.database_url) is not None:
        await require_sealing_key(database, keys.sealing.ring.keys)  # before anything is changed by a wrong ring
    await keys.open(database)
    signer = settle_request_signer(_given(settings.auth_keys), settings.hub_public_url)
    hub = HubClient(transport, signer, settings.hub_url or "")
    # In `serve` the hub, which is ours, looks at the chain; it is asked how far a payment is. What a wallet has is not.
    chains = {
        one.network.name: chain_of(one, settings)
        for one in settings.networks.values()
        if one.rpc_urls and (settings.role is Role.GATEWAY or FAMILIES[one.network.family].asset.has_accounts)
    }
    gateway = Gateway(
        settings,
        keys,
        database,
        auth,
        hub,
        store=file_store(settings.files),
        pages=Paywall(settings.public_url.text, assets),
        chains=chains,
    )
    parts.push_async_callback(gateway.aclose)
    await gateway.start()
    parts.push_async_callback(_end, asyncio.create_task(keys.move_stored(database)))
    await parts.enter_async_context(taking_orders(settings.database_url, commands_of(settings, database, keys)))
    return gateway


def _public_keys(ring: KeyRing) -> Mapping[str, bytes]:
    """The Ed25519 public keys of a ring by key id."""
    return {
        name: SigningKey(name, Algorithm.ED25519, seed).verifying_key().material for name, seed in ring.keys.items()
    }


def settle_request_signer(ring: KeyRing, hub_url: str) -> RequestSigner:
    """Return the signer of a gateway's requests to that hub, with the ring's current key.

    RFC 9421, ed25519; contract 4.3, 6.
    """
    authority = authority_of(hub_url)
    key = SigningKey(ring.current, Algorithm.ED25519, ring.keys[ring.current])

    def sign_request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        digest = content_digest(body)
        components = {
            "@method": method,
            "@authority": authority,
            "@path": path,
            "content-digest": digest,
            "idempotency-key": headers["idempotency-key"],
        }
        created = clock_ms() // 1000
        parameters = Parameters(
            COVERED,
            created=created,
            expires=created + SETTLE_REQUEST_LIFETIME_SECONDS,
            key_id=key.key_id,
            algorithm=key.algorithm.value,
        )
        signed = sign(components, key, label=LABEL, parameters=parameters)
        return {"content-digest": digest, **{name.lower(): value for name, value in signed.items()}}

    return sign_request


def _given(value: T | None) -> T:
    """Return a setting that this role always has (`load_settings` refuses settings without it)."""
    if value is None:
        raise ValueError("settings of another role were composed")
    return value
