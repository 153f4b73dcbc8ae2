"""PayGates as the data plane uses them: looked up and kept by slug, their 402 made once (architecture 3).

The copy is only a copy: claim and spend check the version again where they commit, and say STALE. An update is answered
only after the copy was dropped (contract 3.3), so that no 402 is stale either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tollkeeper.api import API_VERSION, clock_ms
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.paygates.target_addresses import TargetUrl, parse_target_url
from tollkeeper.core.x402.challenge import Challenge, build_challenge
from tollkeeper.core.x402.version2 import TakenOffer, offer_of
from tollkeeper.edge.target.relay import TargetUse
from tollkeeper.gateway.call.headers import GateWire, gate_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.x402.payment_offer import Asset, Tender
    from tollkeeper.core.x402.version1 import Requirements
    from tollkeeper.gateway.purchase.service import Presented
    from tollkeeper.storage.gateway.paygates import PayGates

CACHED_GATES_MAX: Final = 10_000  # 5 KB each, up to 30 where texts are long, and more on several networks


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

    @property
    def challenge(self) -> Challenge:
        """The 402 where nobody names a network: on the gate's own, or its first that can be paid on.

        Raises: UNAVAILABLE where there is none.
        """
        if not self.offers:
            raise self.unpayable()
        return self.offers[self.settled[0].network.name]

    def unsold(self) -> ApiError | None:
        """Why nobody can buy here now, whatever he pays with: 404, or 503 for a while; None where it sells."""
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

    def taken_by(self, presented: Presented) -> TakenOffer | None:
        """The gate's offer as it stands, and the one that a payment of version 2 takes; None for one of version 1.

        Its fee payer is the one that the payer named, as in `settled_by`.
        """
        if presented.accepted is None:
            return None
        return TakenOffer(offer_of(self.settled_by(presented.tender, self.gate.price_micro)), presented.accepted)

    def settled_by(self, tender: Tender, amount_micro: int) -> Requirements:
        """The requirements that a payment is verified and settled against.

        A fee payer is the one that the payer named: a 402 of before the facilitator changed it is as good.
        """
        shown = self.offers[tender.key.network].requirements
        extra = {**shown.extra, "feePayer": tender.fee_payer} if tender.fee_payer else shown.extra
        return replace(shown, amount=amount_micro, extra=extra)


def not_found() -> ApiError:
    """404 for a slug without a gate."""
    return ApiError(Code.NOT_FOUND, "there is no such PayGate")


@dataclass(slots=True)
class _Reads:
    """How many read one gate just now, and how often it changed meanwhile."""

    under_way: int = 0
    changes: int = 0


class Gates:
    """The gates of this process. `assets` gives what the facilitator settles now; who changes it calls `forget_all`."""

    def __init__(self, store: PayGates, assets: Callable[[], Mapping[str, Asset]], public_url: str) -> None:
        self._store = store
        self._assets = assets
        self._public_url = public_url
        self._open: dict[str, OpenGate] = {}
        self.kept: Callable[[str], OpenGate | None] = self._open.get  # the copy of the gate with this slug that counts
        self._being_read: dict[str, _Reads] = {}

    def access_url(self, slug: str) -> str:
        """The public URL of a gate."""
        return f"{self._public_url}/{slug}"

    async def by_slug(self, slug: str) -> OpenGate:
        """The gate with this slug. Raises: NOT_FOUND; StorageError.

        One that is not there is looked up each time, before any limit is asked (contract 4.2).
        """
        return self.kept(slug) or await self.reload(slug)

    async def reload(self, slug: str) -> OpenGate:
        """The gate as the database has it now. Raises: as `by_slug`.

        Reads again for as long as this gate changes while it is read.
        """
        self._open.pop(slug, None)
        reads = self._being_read.setdefault(slug, _Reads())
        reads.under_way += 1
        try:
            while True:
                changes = reads.changes
                gate = await self._store.by_slug(slug, clock_ms())
                if changes == reads.changes:  # else this may be older than an update that was answered meanwhile
                    break
        finally:
            reads.under_way -= 1
            if not reads.under_way:
                del self._being_read[slug]
        if gate is None:
            raise not_found()
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
        for reads in self._being_read.values():
            reads.changes += 1
        self._open.clear()

    def forget(self, slug: str) -> None:
        """Drop the copy, after an update or delete was committed and before it is answered."""
        if (reads := self._being_read.get(slug)) is not None:
            reads.changes += 1
        self._open.pop(slug, None)
