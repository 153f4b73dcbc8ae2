"""Watch of recovery on an EVM network: the blocks that outcomes rest on, and the signers' nonces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.settlement.states import EXPIRY_MARGIN_SECONDS
from tollkeeper.hub.evm.findings import OVERDUE_SECONDS, valid_before
from tollkeeper.hub.evm.nonce_lanes import LaneKeeper
from tollkeeper.hub.refusals import telling_faults
from tollkeeper.hub.settlement.family import PoolView
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.hub.settlements import list_blocks, list_in_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.storage.hub.settlements import Settlement

_LOG = structlog.get_logger("tollkeeper.hub")


class EvmWatch:
    """Watch of all EVM networks of one process."""

    def __init__(self, parts: SettlementParts, is_active: Callable[[str], bool]) -> None:
        """`is_active`: does a request of this process carry that settlement?"""
        self._parts = parts
        self._reorganisations = ReorganisationWatch(parts)
        self.lanes = LaneKeeper(parts, is_active)

    async def look(self, account: EvmAccount, *, thoroughly: bool) -> PoolView:
        """Watch blocks and keep lanes. Raises: RpcUnavailable, StorageError."""
        head = await account.chain.latest_block()
        network = account.chain.network.name
        with telling_faults("blocks_not_understood", network=network):
            await self._reorganisations.look(account, head.number, thoroughly=thoroughly)
        view = PoolView(chain_seconds=head.timestamp_seconds)
        for relayer in account.signers.relayers:
            # What lies in a poison lane is looked at row by row all the same.
            with telling_faults("lane_not_understood", network=network, signer=relayer.signer.address):
                seen = await self.lanes.move(account, relayer)
                view.waiting |= seen.waiting
                view.taken |= seen.taken
        return view

    def is_overdue(self, row: Settlement, view: PoolView) -> bool:
        """Say whether its transaction no longer waits, or its authorization is over. Raises: as `valid_before`.

        By the chain's time, or for long by ours: a chain's time is one node's word.
        """
        if row.transaction_hash not in view.waiting:
            return True
        end_seconds = valid_before(row)
        is_over = end_seconds + OVERDUE_SECONDS <= self._parts.clock_ms() // 1000
        return is_over or end_seconds + EXPIRY_MARGIN_SECONDS <= view.chain_seconds


# Watches the blocks that outcomes rest on, after they were told (security F8, 5; contract 5.2). An outcome is told at
# the configured depth; a reorganisation may still take its block away. Then the row is pending again until its transfer
# is seen anew, or until something else is proven. A block that is canonical confirms all below it, so that mostly one
# is asked for; from time to time all are.

_PAGE: Final = 500
_BLOCKS_ASKED: Final = 50


class ReorganisationWatch:
    """Watch of all networks of one hub process; one process at a time watches a network."""

    def __init__(self, parts: SettlementParts) -> None:
        self._parts = parts

    async def look(self, account: EvmAccount, head: int, *, thoroughly: bool) -> None:
        """Look at one network whose latest block has that number. Raises: RpcUnavailable, StorageError."""
        chain = account.chain
        network = chain.network.name
        if await self._parts.membership.lease(f"reorganisations:{network}") is None:
            return
        watched = await list_blocks(self._parts.database, network, head - chain.config.watch_blocks)
        if not watched:
            return
        if not thoroughly:
            newest, block_hash = watched[0]
            canonical = await chain.block_hashes([newest])
            # A node that does not have the block is behind: nothing is known.
            if canonical.get(newest, block_hash) == block_hash:
                return
        for start in range(0, len(watched), _BLOCKS_ASKED):
            part = watched[start : start + _BLOCKS_ASKED]
            canonical = await chain.block_hashes([number for number, _ in part])
            for number, block_hash in part:
                if canonical.get(number, block_hash) != block_hash:
                    await self._reopen(network, number, block_hash)

    async def _reopen(self, network: str, number: int, block_hash: str) -> None:
        """Make everything pending again that rests on a block that is gone."""
        detail = f"block {number} is no longer on the chain"
        while True:
            page = await list_in_block(self._parts.database, network, number, block_hash, _PAGE)
            for settlement_id in page.unreadable:
                _LOG.error("settlement_not_understood", settlement=settlement_id)
            count = await self._reopened(page.settlements, detail)
            if not count:
                return
            _LOG.error("settlements_reorganised", network=network, block=number, settlements=count)
            self._parts.metrics.reorganised.labels(network).inc(count)

    async def _reopened(self, rows: list[Settlement], detail: str) -> int:
        """Return how many were opened again, in one commit; where that cannot be, row by row. Raises: StorageError."""
        try:
            return await self._parts.reopen(rows, detail)
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - one of them: the others are opened all the same
            if len(rows) == 1:
                _LOG.exception("settlement_not_understood", settlement=rows[0].id)
                return 0
            return sum([await self._reopened([row], detail) for row in rows])
