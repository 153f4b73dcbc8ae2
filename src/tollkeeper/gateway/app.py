"""The gateway's parts and their life, and its management routes as an ASGI application.

Calls of PayGates do not come here: `call.handler.PayGateHandler.place_of` says of each request whether it is one
(security A-18), and the listener gives that handler the call. Everything else goes to the management routes, which
answer what they do not know with 404.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from litestar import Response, asgi
from litestar.response import Stream

from tollkeeper.api import PROCESS_MARK, HttpRequest, Shell, clock_ms, ok, refused
from tollkeeper.auth import Auth, auth_routes
from tollkeeper.core.api.bodies import StatusBody
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.client_addresses import ClientAddresses
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.core.limits import READINESS_WAIT_SECONDS
from tollkeeper.describing import Handlers, description_routes, route
from tollkeeper.edge.target.addresses import OwnPlace, Resolver
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.pool import places_for_targets
from tollkeeper.gateway.call.context import GatewayContext
from tollkeeper.gateway.call.handler import PayGateHandler
from tollkeeper.gateway.call.payment_header import PaymentReader
from tollkeeper.gateway.call_operations import CALLS
from tollkeeper.gateway.credits import Balances, credit_routes
from tollkeeper.gateway.evidence.nodes import EvidenceNodes, with_accounts
from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
from tollkeeper.gateway.facilitator.client import HubClient, HubUnreachableError, Supported
from tollkeeper.gateway.files import Files
from tollkeeper.gateway.limiting import ApiLimits, LimitedApi, UnpaidLimit
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.bodies import Ready, ReadyChecks
from tollkeeper.gateway.management.owner_lists import MEDIA_TYPE, OwnerFeed, OwnerLists, owner_list_routes
from tollkeeper.gateway.management.ownership import Ownership
from tollkeeper.gateway.management.paygates import Management, paygate_routes
from tollkeeper.gateway.management.statistics import Reports, stats_routes
from tollkeeper.gateway.management.target_probe import TargetProbe
from tollkeeper.gateway.management.uploads import Uploads
from tollkeeper.gateway.open_gate import Gates
from tollkeeper.gateway.purchase.decisions import PurchaseDecisions
from tollkeeper.gateway.purchase.monitor import PurchaseParts
from tollkeeper.gateway.purchase.recovery import PurchaseRecovery
from tollkeeper.gateway.purchase.service import PurchaseService
from tollkeeper.gateway.purchase.unsigned_payments import unsigned_payment_routes
from tollkeeper.gateway.traffic import Traffic
from tollkeeper.gateway.transfers.service import DirectTransfers, transfer_routes
from tollkeeper.settings.model import Role
from tollkeeper.storage.engine.database import StorageError, unit_of_work
from tollkeeper.storage.engine.nodes import LivingNodes, key_of_change
from tollkeeper.storage.files.store import LocalFiles
from tollkeeper.storage.gateway.file_rows import cut_all_uploads
from tollkeeper.storage.gateway.owner_lists import OwnerRows
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.gateway.settled_assets import SettledAssets
from tollkeeper.storage.gateway.statistics import Statistics
from tollkeeper.storage.ledger.open_calls import interrupt_calls
from tollkeeper.storage.ledger.payer_proofs import ShownPayments
from tollkeeper.storage.ledger.purchases import Purchases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler
    from litestar.types import ASGIApp, HTTPScope, Receive, Send

    from tollkeeper.core.payment_offers import Asset
    from tollkeeper.gateway.encryption_keys import EncryptionKeys
    from tollkeeper.gateway.evidence.nodes import AnyChain
    from tollkeeper.gateway.pages import Pages
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.engine.database import Database, Steps
    from tollkeeper.storage.files.store import FileStore

_LOG = structlog.get_logger("tollkeeper.gateway")
REFRESH_SECONDS = 30.0
RETRY_SECONDS = 0.5
_TELL_SECONDS = 60.0
_DELETIONS_SECONDS = 60.0
_BETWEEN_EVENTS_SECONDS = 2.0
# A node that does not answer must not hold up a start.
NODES_WAIT_SECONDS = 2.0


class Gateway:
    """The gateway's parts, and their life: `start` before the first request, `aclose` after the last."""

    def __init__(
        self,
        settings: Settings,
        keys: EncryptionKeys,
        database: Database,
        auth: Auth,
        hub: HubClient,
        *,
        store: FileStore,
        pages: Pages,
        chains: Mapping[str, AnyChain],
    ) -> None:
        """`store` keeps files, `pages` makes what a browser is shown.

        `chains`: nodes by network, which the gateway opens and closes, for a word to the owner on Solana. Where its hub
        is another program, which may be no hub of ours, they prove payments, too.
        """
        self.settings = settings
        self.auth = auth
        self.keys = keys
        assert settings.default_network is not None  # noqa: S101 - only a hub's settings may lack it
        self.default_network = settings.default_network.name
        self._hub = hub
        self.clients = ClientAddresses(settings.trusted_proxies)
        self.evidence = EvidenceNodes(chains if settings.role is Role.GATEWAY else {})
        accounts = {name: found for name, one in chains.items() if (found := with_accounts(one))}
        self.token_accounts = TokenAccounts(accounts)
        self._supported = Supported({}, confirms=False, is_ours=False, signers=frozenset())
        self._are_names_known = False  # of tokens, by the nodes (contract 5.3)
        self._hub_told: dict[str, float] = {}  # why it was not reached, and when that was told
        self.database = database
        self.paygates = PayGates(database, keys.sealing, os.urandom)
        self.purchases = Purchases(database, keys.sealing)
        self.shown_payments = ShownPayments(database, keys.sealing)
        statistics = Statistics(database)
        self.resolver = Resolver(
            allow_private=settings.allow_private_targets, own=OwnPlace.of(settings.public_url.text)
        )
        self.forwarder = Forwarder(self.resolver, places=places_for_targets())
        self.traffic = Traffic(self.purchases, statistics, clock_ms, settings.kept)
        self.gates = Gates(self.paygates, self.assets, settings.public_url.text)
        self.nodes = self._make_nodes()
        parts = self._parts()
        self.buying = PurchaseService(PurchaseDecisions(parts), self.shown_payments)
        self.transfers = DirectTransfers(parts, self.token_accounts, settings.challenge_profile)
        self._settled = SettledAssets(database)
        self.payments = PaymentReader(lambda: self._settled.known)
        self._is_on_disk = isinstance(store, LocalFiles)
        self.uploads = Uploads(database, store, self._are_files_apart)
        self.files = self._make_files(store)
        self.unpaid_limit = UnpaidLimit(settings.request_limits.unpaid, self.clients)
        self.api_limits = ApiLimits(settings.request_limits)
        self.calls = PayGateHandler(self._make_context(pages))
        self.management = self._make_management()
        self.reports = Reports(self.management, statistics, settings.kept)
        self.lists = OwnerLists(self.management, OwnerRows(database))
        self.feed = OwnerFeed(self.lists)
        self._recovery = PurchaseRecovery(self.buying)
        self._tasks: list[asyncio.Task[None]] = []

    def allow(self, limits: RequestLimits) -> None:
        """Limit requests so from now on."""
        self.unpaid_limit.allow(limits.unpaid)
        self.api_limits.allow(limits)

    def _make_nodes(self) -> LivingNodes:
        ring = self.keys.sealing.ring
        return LivingNodes(
            self.database,
            PROCESS_MARK,
            forget=self._forget_gates,
            leave_behind=_left_behind,
            begin_anew=self._begin_anew,
            keys=(ring.current, *(name for name in ring.keys if name != ring.current)),
            seal_by=self.keys.seal_by,
        )

    def _parts(self) -> PurchaseParts:
        return PurchaseParts(
            purchases=self.purchases,
            hub=self._hub,
            supported=self.supported,
            evidence=self.evidence,
            cap=self.settings.exposure,
            clock_ms=clock_ms,
            gateway_url=self.settings.public_url.text,
            status_url=self.settings.hub_public_url,
        )

    def _make_management(self) -> Management:
        return Management(
            store=self.paygates,
            gates=self.gates,
            ownership=Ownership(self.auth, self.settings.anonymous_paygates, self.paygates.has_management),
            resolver=self.resolver,
            traffic=self.traffic,
            supported=self.supported,
            evidence=self.evidence,
            token_accounts=self.token_accounts,
            target_probe=TargetProbe(self.forwarder),
            default_network=self.default_network,
            default_payment_address=self.settings.default_payment_address,
            min_price_micro=self.settings.min_price_micro,
            clients=self.clients,
        )

    def _make_context(self, pages: Pages) -> GatewayContext:
        return GatewayContext(
            gates=self.gates,
            purchases=self.purchases,
            buying=self.buying,
            forwarder=self.forwarder,
            files=self.files,
            traffic=self.traffic,
            auth=self.auth,
            payments=self.payments,
            limit=self.unpaid_limit,
            pages=pages,
            token_keys=self.keys.tokens,
            profile=self.settings.challenge_profile,
            body_limit_bytes=self.settings.call_body_size_bytes,
            random_bytes=os.urandom,
        )

    def _make_files(self, store: FileStore) -> Files:
        return Files(
            database=self.database,
            store=store,
            keys=self.keys.tokens,
            public_url=self.settings.public_url.text,
            lifetime_seconds=self.settings.files.link_lifetime_seconds,
            clock_ms=clock_ms,
        )

    def _forget_gates(self, slugs: Iterable[str]) -> None:
        for slug in slugs:
            if (key := key_of_change(slug)) is None:
                self.gates.forget(slug)
            else:
                self.keys.end_tokens(key)

    async def _are_files_apart(self) -> bool:
        """Tell whether another gateway would sell what is on this one's disk. Raises: StorageError."""
        return self._is_on_disk and await self.nodes.has_others()

    def _begin_anew(self) -> None:
        """Go on after another program took this one for dead: nothing that it knew of gates and open calls counts."""
        self.gates.forget_all()
        self.purchases.ledger.begin_anew()

    def supported(self) -> Supported:
        """Return what the facilitator said last that it settles."""
        return self._supported

    def assets(self) -> Mapping[str, Asset]:
        """The networks that can be paid on now."""
        return self._supported.assets

    async def start(self) -> None:
        """Close calls and uploads that a dead process left open, learn the networks, start the background work."""
        await self.nodes.open()
        if self.nodes.is_alone:
            interrupted = await self.purchases.interrupt_calls(clock_ms())
            if interrupted:
                _LOG.warning("calls_interrupted", count=interrupted)
            await self.database.run(cut_all_uploads())
        else:
            self.gates.count_while(self.nodes.counts, self.nodes.catch_up)
            self.paygates.until_seen = self.nodes.until_seen
        await self.purchases.ledger.open()
        opening = asyncio.create_task(self.evidence.keep_open())
        with suppress(TimeoutError):
            async with asyncio.timeout(NODES_WAIT_SECONDS):
                await self.evidence.asked.wait()
        await self._settled.recall()
        await self._refresh()
        self._tasks = [
            opening,
            asyncio.create_task(self._keep_fresh()),
            asyncio.create_task(self._recovery.run()),
            asyncio.create_task(self.traffic.run()),
            asyncio.create_task(self.uploads.run()),
            asyncio.create_task(self.files.run()),
            asyncio.create_task(self._end_deletions()),
            asyncio.create_task(self.nodes.run()),
        ]

    async def _refresh(self) -> None:
        is_known = self.evidence.is_open  # of nodes that open meanwhile the next round learns the names
        try:
            supported = self.evidence.adopt(await self._hub.supported())
        except HubUnreachableError as error:
            self._tell_of_hub(str(error))
            return
        if self._hub_told:
            _LOG.info("hub_answers_again", hub=self.settings.hub_public_url)
            self._hub_told.clear()
        if supported != self._supported:
            self._supported = supported
            self.gates.forget_all()
            _LOG.info("networks", enabled=sorted(supported.assets), confirms=supported.confirms)
        self._are_names_known = is_known
        with suppress(StorageError):  # the database logs that itself, and the next round tries again
            await self._settled.learn(supported.assets)

    def _tell_of_hub(self, reason: str) -> None:
        """Log why the hub cannot be reached: each reason once a minute, for it is asked twice a second."""
        now = time.monotonic()
        if now >= self._hub_told.get(reason, -_TELL_SECONDS) + _TELL_SECONDS:
            self._hub_told[reason] = now
            _LOG.warning("hub_unreachable", hub=self.settings.hub_public_url, error=reason)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)  # however many calls make its word doubtful
            if self._supported.assets and self._are_names_known:
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_SECONDS):
                        await self._hub.doubted.wait()
            self._hub.doubted.clear()
            try:
                await self._refresh()
            except Exception:  # noqa: BLE001 - logged; the next round tries again
                _LOG.exception("refresh_failed")

    async def _end_deletions(self) -> None:
        """Void what gates sold whose deletion broke off."""
        while True:
            try:
                await self.paygates.void_rest(clock_ms())
            except StorageError as error:
                _LOG.info("deletion_waits", reason=str(error))
            except Exception:  # noqa: BLE001 - logged; the next round tries again
                _LOG.exception("deletion_failed")
            await asyncio.sleep(_DELETIONS_SECONDS)

    async def readiness(self) -> tuple[dict[str, bool], list[str]]:
        """Ask what readiness needs: the database answers, the facilitator answers, each within its seconds.

        And, where it is not so: every gate opens under the keys that there are. With it, what the operator of our hub
        should know all the same.
        """
        database, problems = await asyncio.gather(self._has_database(), self._problems_of_hub())
        lost = {"encryptionKeys": False} if self.keys.has_lost_gates else {}
        return {"database": database, "hub": problems is not None, **lost}, problems or []

    async def _has_database(self) -> bool:
        try:
            async with asyncio.timeout(READINESS_WAIT_SECONDS):
                await self.paygates.by_slug("", clock_ms())
        except (ApiError, TimeoutError):
            return False
        return True

    async def _problems_of_hub(self) -> list[str] | None:
        try:
            async with asyncio.timeout(READINESS_WAIT_SECONDS):
                return await self._hub.problems()
        except TimeoutError:
            return None

    async def aclose(self) -> None:
        """Finish settlements under way, write what was counted, let go of everything but the database."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):  # it must not keep calls from their end
                _LOG.error("background_task_broke_off", fault=repr(ended))
        await self.calls.aclose()
        await self._recovery.aclose()
        await self.buying.aclose()
        self.forwarder.close()  # before what was counted is written: calls that are given up here count
        await self.calls.settled()  # and their credits are given back
        await self.traffic.flush()
        await self.evidence.aclose()
        await self.token_accounts.aclose()
        await self._hub.close()
        with suppress(StorageError):  # then another program ends what this one left
            await self.nodes.close()


@unit_of_work
def _left_behind(mark: str) -> Steps[int]:
    """End the calls and uploads of a program that is dead; how many calls."""
    count = yield from interrupt_calls(clock_ms(), mark)
    yield from cut_all_uploads(mark)
    return count


async def _two_events() -> AsyncIterator[bytes]:
    yield b"data: first\n\n"
    await asyncio.sleep(_BETWEEN_EVENTS_SECONDS)
    yield b"data: second\n\n"


def create_app(
    gateway: Gateway,
    beside: Sequence[ASGIRouteHandler | HTTPRouteHandler] = (),
    more: Sequence[HTTPRouteHandler] = (),
    trying: Callable[[], str] | None = None,
) -> ASGIApp:
    """The ASGI application: everything but the calls of PayGates.

    `beside`: what the pages need and nobody else. `more`: what the API has beside its own, as in a sandbox.
    `trying`: where the script is that lets a reader of `/docs` try an operation.
    """

    @route(operations.HEALTH)
    async def healthz(request: HttpRequest) -> Response[bytes] | Stream:
        """Contract 2; as events, by which `doctor` sees a proxy that holds back what it should pass on."""
        if MEDIA_TYPE not in request.headers.get("accept", ""):
            return ok(StatusBody("ok"))
        return Stream(_two_events(), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    @route(operations.READY)
    async def readyz(request: HttpRequest) -> Response[bytes]:
        """Contract 2: database and hub."""
        del request
        checks, problems = await gateway.readiness()
        if not all(checks.values()):
            raise ApiError(Code.UNAVAILABLE, "the gateway is not ready", details={"checks": checks})
        return ok(Ready("ready", ReadyChecks(**checks), problems))

    @asgi("/files", is_mount=True, copy_scope=False)
    async def download(scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Contract 4.8."""
        await gateway.files.serve(scope, receive, send)

    handlers = [
        healthz,
        readyz,
        *auth_routes(gateway.auth),
        *paygate_routes(gateway.management, gateway.uploads),
        *credit_routes(Balances(gateway.purchases, gateway.keys.tokens), gateway.payments, gateway.auth),
        *stats_routes(gateway.reports),
        *owner_list_routes(gateway.lists, gateway.feed),
        *transfer_routes(gateway.transfers),
        *unsigned_payment_routes(gateway.gates, gateway.token_accounts),
        *more,
    ]
    described = description_routes(
        "Tollkeeper gateway", gateway.settings.public_url.text, handlers, CALLS, trying=trying
    )
    management = Handlers(
        route_handlers=[download, *beside, *described, *handlers],
        exception_handlers={Exception: refused},
        openapi_config=None,
        logging_config=None,
    )

    return Shell(LimitedApi(management, gateway.api_limits, gateway.clients, gateway.auth))
