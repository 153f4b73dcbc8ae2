"""Spending a held credit by a payment that is never settled, in one commit (contract 10.3).

The payment's identity goes where claims have theirs, so whichever commits first decides whether it is shown or bought
with. What its chain can use no more is forgotten on the way. Nothing else of the payment is kept, nor a hash of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.keys.sealing import place as sealed_place
from tollkeeper.core.purchases import Spend
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import load_queries, unit_of_work
from tollkeeper.storage.ledger.first_purchase import ClaimRow, Paid
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult, purchase_from
from tollkeeper.storage.ledger.spends import HeldSpend, spend_one

if TYPE_CHECKING:
    from tollkeeper.core.keys.sealing import Sealing
    from tollkeeper.core.payment_offers import OfferedPayment
    from tollkeeper.core.purchases import AuthorizationStanding, Terms
    from tollkeeper.storage.engine.database import Database, Statement, Steps
    from tollkeeper.storage.ledger.purchase_rows import Purchase

_Q: Final = load_queries("gateway.sql")
NO_HEADER: Final = bytes(32)


class Place(msgspec.Struct, frozen=True):
    """Place where a payer's credits count for each other: one wallet at one gate on one network."""

    payer: str
    gate_id: int
    network: str

    def held(self, now_ms: int) -> Statement:
        """Ask for the oldest purchase that holds a credit there."""
        return _Q.held_of_payer(**msgspec.structs.asdict(self), now_ms=now_ms)

    def claims(self, since_ms: int) -> Statement:
        """Ask for what is being bought there since then."""
        return _Q.claims_of_payer(**msgspec.structs.asdict(self), since_ms=since_ms)


@unit_of_work
def _spend_shown(
    show: Statement, place: Place, moment: int, spend_request: SpendRequest, now_ms: int
) -> Steps[SpendResult]:
    """Spend a credit of the oldest purchase: UNKNOWN where none is held, STALE where the payment is known."""
    yield _Q.forget_shown(network=place.network, moment=moment)
    shown = yield show
    if not shown:
        return SpendResult(Spend.STALE)
    result = SpendResult(Spend.EXHAUSTED)
    while result.outcome is Spend.EXHAUSTED:  # another transaction was faster: the next one
        held = yield place.held(now_ms)
        if not held:
            result = SpendResult(Spend.UNKNOWN)
            break
        result = yield from spend_one(HeldSpend(None, held[0]["id"], spend_request), now_ms)
    if result.outcome is not Spend.SPENT:
        yield _Q.take_shown_back(number=shown[0]["number"])
    return result


class ShownPayments:
    """Payments that were shown to spend held credits, in one database."""

    def __init__(self, database: Database, sealing: Sealing) -> None:
        self._database = database
        self._sealing = sealing

    async def has(self, key: PaymentKey) -> bool:
        """Tell whether the payment was claimed or shown before."""
        known = _Q.purchase_by_payment(**key.columns)
        return bool(await self._database.read(known, is_short=True))

    async def holds(self, place: Place, now_ms: int) -> bool:
        """Tell whether the payer holds a credit there."""
        return bool(await self._database.read(place.held(now_ms), is_short=True))

    async def claims(self, place: Place, since_ms: int) -> list[Purchase]:
        """List what the payer has begun to buy there since then, oldest first."""
        return [purchase_from(row) for row in await self._database.read(place.claims(since_ms), is_short=True)]

    async def spend(
        self,
        offered: OfferedPayment,
        terms: Terms,
        standing: AuthorizationStanding,
        spend_request: SpendRequest,
        *,
        purchase_id: str,
        now_ms: int,
    ) -> SpendResult:
        """Spend a credit of the payer's by this payment. `terms`: what it would have bought.

        UNKNOWN where none is held, STALE where the payment is known.
        Raises: StorageError where the outcome is unknown, as each verb of `Purchases` that spends.
        """
        row: JsonObject = msgspec.structs.asdict(
            ClaimRow.of(terms, Paid(offered.value, offered.valid_before, NO_HEADER), now_ms)
        )
        show = _Q.show_payment(
            id=purchase_id,
            **offered.key.columns,
            gate_id=spend_request.gate_id,
            pay_to=self._sealing.seal(terms.pay_to.encode(), sealed_place("purchases", purchase_id, "pay_to")),
            kept_until=standing.kept_until(offered),
            **row,
        )
        place = Place(offered.key.payer, spend_request.gate_id, offered.key.network)
        unit = _spend_shown(show, place, standing.moment, spend_request, now_ms)
        return await self._database.run(unit, is_short=True)
