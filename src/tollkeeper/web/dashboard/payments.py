"""The pages of payments: every purchase at the owner's PayGates, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway.management.owner_lists import PAYMENT_COLUMNS, STATES, table_of
from tollkeeper.web.dashboard.listing import Paging, as_csv, as_json, given
from tollkeeper.web.explanations import STATUSES

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.gateway.management.owner_lists import OwnerLists
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit

_FILTERS: Final = ("paygate", "status", "payer", "held", "from", "to")


@dataclass(frozen=True, slots=True)
class PaymentPages:
    """The pages."""

    lists: OwnerLists

    async def show(self, visit: Visit, form: str) -> PageAnswer:
        """Show one page of the payments. Raises: INVALID_PARAMETER, FORBIDDEN."""
        paging = Paging.of(visit.query, *_FILTERS)
        body = await self.lists.payments(visit.bearer, given(visit.query))
        if form == ".json":
            return as_json(body)
        if form == ".csv":
            return as_csv("payments", table_of(PAYMENT_COLUMNS, body["data"]))
        return visit.page(
            "payments.html",
            payments=[linked(one) for one in body["data"]],
            statuses=list(STATES.values()),
            **paging.values(body["pagination"].total_count),
        )

    async def one(self, visit: Visit, purchase_id: str) -> PageAnswer:
        """Show one payment. Raises: NOT_FOUND."""
        payment = linked(await self.lists.payment(visit.bearer, purchase_id))
        return visit.page("payment.html", payment=payment, meaning=STATUSES[payment["status"]])


def linked(payment: JsonMapping) -> JsonObject:
    """Add where the transaction is seen."""
    explorer = NETWORKS[payment["network"]].explorer
    return {**payment, "explorer": explorer.format(payment["transaction"]) if payment["transaction"] else ""}
