"""Watch of recovery on a Solana network: what was told until it is final. There are no nonces to keep moving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.hub.settlement.family import PoolView
from tollkeeper.hub.solana.finality import FinalityWatch
from tollkeeper.storage import StorageError

if TYPE_CHECKING:
    from tollkeeper.hub.settlement.parts import SettlementParts
    from tollkeeper.hub.solana.account import SolanaAccount
    from tollkeeper.storage.hub.settlements import Settlement

_LOG = structlog.get_logger("tollkeeper.hub")


class SolanaWatch:
    """Watch of all Solana networks of one process."""

    def __init__(self, parts: SettlementParts) -> None:
        self._finality = FinalityWatch(parts)

    async def look(self, account: SolanaAccount, *, thoroughly: bool) -> PoolView:  # noqa: ARG002 - each row is asked about once
        """Watch finality. Raises: RpcUnavailable, StorageError."""
        try:
            await self._finality.look(account)
        except (StorageError, RpcUnavailable):
            raise
        except Exception:  # noqa: BLE001 - rows do not wait for it
            _LOG.exception("blocks_not_understood", network=account.chain.network.name)
        return PoolView()

    def is_overdue(self, row: Settlement, view: PoolView) -> bool:  # noqa: ARG002 - there is no pool
        """Say yes: what is not seen is found out about, or sent again."""
        return True
