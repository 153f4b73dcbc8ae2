"""The overview: numbers and their change, revenue by PayGate, what needs attention, and what happens right now."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.api import clock_ms
from tollkeeper.core.paygates.statistics import DAY_MS, HOUR_MS, parse_span
from tollkeeper.gateway.management.statistics import parse_time
from tollkeeper.web.dashboard.visit import PageAnswer
from tollkeeper.web.explanations import CODES, explain
from tollkeeper.web.figures import calls_chart, columns_of, headline, revenue_by_gate_chart, span_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.gateway.management.owner_lists import OwnerLists
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.gateway.management.statistics import Reports
    from tollkeeper.web.dashboard.visit import Visit

# A stream ends by itself and is asked for again, so that no stop of the program waits for a browser.
_STREAM_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 1.0
# Another node writes its rows in its own time, and clocks differ.
_LATE_MS: Final = 5_000
_FEED_ROWS: Final = 20
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Overview:
    """The page and its feed."""

    management: Management
    reports: Reports
    lists: OwnerLists

    async def show(self, visit: Visit) -> PageAnswer:
        """Show the overview."""
        (days, query), (_, earlier) = span_of(visit.query), span_of(visit.query, before=1)
        stats = await self.reports.of_all(visit.bearer, query)
        before = await self.reports.of_all(visit.bearer, earlier)
        span = parse_span(query, clock_ms(), parse_time)
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
            feed=[_event(one) for one in reversed(feed[-_FEED_ROWS:])],
            since=now_ms - _LATE_MS,
            has_gates=(await self.management.page(visit.bearer, 1, 0))["pagination"].total_count > 0,
        )

    async def events(self, visit: Visit) -> PageAnswer:
        """Send what is new as server-sent events, from the one behind `Last-Event-ID` or `since` on."""
        text = visit.headers.get("last-event-id") or visit.query.get("since", "")
        since_ms = int(text.partition("-")[0]) if text.partition("-")[0].isdigit() and len(text) < 80 else clock_ms()
        return PageAnswer(self._stream(visit, since_ms, text.partition("-")[2]), media_type="text/event-stream")

    async def _stream(self, visit: Visit, since_ms: int, last_id: str) -> AsyncIterator[bytes]:
        """Look again and again, until the browser is gone or its time is over; also when the program stops."""
        yield b"retry: 1000\n\n"
        sent: dict[str, None] = {last_id: None}
        ends, first_ms = time.monotonic() + _STREAM_SECONDS, since_ms
        gone = asyncio.create_task(visit.until_gone())
        try:
            while time.monotonic() < ends and not gone.done():
                for one in await self.lists.feed(visit.bearer, max(first_ms, since_ms - _LATE_MS)):
                    if one["requestId"] in sent or (one["atMs"], one["requestId"]) <= (first_ms, last_id):
                        continue
                    sent[one["requestId"]] = None
                    since_ms = max(since_ms, one["atMs"])
                    event_id = f"{one['atMs']}-{one['requestId']}"
                    yield b"id: %b\ndata: %b\n\n" % (event_id.encode(), _ENCODE(_event(one)))
                await asyncio.wait({gone}, timeout=_LOOK_SECONDS)
        except asyncio.CancelledError:
            return
        finally:
            gone.cancel()


def _event(request: JsonObject) -> JsonObject:
    return {
        "id": request["requestId"],
        "at": request["at"],
        "gate": request["title"] or request["slug"],
        "what": f"sold for {request['sale']} USDC" if request["sale"] else request["outcome"],
        "isGood": request["outcome"] == "served",
        "meaning": explain(request["outcome"], request["code"]),
    }
