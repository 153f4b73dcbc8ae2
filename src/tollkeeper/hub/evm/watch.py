"""Watch of recovery on an EVM network: the blocks that outcomes rest on, and the signers' nonces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.settlement.proof import EXPIRY_MARGIN_SECONDS
from tollkeeper.hub.evm.findings import OVERDUE_SECONDS, valid_before
from tollkeeper.hub.evm.nonce_lanes import LaneKeeper
from tollkeeper.hub.evm.reorganisations import ReorganisationWatch
from tollkeeper.hub.settlement.family import PoolView
from tollkeeper.storage import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.settlement.parts import SettlementParts
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
        try:
            await self._reorganisations.look(account, head.number, thoroughly=thoroughly)
        except (StorageError, RpcUnavailable):
            raise
        except Exception:  # noqa: BLE001 - lanes and rows do not wait for it
            _LOG.exception("blocks_not_understood", network=account.chain.network.name)
        view = PoolView(chain_seconds=head.timestamp_seconds)
        for relayer in account.signers.relayers:
            try:
                seen = await self.lanes.move(account, relayer)
            except (StorageError, RpcUnavailable):
                raise
            except Exception:  # noqa: BLE001 - a poison lane: what lies in it is looked at row by row all the same
                _LOG.exception("lane_not_understood", network=account.chain.network.name, signer=relayer.signer.address)
                continue
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
