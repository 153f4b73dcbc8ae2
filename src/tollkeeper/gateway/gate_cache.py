"""PayGates as the data plane uses them: looked up and kept by slug, their 402 made once (contract 3.3, 4.1).

The copy is only a copy: claim and spend check the version again where they commit, and say STALE. An update is answered
only after the copy was dropped (contract 3.3), so that no 402 is stale either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tollkeeper.api import API_VERSION, clock_ms
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.target_addresses import parse_target_url
from tollkeeper.core.paygates.challenge import build_challenge
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.edge.target.relay import TargetUse
from tollkeeper.gateway.open_gate import GateWire, OpenGate, gate_wire, not_found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import Asset
    from tollkeeper.storage.gateway.paygates import PayGates

CACHED_GATES_MAX: Final = 10_000  # 5 KB each, up to 30 where texts are long, and more on several networks


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
        self._catch_up: Callable[[], Awaitable[None]] | None = None
        self._being_read: dict[str, _Reads] = {}

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
        return self.kept(slug) or await self.reload(slug)

    async def reload(self, slug: str) -> OpenGate:
        """The gate as the database has it now. Raises: as `by_slug`.

        Reads again for as long as this gate changes while it is read.
        """
        if self._catch_up is not None:  # also with keys whose tokens were ended
            await self._catch_up()
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
