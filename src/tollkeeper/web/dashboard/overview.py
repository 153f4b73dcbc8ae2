"""The overview: numbers and their change, revenue by PayGate, what needs attention, and what happens right now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.core.paygates.statistics import DAY_MS, HOUR_MS, parse_span
from tollkeeper.gateway.management.owner_lists import LATE_MS, MEDIA_TYPE
from tollkeeper.web.dashboard.visit import PageAnswer
from tollkeeper.web.explanations import CODES
from tollkeeper.web.figures import calls_chart, columns_of, headline, revenue_by_gate_chart, span_of

if TYPE_CHECKING:
    from tollkeeper.gateway.management.owner_lists import OwnerFeed, OwnerLists
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.gateway.management.statistics import Reports
    from tollkeeper.web.dashboard.visit import Visit

_FEED_ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class Overview:
    """The page and its feed."""

    management: Management
    reports: Reports
    lists: OwnerLists
    feed: OwnerFeed

    async def show(self, visit: Visit) -> PageAnswer:
        """Show the overview."""
        (days, query), (_, earlier) = span_of(visit.query), span_of(visit.query, before=1)
        stats = await self.reports.of_all(visit.bearer, query)
        before = await self.reports.of_all(visit.bearer, earlier)
        span = parse_span(query, clock_ms())
        columns = columns_of(stats)
        starts = list(range(span.from_ms, span.to_ms, HOUR_MS if days == 1 else DAY_MS))
        revenue = await self.lists.revenue(visit.bearer, span)
        attention = await self.lists.attention(visit.bearer)
        for one in attention["failing"]:
            one["meaning"] = CODES.get(one["code"] or "", "It answered with an error of its own.")
        now_ms = clock_ms()
        feed = await self.lists.feed(visit.bearer, now_ms - 7 * DAY_MS)
        return visit.page(
            "overview.html",
            days=days,
            numbers=headline(stats, before),
            charts=[revenue_by_gate_chart(columns, starts, revenue), calls_chart(columns)],
            attention=attention,
            feed=feed[: -_FEED_ROWS - 1 : -1],
            since=now_ms - LATE_MS,
            has_gates=(await self.management.page(visit.bearer, 1, 0))["pagination"].total_count > 0,
        )

    async def events(self, visit: Visit) -> PageAnswer:
        """Send what is new as server-sent events, as the API does."""
        after = visit.headers.get("last-event-id") or visit.query.get("since", "")
        gone = asyncio.ensure_future(visit.until_gone())
        return PageAnswer(await self.feed.begin(visit.bearer, after, gone), media_type=MEDIA_TYPE)
