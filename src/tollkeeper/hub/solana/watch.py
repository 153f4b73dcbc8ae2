"""Watch of recovery on a Solana network: what was told until it is final. There are no nonces to keep moving."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Verdict
from tollkeeper.chains.solana.history import has_every_block, no_status_of
from tollkeeper.chains.solana.reader import STATUSES_MAX
from tollkeeper.hub.refusals import telling_faults
from tollkeeper.hub.settlement.family import PoolView
from tollkeeper.storage.hub.settlements import list_confirmed, newest_confirmed_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.chains.solana.reader import SolanaReader
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.hub.solana.account import SolanaAccount
    from tollkeeper.storage.hub.settlements import Settlement

_LOG = structlog.get_logger("tollkeeper.hub")


# Watches what was confirmed on Solana until it is finalized (security F8, 5; contract 5.2). An outcome is told once a
# supermajority has confirmed its slot. Until that slot is finalized its fork may still be left, and the transaction
# with it: then the row is pending again, is sent again while it can be carried out, and fails only by proof. Each row
# is asked about when its slot should be final, as a rule once. Where outcomes are told only when they are final there
# is nothing to watch. What became of a row is concluded once enough nodes show the same of it.

_PAGE: Final = 500
# A process that comes back looks at what was told in the last hour of its life: a cluster finalizes within seconds.
_LOOKED_BACK_MS: Final = 3_600_000
# What the nodes do not tell is asked about in each pass for so long, then ever more rarely, until it is given up.
_SOON_SECONDS: Final = 10.0
_GIVEN_UP_SECONDS: Final = 3600.0
# Another process may have been so slow to commit what it had timed.
_LATE_MS: Final = 10_000


class _RowFate(Enum):
    """Fates of a row that was told, as a node shows them."""

    OPEN = auto()
    FINAL = auto()
    GONE = auto()


@dataclass(slots=True)
class _Watched:
    """State of one network: rows that are not final yet, versions that are, the time up to which rows were taken in.

    `untold`: rows that should be final and of which the nodes do not tell what became. It holds since when (event loop
    time), and when the nodes are asked again.
    """

    since_ms: int
    waiting: dict[str, Settlement] = field(default_factory=dict)
    untold: dict[str, tuple[float, float]] = field(default_factory=dict)
    final: dict[tuple[str, int], int] = field(default_factory=dict)

    def forget(self, row: Settlement) -> None:
        """Forget a row that needs no look any more. A pass that overlaps this one may have been faster."""
        self.waiting.pop(row.id, None)
        self.untold.pop(row.id, None)

    def is_due(self, row: Settlement) -> bool:
        """Say whether it is worth a question now."""
        _, next_look = self.untold.get(row.id, (0.0, 0.0))
        return asyncio.get_running_loop().time() >= next_look

    def is_given_up(self, row: Settlement) -> bool:
        """Say whether the nodes still do not tell, after so long. What was told long ago is asked about for as long."""
        now = asyncio.get_running_loop().time()
        since, _ = self.untold.get(row.id, (now, now))
        waited = now - since
        self.untold[row.id] = since, now + (waited if waited > _SOON_SECONDS else 0.0)
        return waited >= _GIVEN_UP_SECONDS


class SolanaWatch:
    """Watch of all networks of one hub process; one process at a time watches a network."""

    def __init__(self, parts: SettlementParts) -> None:
        self._parts = parts
        self._watched: dict[str, _Watched] = {}
        # Until then others watched, or nobody: what is told later is this process's to look at anyway.
        self._began_ms = parts.clock_ms()
        self._others_ms: dict[str, int] = {}

    async def look(self, account: SolanaAccount, *, thoroughly: bool) -> PoolView:  # noqa: ARG002 - each row is asked about once
        """Watch finality, which no row waits for. Raises: RpcUnavailable, StorageError."""
        with telling_faults("blocks_not_understood", network=account.chain.network.name):
            await self._look(account)
        return PoolView()

    def is_overdue(self, row: Settlement, view: PoolView) -> bool:  # noqa: ARG002 - there is no pool
        """Say yes: what is not seen is found out about, or sent again."""
        return True

    async def _look(self, account: SolanaAccount) -> None:
        network = account.chain.network.name
        if account.chain.config.is_final_needed:
            return
        if await self._parts.membership.lease(f"finality:{network}") is None:
            self._others_ms[network] = self._parts.clock_ms()
            return
        if network not in self._watched:
            self._watched.setdefault(network, _Watched(await self._since_ms(network)))
        watched = self._watched[network]
        after = (watched.since_ms - _LATE_MS, "")
        while True:
            page = await list_confirmed(self._parts.database, network, after, _PAGE)
            if page.after is None:
                break
            after = page.after
            for settlement_id in page.unreadable:
                _LOG.error("settlement_not_understood", settlement=settlement_id)
            for row in page.settlements:
                if (row.id, row.version) not in watched.final:
                    watched.waiting[row.id] = row
            watched.since_ms = max(watched.since_ms, after[0])
            await self._judge(account, watched)
        await self._judge(account, watched)
        kept_ms = watched.since_ms - _LATE_MS
        watched.final = {version: at_ms for version, at_ms in watched.final.items() if at_ms >= kept_ms}

    async def _since_ms(self, network: str) -> int:
        """Say from when on rows are looked at: a process that was down for long told its last ones before that.

        Since it is up again it may have told others before its first look.
        """
        until_ms = self._others_ms.get(network, self._began_ms)
        newest_ms = await newest_confirmed_ms(self._parts.database, network, until_ms)
        return (until_ms if newest_ms is None else newest_ms) - _LOOKED_BACK_MS

    async def _judge(self, account: SolanaAccount, watched: _Watched) -> None:
        """Ask about those whose slot should be final by now. A pass that overlaps this one may be faster."""
        if not watched.waiting:
            return
        newest = await account.chain.reader.final_slot()
        waiting = watched.waiting.values()
        due = [row for row in waiting if (row.block_number or 0) <= newest and watched.is_due(row)]
        for start in range(0, len(due), STATUSES_MAX):
            rows = due[start : start + STATUSES_MAX]
            gone = []
            for row, fate in zip(rows, await _fates(account.chain, rows), strict=True):
                if fate is _RowFate.GONE:
                    gone.append(row)
                elif fate is _RowFate.FINAL or (fate is _RowFate.OPEN and watched.is_given_up(row)):
                    watched.final[row.id, row.version] = row.updated_ms
                    watched.forget(row)
            await self._reopen(account.chain.network.name, gone)
            for row in gone:
                watched.forget(row)

    async def _reopen(self, network: str, rows: Sequence[Settlement]) -> None:
        """Make pending again what was confirmed on a fork that the cluster has left."""
        if not rows:
            return
        detail = "no longer on the chain"
        count = await self._parts.reopen(rows, detail)
        _LOG.error("settlements_reorganised", network=network, settlements=count)
        self._parts.metrics.reorganised.labels(network).inc(count)


async def _fates(chain: SolanaChain, rows: Sequence[Settlement]) -> Sequence[_RowFate | None]:
    """Return the fate of each row; None where one node's word is not enough. Raises: RpcUnavailable."""

    async def judge(reader: SolanaReader) -> list[_RowFate]:
        newest, sightings = await reader.see_final([row.transaction_hash for row in rows])
        fates = [_fate(row, sighting, newest) for row, sighting in zip(rows, sightings, strict=True)]
        unseen = [
            sighting.verdict is Verdict.ABSENT and fate is _RowFate.GONE
            for sighting, fate in zip(sightings, fates, strict=True)
        ]
        missing: dict[int, list[str]] = {}
        for row, is_unseen in zip(rows, unseen, strict=True):
            if is_unseen:
                missing.setdefault(row.block_number or 0, []).append(row.transaction_hash)
        known = await _known(reader, missing, newest) if missing else set()
        return [
            _RowFate.OPEN if is_unseen and (row.block_number or 0) not in known else fate
            for row, fate, is_unseen in zip(rows, fates, unseen, strict=True)
        ]

    return await chain.quorum.agreed_each(judge, lambda fate: fate is _RowFate.OPEN)


