"""Orders of x402 version 2: an outcome, or a transaction to ask for, and never neither (contract 10.2).

A server of version 2 asks once more where it is told a transaction, and takes everything else for a refusal. So where
nobody waits for an order any more and nothing was signed for it, it is withdrawn in one commit: what is signed for it
later is undone, and its caller is refused for good. The payment may be ordered anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.settlement.orders import SettleOutcome, refusal
from tollkeeper.storage.engine.database import StorageError

if TYPE_CHECKING:
    from tollkeeper.hub.families import AnyOrder, FamilyDispatch


async def settle_or_withdraw(settling: FamilyDispatch, order: AnyOrder, until: float) -> SettleOutcome:
    """Settle an order by `FamilyDispatch.settle`, but refuse it where nothing is signed for it by `until` (loop time).

    Raises: SETTLEMENT_PENDING that names a transaction, or where the database does not say whether there is one;
    otherwise as `FamilyDispatch.settle`.
    """
    settled = asyncio.ensure_future(settling.settle(order))
    try:
        await asyncio.wait({settled}, timeout=until - asyncio.get_running_loop().time())
        if not settled.done() and not await settling.records.withdraw(order):
            return refusal(Reason.NOT_STARTED.value)
        return await settled  # soon: what is signed is followed until its time is up, or until a node has answered
    except ApiError as error:
        if error.code is not Code.SETTLEMENT_PENDING or pending_transaction(error):
            raise
        return await _without_transaction(settling, order, error)
    finally:
        settled.cancel()


async def _without_transaction(settling: FamilyDispatch, order: AnyOrder, pending: ApiError) -> SettleOutcome:
    """Find the transaction of a pending order, or withdraw it. Raises: SETTLEMENT_PENDING."""
    try:
        transaction = await settling.records.withdraw(order)
    except StorageError:
        raise pending from None
    if transaction:
        raise settling.records.pending(order.key, transaction)
    return refusal(Reason.NOT_STARTED.value)


def pending_transaction(pending: ApiError) -> str:
    """Transaction that a SETTLEMENT_PENDING names; empty where there is none."""
    return str((pending.details or {}).get("transaction", ""))
