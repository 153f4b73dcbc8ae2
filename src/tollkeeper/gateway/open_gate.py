"""PayGates ready to be called (contract 3.3, 4.1): target taken apart, 402s made once, header lines encoded.

`OpenGate` is one of them, `Gates` keeps those of a process by slug. What is kept is only a copy: claim and spend check
the version again where they commit, and say STALE. An update is answered only after the copy was dropped, so that no
402 is stale either.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.api import API_VERSION, clock_ms
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import VIA, gateway_headers, header_lines, name_rules, request_target
from tollkeeper.core.http.target_addresses import parse_target_url
from tollkeeper.core.paygates.challenge import build_challenge
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.paygates.locations import Locations
from tollkeeper.core.paygates.target_signing import SIGNATURE_NAMES, HmacSecret
from tollkeeper.core.x402.version2 import TakenOffer, offer_of
from tollkeeper.edge.target.relay import TargetUse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from tollkeeper.core.http.target_addresses import TargetUrl
    from tollkeeper.core.paygates.challenge import Challenge
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import Asset, OfferedPayment, PresentedPayment
    from tollkeeper.core.x402.version1 import Requirements
    from tollkeeper.storage.gateway.paygates import PayGates

NOTHING: Final[frozenset[bytes]] = frozenset()


@dataclass(frozen=True, slots=True)
class GateWire:
    """`path` (with the target's own query) and `lines` of the head that a gate's target is sent.

    `withheld` are the caller's headers whose names the gateway sets at this gate, `own_parameters` the names in the
    target's own query; `secrets` sign, where there are some; `locations` says what callers are told of where its
    answers lead. A file PayGate, which has no target, has none.
    """

    path: bytes = b""
    lines: bytes = b""
    withheld: frozenset[bytes] = NOTHING
    secrets: tuple[HmacSecret, ...] = field(default=(), repr=False)
    own_parameters: frozenset[str] = frozenset()
    locations: Locations | None = None


def gate_wire(gate: PayGate, target: TargetUrl, public_url: str) -> GateWire:
    """Make what every call of this gate sends: the target's host, the gateway's own marks, the owner's headers."""
    public, access_url = urlsplit(public_url), f"{public_url}/{gate.slug}"
    values = [value for _, value in gate.target_headers]
    locations = Locations.of(target, access_url, values, allow_subpaths=gate.allow_subpaths)
    own = gateway_headers(
        slug=gate.slug, payer="", purchase_id="", request_id="", client="", scheme=public.scheme, host=public.netloc
    )
    lines = header_lines([(b"host", target.authority.encode("ascii")), *own, (b"via", VIA)])
    path = request_target(target, b"", b"")
    owners = [(name.encode(), value.encode()) for name, value in gate.target_headers]
    withheld = frozenset(name_rules(name).normal for name, _ in owners) | (SIGNATURE_NAMES if gate.secrets else NOTHING)
    return GateWire(path, lines + header_lines(owners), withheld, gate.secrets, locations.own_names, locations)


class ReadyChallenge:
    """The 402 of a gate as it is within one millisecond, but for what differs from answer to answer.

    `start`, how the caller's address stands, `middle`, the request id, `end`: in this order. `methods` get it. The
    rest is the same at any time: the line for clients of version 2, the body around its timestamp, which paths and
    queries may be asked for.
    """

    __slots__ = (
        *("after", "before", "end", "has_own_query", "made_ms", "methods", "middle", "required", "start"),
        "takes_paths",
    )

    def __init__(self) -> None:
        self.made_ms = -1
        self.methods: frozenset[str] = frozenset()
        self.takes_paths = self.has_own_query = False
        self.start = self.middle = self.end = self.required = self.before = self.after = b""


@dataclass(frozen=True, slots=True)
class OpenGate:
    """A gate ready to be called: its target taken apart, its challenge made. One that sells a file has no target.

    `settled` are the assets of its networks, its own first, that the facilitator settles now; `offers` are their
    challenges. Where there is none it sells nothing, and serves what was bought.

    `wire` is what of its answers and of the requests to its target is the same each time, `use` whose share they take.
    `takes_header`: whoever shows
    the payment again may spend its credits; `is_of_wallets`: only its payer may (contract 4.3, `creditBinding`).
    """

    gate: PayGate
    target: TargetUrl | None
    settled: tuple[Asset, ...]
    offers: Mapping[str, Challenge]
    resource: str
    wire: GateWire
    use: TargetUse
    takes_header: bool
    is_of_wallets: bool
    is_deleted: bool = False
    ready: ReadyChallenge = field(default_factory=ReadyChallenge, compare=False, repr=False)

    @property
    def sells(self) -> bool:
        """True if nothing keeps a payer from buying here: `unsold` would say why."""
        return self.gate.is_enabled and not self.is_deleted and bool(self.offers)

    @property
    def challenge(self) -> Challenge:
        """The 402 where nobody names a network: on the gate's own, or its first that can be paid on.

        Raises: UNAVAILABLE where there is none.
        """
        if not self.offers:
            raise self.unpayable()
        return self.offers[self.settled[0].network.name]

    def unsold(self) -> ApiError | None:
        """Return why nobody can buy here now, whatever he pays with: 404, or 503 for a while; None where it sells."""
        if self.is_deleted:
            return not_found()
        if not self.gate.is_enabled:
            return ApiError(Code.NOT_FOUND, "this PayGate sells nothing at present")
        return None if self.offers else self.unpayable()

    def asset_on(self, network: str) -> Asset:
        """The asset of one of the networks of `offers`. Raises: UNAVAILABLE for another."""
        asset = next((one for one in self.settled if one.network.name == network), None)
        if asset is None:
            raise self.unpayable()
        return asset

    def unpayable(self) -> ApiError:
        """503 while none of its networks can be paid on; whether anything was paid before, it does not say."""
        networks = " and ".join(one.network for one in self.gate.recipients)
        return ApiError(
            Code.UNAVAILABLE, f"on {networks} nothing can be paid for now; send the same request again later"
        )

    def taken_by(self, presented: PresentedPayment) -> TakenOffer | None:
        """The gate's offer as it stands, and the one that a payment of version 2 takes; None for one of version 1.

        Its fee payer is the one that the payer named, as in `settled_by`.
        """
        if presented.accepted is None:
            return None
        return TakenOffer(offer_of(self.settled_by(presented.offered, self.gate.price_micro)), presented.accepted)

    def settled_by(self, offered: OfferedPayment, amount_micro: int) -> Requirements:
        """The requirements that a payment is verified and settled against.

        A fee payer is the one that the payer named: a 402 of before the facilitator changed it is as good.
        """
        shown = self.offers[offered.key.network].requirements
        extra = {**shown.extra, "feePayer": offered.fee_payer} if offered.fee_payer else shown.extra
        return replace(shown, amount=amount_micro, extra=extra)


def not_found() -> ApiError:
    """404 for a slug without a gate."""
    return ApiError(Code.NOT_FOUND, "there is no such PayGate")


CACHED_GATES_MAX: Final = 10_000  # 5 KB each, up to 30 where texts are long, and more on several networks


class _Reading:
    """The one read of a gate that is under way, for all who ask, and how often the gate changed meanwhile."""

    def __init__(self, read: Callable[[_Reading], Coroutine[None, None, OpenGate | None]]) -> None:
        self.changes = 0
        self.task = asyncio.ensure_future(read(self))


class Gates:
    """The gates of this process. `assets` gives what the facilitator settles now; who changes it calls `forget_all`."""

    def __init__(self, store: PayGates, assets: Callable[[], Mapping[str, Asset]], public_url: str) -> None:
        self._store = store
        self._assets = assets
        self._public_url = public_url
        self._open: dict[str, OpenGate] = {}
        self.kept: Callable[[str], OpenGate | None] = self._open.get  # the copy of the gate with this slug that counts
        self._catch_up: Callable[[], Awaitable[None]] | None = None
        self._being_read: dict[str, _Reading] = {}

    def count_while(self, is_current: Callable[[], bool], catch_up: Callable[[], Awaitable[None]]) -> None:
        """Other programs change gates too: a copy counts while it `is_current`, and again after `catch_up`."""
        self.kept = lambda slug: self._open.get(slug) if is_current() else None
        self._catch_up = catch_up

    def access_url(self, slug: str) -> str:
        """The public URL of a gate."""
        return f"{self._public_url}/{slug}"

    async def by_slug(self, slug: str) -> OpenGate:
        """The gate with this slug. Raises: NOT_FOUND; StorageError.

        One that is not there is looked up each time, before any limit is asked (contract 4.2).
        """
        kept = self.kept(slug)
        if kept is None and self._catch_up is not None:  # also with keys whose tokens were ended
            await self._catch_up()
            kept = self.kept(slug)
        for _ in range(2):  # where none is there, a read that is under way may have begun too early
            if kept is None:
                is_first = slug not in self._being_read
                kept = await self._read(slug)
                if is_first:
                    break
        if kept is None:
            raise not_found()
        return kept

    async def reload(self, slug: str) -> OpenGate:
        """The gate as the database has it now. Raises: as `by_slug`."""
        self.forget(slug)
        return await self.by_slug(slug)

    async def _read(self, slug: str) -> OpenGate | None:
        """Wait for the read that is under way, or begin one: a thousand callers at once ask the database once."""
        reading = self._being_read.get(slug)
        if reading is None:
            reading = self._being_read[slug] = _Reading(partial(self._newest, slug))
        return await asyncio.shield(reading.task)

    async def _newest(self, slug: str, reading: _Reading) -> OpenGate | None:
        """Read a gate, again for as long as it changes meanwhile, and keep a copy."""
        try:
            while True:
                changes = reading.changes
                gate = await self._store.by_slug(slug, clock_ms())
                if changes == reading.changes:  # else this may be older than an update that was answered meanwhile
                    break
        finally:
            del self._being_read[slug]
        if gate is None:
            return None
        opened = self.opened(gate)
        while len(self._open) >= CACHED_GATES_MAX:
            del self._open[next(iter(self._open))]  # the one that was read longest ago
        self._open[slug] = opened
        return opened

    async def deleted(self, slug: str) -> OpenGate:
        """The deleted gate that had this slug, for a payment claimed before the delete. Raises: as `by_slug`."""
        gate = await self._store.deleted_by_slug(slug, clock_ms())
        if gate is None:
            raise not_found()
        return replace(self.opened(replace(gate, is_enabled=False)), is_deleted=True)

    def opened(self, gate: PayGate) -> OpenGate:
        """Make a gate ready to be called, as it is here. Raises: NOT_FOUND for a file whose content is gone."""
        resource = self.access_url(gate.slug)
        target = None
        if gate.target_url:
            target = parse_target_url(gate.target_url)  # where it leads is judged whenever it is connected to
        elif gate.file is None:
            raise not_found()  # deleted, and the content is not kept any more
        assets = self._assets()
        settled = tuple(assets[one.network] for one in gate.recipients if one.network in assets)
        offers = {
            one.network.name: build_challenge(gate, one, resource, API_VERSION, settled if gate.accepts else ())
            for one in settled
        }
        wire = GateWire() if target is None else gate_wire(gate, target, self._public_url)
        return OpenGate(
            gate,
            target,
            settled,
            offers,
            resource,
            wire,
            TargetUse(gate.tenant),
            takes_header=gate.credit_binding is CreditBinding.PAYMENT,
            is_of_wallets=gate.credit_binding is CreditBinding.WALLET,
        )

    async def current(self, opened: OpenGate) -> OpenGate:
        """The gate as it is now, to forward by.

        Of a gate deleted since the claim, the copy that was claimed at: the call is still served once (contract 2).
        """
        try:
            return await self.by_slug(opened.gate.slug)
        except ApiError:
            return opened

    def forget_all(self) -> None:
        """Drop all copies: their challenges name what the facilitator settled."""
        for reading in self._being_read.values():
            reading.changes += 1
        self._open.clear()

    def forget(self, slug: str) -> None:
        """Drop the copy, after an update or delete was committed and before it is answered."""
        if (reading := self._being_read.get(slug)) is not None:
            reading.changes += 1
        self._open.pop(slug, None)