def _fate(row: Settlement, sighting: Sighting, newest: int) -> _RowFate:
    if _is_gone(row, sighting, newest):
        return _RowFate.GONE
    return _RowFate.FINAL if sighting.deep else _RowFate.OPEN


async def _known(reader: SolanaReader, missing: Mapping[int, Sequence[str]], newest: int) -> set[int]:
    """Return those of these slots of which the node can tell what they hold; none where it does not say which it has.

    It no longer has their blocks, or never had, where it was set up since; or it lacks them, because it was away. All
    at once are asked for first: as a rule they are all there. `missing`: what it did not show, by slots.
    """
    try:
        oldest = await reader.first_slot()
    except RpcUnavailable:  # as in `_has_blocks`
        return set()
    kept = {slot: missing[slot] for slot in sorted(missing) if slot >= oldest}
    if not kept or await _has_blocks(reader, kept, newest):
        return set(kept)
    return {slot for slot, names in kept.items() if await _has_blocks(reader, {slot: names}, newest)}


async def _has_blocks(reader: SolanaReader, missing: Mapping[int, Sequence[str]], newest: int) -> bool:
    """Say whether a node that shows nothing of these has all blocks from the first to the last of the slots.

    Who does not show what it lists has it no more than who does not list it.
    """
    unseen = no_status_of([name for names in missing.values() for name in names])
    slots, last = range(min(missing), newest + 1), max(missing)
    try:
        return await has_every_block(reader, slots, lambda block: block.slot > last, unseen=unseen)
    except RpcUnavailable:  # nothing else waits for it, and it is asked again
        return False


def _is_gone(row: Settlement, sighting: Sighting, newest: int) -> bool:
    """Say whether its slot is final without it, or it failed where it is now. A node that lags behind says nothing."""
    if sighting.verdict is Verdict.TRANSFERRED:
        return sighting.deep and sighting.block_number != row.block_number
    return (row.block_number or 0) <= newest
