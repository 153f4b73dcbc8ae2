"""The reports that owners read of their gates: statistics, and the log of requests (contract 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from litestar import Response

from tollkeeper.api import HttpRequest, bearer_token, clock_ms, iso, page_parameters, pagination, query_of, unless_known
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.paygates.statistics import DAY_MS, HOUR_MS, RequestOutcome, parse_span, statistics_body
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.bodies import RequestPage, RequestRow
from tollkeeper.gateway.management.paygates import gate_id_of
from tollkeeper.storage.gateway.statistics import Whose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.statistics import Kept
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.storage.engine.database import Row
    from tollkeeper.storage.gateway.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Reports:
    """The verbs behind the routes; `management` says who may read which gate, `kept` for how long."""

    management: Management
    statistics: Statistics
    kept: Kept

    async def of_all(self, bearer: str | None, query: Mapping[str, str]) -> JsonObject:
        """Report on all the caller's gates. Raises: AUTH_REQUIRED, INVALID_TOKEN, INVALID_PARAMETER."""
        caller = await self.management.ownership.caller(bearer)
        self.management.ownership.require_known(caller)
        if caller.wallet is None:
            raise ApiError(Code.AUTH_REQUIRED, "log in to see what all your PayGates did")
        return await self._report(Whose(caller.wallet, owner_wallet=caller.wallet), query)

    async def of_gate(self, bearer: str | None, gate_id: int, query: Mapping[str, str]) -> JsonObject:
        """Report on one gate. Raises: FORBIDDEN, NOT_FOUND, INVALID_PARAMETER."""
        gate, _ = await self.management.managed(bearer, gate_id)
        return await self._report(Whose(gate.tenant, gate_id=gate_id), query)

    async def _report(self, whose: Whose, query: Mapping[str, str]) -> JsonObject:
        now_ms = clock_ms()
        span = parse_span(query, now_ms)
        buckets = await self.statistics.read(whose, span)
        return statistics_body(span, buckets, await self.statistics.outstanding(whose, now_ms), iso)

    async def requests(self, bearer: str | None, gate_id: int, query: Mapping[str, str]) -> RequestPage:
        """Return a gate's requests, newest first; `outcome` filters."""
        gate, _ = await self.management.managed(bearer, gate_id)
        limit, offset = page_parameters(query)
        named = query.get("outcome")
        try:
            outcome = None if named is None else RequestOutcome(named)
        except ValueError:
            raise invalid("outcome", f"outcome must be one of {', '.join(RequestOutcome)}") from None
        rows, total = await self.statistics.requests(gate_id, gate.tenant, limit, offset, outcome)
        since_ms = (clock_ms() - self.kept.log_days * DAY_MS) // HOUR_MS * HOUR_MS
        not_logged = await self.statistics.not_logged(gate_id, since_ms)
        return RequestPage([_row(row) for row in rows], pagination(total, limit, offset), not_logged)


def _row(row: Row) -> RequestRow:
    same = {name: row[name] for name in ("method", "status", "outcome", "code", "duration_us", "purchase_id")}
    return RequestRow(row["id"], iso(row["at_ms"]), **same)


def stats_routes(reports: Reports) -> list[HTTPRouteHandler]:
    """The route handlers."""

    @route(operations.ALL_STATISTICS)
    async def of_all(request: HttpRequest) -> Response[bytes]:
        """Contract 2."""
        return unless_known(request, await reports.of_all(bearer_token(request.headers), query_of(request)))

    @route(operations.GATE_STATISTICS)
    async def of_gate(request: HttpRequest) -> Response[bytes]:
        """Contract 2."""
        gate_id = gate_id_of(request)
        body = await reports.of_gate(bearer_token(request.headers), gate_id, query_of(request))
        return unless_known(request, body)

    @route(operations.REQUESTS)
    async def requests(request: HttpRequest) -> Response[bytes]:
        """Contract 2: newest first."""
        gate_id = gate_id_of(request)
        body = await reports.requests(bearer_token(request.headers), gate_id, query_of(request))
        return unless_known(request, body)

    return [of_all, of_gate, requests]
