"""Fees that were given back for transfers which a reorganisation makes after all (contract 8, decision 0024).

A transfer whose transaction failed in its block gives its fee back, and the payer may have spent it for another one by
the time that a reorganisation has that very transaction succeed. So its status is asked of our hub at the ages at which
sales are looked at (`core.purchases.next_look_ms`), and a fee that is owed is told to the operator: nobody is charged
again by itself. So is one that was given back to one of two requests of a pair, of which the hub refused one and made
the other's transfer. Where the pair was asked for again meanwhile, it was charged again, and nothing is owed; nor where
another fee was charged for the transfer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.purchases import FIRST_LOOK_MS, CallState, next_look_ms
from tollkeeper.gateway.hub_client import HubUnreachableError
from tollkeeper.gateway.transfer_keys import of_transfer
from tollkeeper.storage.returned_fees import (
    ReturnedFee,
    charge_of_pair,
    due_returned,
    follow_returned,
    keep_returned,
    owe_returned,
)
from tollkeeper.storage.transfer_keys import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.gateway.hub_client import HubClient, Supported
    from tollkeeper.storage.database import Database

_PAGE: Final = 100
_UNANSWERED_MS: Final = 30_000
_LOG = structlog.get_logger("tollkeeper.gateway.returned_fees")


@dataclass(frozen=True, slots=True)
class ReturnedFees:
    """Of one database; of several workers one follows, also where transfers have a fee no more."""

    database: Database
    hub: HubClient
    supported: Callable[[], Supported]
    clock_ms: Callable[[], int]

    async def keep(self, call_id: str, transfer: PaymentKey, transaction: str) -> None:
        """Before a fee is given back: its transfer failed in that transaction. Raises: StorageError.

        Or behind it: that transaction made its transfer, for another request of its pair than the one that was refused.
        """
        now_ms = self.clock_ms()
        fee = ReturnedFee(call_id, transfer, transaction, now_ms)
        await self.database.run(keep_returned(fee, now_ms + FIRST_LOOK_MS))

    async def look_again(self) -> None:
        """One look at every one that is due. Raises: StorageError, HubUnreachableError."""
        if not self.supported().is_ours:
            return
        for fee in await due_returned(self.database, _PAGE, self.clock_ms()):
            await self._look(fee)

    async def _look(self, fee: ReturnedFee) -> None:
        now_ms = self.clock_ms()
        try:
            told = await self.hub.payment_status(fee.transfer, fee.call_id)
        except HubUnreachableError:
            await self.database.run(follow_returned(fee.call_id, fee.failed_ms, now_ms + _UNANSWERED_MS))
            raise
        failed_ms = min(fee.failed_ms, now_ms)  # of before the clock was put back: its age begins anew
        if told is not None and told.status == "pending":
            await self.database.run(follow_returned(fee.call_id, now_ms, now_ms + FIRST_LOOK_MS))
        elif told is not None and told.status == "success":
            # In another transaction it is another attempt's, which has a fee of its own; or it replaced this one.
            if told.transaction != fee.transaction_hash and not told.is_of_key:
                await self.database.run(follow_returned(fee.call_id, failed_ms, None))
                return
            await self._look_at_charge(replace(fee, transaction_hash=told.transaction), failed_ms, now_ms)
        else:
            await self._look_later(fee, failed_ms, now_ms)

    async def _look_at_charge(self, fee: ReturnedFee, failed_ms: int, now_ms: int) -> None:
        """Its transfer was made."""
        charge = await charge_of_pair(self.database, fee.call_id)
        if charge is None and (held := await key_of(self.database, of_transfer(fee.transfer))) is not None:
            charge = await charge_of_pair(self.database, held)
        if charge is CallState.DONE:
            await self.database.run(follow_returned(fee.call_id, failed_ms, None))
        elif charge is not None:  # it may be given back yet, whenever somebody asks what became of it
            later_ms = now_ms + max(FIRST_LOOK_MS, now_ms - failed_ms)
            await self.database.run(follow_returned(fee.call_id, failed_ms, later_ms))
        else:
            payer, transaction = fee.transfer.payer, fee.transaction_hash
            _LOG.error("fee_is_owed", call_id=fee.call_id, payer=payer, transaction=transaction)
            await self.database.run(owe_returned(fee, now_ms))

    async def _look_later(self, fee: ReturnedFee, failed_ms: int, now_ms: int) -> None:
        follow_ms = next_look_ms(failed_ms, now_ms, is_used_up=False)
        await self.database.run(follow_returned(fee.call_id, failed_ms, follow_ms))
