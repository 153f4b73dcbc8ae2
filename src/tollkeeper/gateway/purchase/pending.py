"""Requests that wait for a purchase which somebody else decides: another request, recovery, another process.

Who waits holds nothing; each looks the purchase up when it is told that something was decided, and once a second
besides. What it is told when that takes too long is here, too (contract 4.3, 4.5). Decides nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.gateway.purchase.monitor import key_of

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.gateway.purchase.parts import PurchaseParts
    from tollkeeper.storage.ledger.purchase_rows import Purchase

_LOOK_SECONDS: Final = 1.0  # for another process may decide it


@dataclass(slots=True)
class _AwaitedPurchase:
    """How many wait for a purchase, and how many of them may spend of it; what tells them that it was decided."""

    waiting: int = 0
    spending: int = 0
    decided: asyncio.Event = field(default_factory=asyncio.Event)


class PendingPurchases:
    """Those of one process."""

    def __init__(self, parts: PurchaseParts) -> None:
        self._parts = parts
        self._awaited: dict[str, _AwaitedPurchase] = {}

    def has_one_for(self, purchase_id: str) -> bool:
        """Does somebody wait right now for this purchase, and may spend of it?"""
        awaited = self._awaited.get(purchase_id)
        return awaited is not None and bool(awaited.spending)

    async def until_decided(self, purchase: Purchase, deadline: float, *, may_spend: bool) -> None:
        """Returns once this attempt is decided. Raises: SETTLEMENT_PENDING where `deadline` (loop time) comes first.

        `may_spend`: what was shown counts for the credits that it buys, so that it is worth buying them now.
        """
        awaited = self._awaited.setdefault(purchase.id, _AwaitedPurchase())
        awaited.waiting += 1
        awaited.spending += may_spend
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    decided = awaited.decided  # what is decided from here on, be it while this looks
                    current = await self._parts.purchases.by_id(purchase.id)  # by the loop
                    if current is None or current.state is not purchase.state or current.attempt != purchase.attempt:
                        return
                    with suppress(TimeoutError):  # not `wait_for`, which forgets that its task was cancelled
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await decided.wait()
        except TimeoutError:
            raise await self.pending_now(key_of(purchase), purchase) from None
        finally:
            awaited.waiting -= 1
            awaited.spending -= may_spend
            if not awaited.waiting:
                del self._awaited[purchase.id]

    def announce(self, purchase_id: str) -> None:
        """Wakes who waits for this purchase."""
        if (awaited := self._awaited.get(purchase_id)) is not None:
            awaited.decided.set()
            awaited.decided = asyncio.Event()

    def pending(self, key: PaymentKey, purchase: Purchase | None, transaction: str = "") -> ApiError:
        """503 for an outcome that nobody knows yet: the same payment must be sent again, never a new one."""
        known = "" if purchase is None else purchase.transaction_hash or ""
        details: JsonObject = {
            "retry": "send the same payment again",
            "statusUrl": self._parts.status_url + key.status_path,
            "transaction": transaction or known,
        }
        if purchase is not None:
            details["purchaseId"] = purchase.id
        return ApiError(
            Code.SETTLEMENT_PENDING,
            "the payment is being settled; send the same payment again, do not sign a new one",
            details=details,
        )

    async def pending_now(self, key: PaymentKey, purchase: Purchase | None) -> ApiError:
        """Make `pending` with the transaction that our hub names by now: what it told nobody yet is known there.

        It is not asked about a payment that nobody claimed here.
        """
        return self.pending(key, purchase, "" if purchase is None else await self._parts.hub.transaction_of(key))
