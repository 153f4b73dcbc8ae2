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


class ShowPayment(msgspec.Struct, frozen=True, kw_only=True):
    """A payment that is to spend a credit of its payer's. `row` and `pay_to` say what it would have bought.

    `kept_until`, `moment`: as in `core.purchases.AuthorizationStanding`.
    """

    key: PaymentKey
    spend_request: SpendRequest
    purchase_id: str
    row: ClaimRow
    pay_to: bytes
    kept_until: int
    moment: int

    @unit_of_work
    def unit(self) -> Steps[SpendResult]:
        """Spend a credit of the oldest purchase: UNKNOWN where none is held, STALE where the payment is known."""
        key, now_ms = self.key, self.row.now_ms
        place = Place(key.payer, self.spend_request.gate_id, key.network)
        yield _Q.forget_shown(network=key.network, moment=self.moment)
        shown = yield self._written()
        if not shown:
            return SpendResult(Spend.STALE)
        result = SpendResult(Spend.EXHAUSTED)
        while result.outcome is Spend.EXHAUSTED:  # another transaction was faster: the next one
            held = yield place.held(now_ms)
            if not held:
                result = SpendResult(Spend.UNKNOWN)
                break
            result = yield from spend_one(HeldSpend(None, held[0]["id"], self.spend_request), now_ms)
        if result.outcome is not Spend.SPENT:
            yield _Q.take_shown_back(number=shown[0]["number"])
        return result

    def _written(self) -> Statement:
        columns: JsonObject = msgspec.structs.asdict(self.row)
        return _Q.show_payment(
            id=self.purchase_id,
            **self.key.columns,
            gate_id=self.spend_request.gate_id,
            pay_to=self.pay_to,
            kept_until=self.kept_until,
            **columns,
        )


class ShownPayments:
    """Those of one database."""

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
        """Spend a credit of the payer's by this payment, as `ShowPayment` says. `terms`: what it would have bought.

        Raises: StorageError where the outcome is unknown, as each verb of `Purchases` that spends.
        """
        row = ClaimRow.of(terms, Paid(offered.value, offered.valid_before, NO_HEADER), now_ms)
        sealed = self._sealing.seal(terms.pay_to.encode(), sealed_place("purchases", purchase_id, "pay_to"))
        shown = ShowPayment(
            key=offered.key,
            spend_request=spend_request,
            purchase_id=purchase_id,
            row=row,
            pay_to=sealed,
            kept_until=standing.kept_until(offered),
            moment=standing.moment,
        )
        return await self._database.run(shown.unit(), is_short=True)
