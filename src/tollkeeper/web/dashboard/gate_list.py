"""The list of an owner's PayGates, and of those that nobody owns yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.configuration import AnonymousPaygates
from tollkeeper.gateway.management.owner_lists import table_of
from tollkeeper.gateway.management.paygates import GateFilter
from tollkeeper.web.dashboard.listing import Paging, as_csv, as_json

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit

_COLUMNS: Final = [
    "id",
    "slug",
    "accessUrl",
    "title",
    "price",
    "credits",
    "network",
    "isEnabled",
    "resourceType",
    "challenges",
    "purchases",
    "calls",
    "failures",
    "revenue",
]


@dataclass(frozen=True, slots=True)
class GateList:
    """The pages of the list."""

    management: Management

    async def show(self, visit: Visit, form: str) -> PageAnswer:
        """Show one page of the list. Raises: INVALID_PARAMETER."""
        paging = Paging.of(visit.query, "q", "state")
        wanted = GateFilter.of(visit.query)
        body = await self.management.page(visit.bearer, paging.limit, paging.offset, wanted)
        if form == ".json":
            return as_json(body)
        if form == ".csv":
            return as_csv("paygates", table_of(_COLUMNS, ({**gate, **gate["counters"]} for gate in body["data"])))
        is_first = not (paging.offset or paging.filters)
        return visit.page(
            "gates.html",
            gates=body["data"],
            voided=_number(visit.query.get("voided", "")),
            unowned=await self._unowned() if is_first else [],
            **paging.values(body["pagination"].total_count),
        )

    async def _unowned(self) -> list[JsonObject]:
        """Return the newest PayGates that anybody may claim."""
        if self.management.ownership.anonymous is not AnonymousPaygates.MANAGE:
            return []
        unowned: list[JsonObject] = (await self.management.page(None, 20, 0))["data"]
        return unowned


def _number(text: str) -> str:
    """Return a number in a link; nothing for another text, which a stranger's link may hold."""
    return text if text.isascii() and text.isdigit() else ""
