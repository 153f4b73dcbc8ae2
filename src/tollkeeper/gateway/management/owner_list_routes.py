"""Routes of an owner's lists and feed (contract 11)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from litestar import Response
from litestar.response import Stream

from tollkeeper.api import HttpRequest, bearer_token, query_of, table_unless_known, unless_known
from tollkeeper.core.api.csv_table import prefers_csv
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.feed import MEDIA_TYPE
from tollkeeper.gateway.management.owner_lists import PAYMENT_COLUMNS, REQUEST_COLUMNS, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.gateway.management.feed import OwnerFeed
    from tollkeeper.gateway.management.owner_lists import OwnerLists


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
