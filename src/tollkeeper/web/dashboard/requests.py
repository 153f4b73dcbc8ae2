"""The pages of requests: the log over all PayGates, and one request's way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.paygates.statistics import RequestOutcome
from tollkeeper.gateway.management.owner_lists import REQUEST_COLUMNS, table_of
from tollkeeper.web.dashboard.listing import Paging, as_csv, as_json, given
from tollkeeper.web.explanations import explain

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.gateway.management.owner_lists import OwnerLists
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit

_FILTERS: Final = ("paygate", "outcome", "payer", "from", "to")


@dataclass(frozen=True, slots=True)
class RequestPages:
    """The pages."""

    lists: OwnerLists

    async def show(self, visit: Visit, form: str) -> PageAnswer:
        """Show one page of the log. Raises: INVALID_PARAMETER, FORBIDDEN."""
        paging = Paging.of(visit.query, *_FILTERS)
        body = await self.lists.requests(visit.bearer, given(visit.query))
        if form == ".json":
            return as_json(body)
        if form == ".csv":
            return as_csv("requests", table_of(REQUEST_COLUMNS, body["data"]))
        return visit.page(
            "requests.html",
            requests=body["data"],
            outcomes=[one.value for one in RequestOutcome],
            **paging.values(body["pagination"].total_count),
        )

    async def one(self, visit: Visit, request_id: str) -> PageAnswer:
        """Show one request. Raises: NOT_FOUND."""
        request = await self.lists.request(visit.bearer, request_id)
        return visit.page(
            "request.html",
            request=request,
            meaning=explain(request["outcome"], request["code"]),
            stages=_stages(request),
        )


def _stages(request: JsonMapping) -> list[JsonObject]:
    """Return the parts of a request's time, each with where it lies in the whole."""
    took = request["durationUs"] / 1000
    began, whole = request["atMs"] - took, max(took, 0.001)
    if request["claimedMs"] is None:
        names = {"challenged": "402: told the price", "refused": "Refused"}
        marks = [(names.get(request["outcome"], "Credit spent, target asked, answer passed on"), 0.0, took)]
    else:
        claimed = min(max(request["claimedMs"] - began, 0.0), took)
        granted = took if request["grantedMs"] is None else min(max(request["grantedMs"] - began, claimed), took)
        marks = [("Payment verified", 0.0, claimed), ("Settled and confirmed on the chain", claimed, granted)]
        if request["grantedMs"] is not None:
            marks.append(("Target asked, answer passed on", granted, took))
    return [
        {
            "name": name,
            "ms": end - start,
            "x": f"{640 * start / whole:.1f}",
            "width": f"{max(2, 640 * (end - start) / whole):.1f}",
        }
        for name, start, end in marks
    ]
