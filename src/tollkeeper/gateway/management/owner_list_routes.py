"""Routes of an owner's lists, and the feed of an owner's gates as server-sent events (contract 11).

The feed has sales, calls and failures. It is read from the database, so that it is the same whichever node is asked,
and goes on behind the id of the last event that its reader has.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from litestar import Response
from litestar.response import Stream

from tollkeeper.api import HttpRequest, bearer_token, clock_ms, query_of, table_unless_known, unless_known
from tollkeeper.core.api.csv_table import prefers_csv
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.owner_lists import PAYMENT_COLUMNS, REQUEST_COLUMNS, table_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.gateway.management.owner_lists import OwnerLists

MEDIA_TYPE: Final = "text/event-stream"
# A stream ends by itself and is asked for again, so that no stop of the program waits for a browser.
STREAM_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 1.0
# Another node writes its rows in its own time, and clocks differ.
LATE_MS: Final = 5_000
STREAMS_MAX: Final = 20  # of one owner, at this node: each asks the database once a second
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class OwnerFeed:
    """The streams that are open at this node."""

    lists: OwnerLists
    _open: Counter[str] = field(default_factory=Counter)

    async def begin(self, bearer: str | None, after: str, gone: asyncio.Future[None]) -> AsyncIterator[bytes]:
        """Return the events behind the id `after`, or from that time in milliseconds on; until `gone` is done.

        Raises: AUTH_REQUIRED, INVALID_TOKEN, RATE_LIMITED.
        """
        wallet = await self.lists.wallet(bearer)
        if self._open[wallet] >= STREAMS_MAX:
            headers = {"Retry-After": str(round(STREAM_SECONDS))}
            raise ApiError(Code.RATE_LIMITED, f"{STREAMS_MAX} of your event streams are open", headers=headers)
        moment, _, last_id = after.partition("-")
        is_time = moment.isascii() and moment.isdigit() and len(moment) < 16
        return self._events(wallet, bearer, int(moment) if is_time else clock_ms(), last_id, gone)

    async def _events(
        self, wallet: str, bearer: str | None, since_ms: int, last_id: str, gone: asyncio.Future[None]
    ) -> AsyncIterator[bytes]:
        """Look again and again, until its time is over; also when the program stops or the login ends."""
        self._open[wallet] += 1
        sent: dict[str, None] = {last_id: None}
        ends, first_ms = time.monotonic() + STREAM_SECONDS, since_ms
        try:
            yield b"retry: 1000\n\n"
            while time.monotonic() < ends and not gone.done():
                for one in await self.lists.feed(bearer, max(first_ms, since_ms - LATE_MS)):
                    if one["requestId"] in sent or (one["atMs"], one["requestId"]) <= (first_ms, last_id):
                        continue
                    sent[one["requestId"]] = None
                    since_ms = max(since_ms, one["atMs"])
                    event_id = f"{one['atMs']}-{one['requestId']}"
                    yield b"id: %b\ndata: %b\n\n" % (event_id.encode(), _ENCODE(one))
                await asyncio.wait({gone}, timeout=_LOOK_SECONDS)
        except (ApiError, asyncio.CancelledError):
            return
        finally:
            self._open[wallet] -= 1
            if not self._open[wallet]:
                del self._open[wallet]


def owner_list_routes(lists: OwnerLists, feed: OwnerFeed) -> list[HTTPRouteHandler]:
    """Make the route handlers."""

    @route(operations.OWNER_REQUESTS)
    async def requests(request: HttpRequest) -> Response[bytes]:
        """Contract 11."""
        body = await lists.requests(bearer_token(request.headers), query_of(request))
        return _listed(request, REQUEST_COLUMNS, body)

    @route(operations.OWNER_PAYMENTS)
    async def payments(request: HttpRequest) -> Response[bytes]:
        """Contract 11."""
        body = await lists.payments(bearer_token(request.headers), query_of(request))
        return _listed(request, PAYMENT_COLUMNS, body)

    @route(operations.EVENTS)
    async def events(request: HttpRequest) -> Stream:
        """Contract 11; Litestar ends the stream when its reader is gone."""
        after = request.headers.get("last-event-id") or query_of(request).get("since", "")
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if request.method == "HEAD":
            gone.set_result(None)
        stream = await feed.begin(bearer_token(request.headers), after, gone)
        return Stream(stream, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    return [requests, payments, events]


def _listed(request: HttpRequest, columns: Sequence[str], body: JsonMapping) -> Response[bytes]:
    headers = {"Vary": "Accept"}
    if prefers_csv(request.headers.get("accept", "")):
        return table_unless_known(request, table_of(columns, body["data"]), body["pagination"].total_count, headers)
    return unless_known(request, body, headers)
