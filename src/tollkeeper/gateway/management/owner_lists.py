"""Lists over all gates of an owner: requests, payments, what is new, what needs attention (contract 11)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from litestar import Response
from litestar.response import Stream

from tollkeeper.api import (
    HttpRequest,
    bearer_token,
    clock_ms,
    integer_parameter,
    iso,
    page_parameters,
    pagination,
    query_of,
    table_unless_known,
    unless_known,
)
from tollkeeper.core.api.csv_table import csv_table, prefers_csv
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.paygates.statistics import DAY_MS, RequestOutcome, Span, parse_time
from tollkeeper.core.purchases import PurchaseState
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import parse_wallet, shown_address
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.storage.gateway.owner_lists import RowFilter
from tollkeeper.storage.ledger.purchase_rows import in_whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.storage.engine.database import Row
    from tollkeeper.storage.gateway.owner_lists import OwnerRows

_DEFAULT_DAYS: Final = 30
_ATTENTION_MS: Final = DAY_MS
_LONG_MS: Final = 60_000
_FOREVER_MS: Final = 2**47
REQUEST_COLUMNS: Final = (
    *("at", "requestId", "paygateId", "slug", "method", "status", "outcome", "code", "durationUs"),
    *("purchaseId", "payer", "network", "sale"),
)
PAYMENT_COLUMNS: Final = (
    *("createdAt", "paidAt", "id", "paygateId", "slug", "title", "status", "amount", "credits", "remaining"),
    *("network", "payer", "transaction", "failure"),
)
# What an owner calls the states of a payment.
STATES: Final = {
    PurchaseState.CLAIMED: "pending",
    PurchaseState.LIVE: "paid",
    PurchaseState.FAILED: "failed",
    PurchaseState.VOID: "void",
    PurchaseState.PARKED: "parked",
}
_STATE_OF: Final = {word: state for state, word in STATES.items()}


@dataclass(frozen=True, slots=True)
class OwnerLists:
    """Verbs behind an owner's lists."""

    management: Management
    rows: OwnerRows

    async def wallet(self, bearer: str | None) -> str:
        """Return whose lists these are. Raises: AUTH_REQUIRED, INVALID_TOKEN."""
        caller = await self.management.ownership.caller(bearer)
        if caller.wallet is None:
            raise ApiError(Code.AUTH_REQUIRED, "log in to see what happened at your PayGates")
        return caller.wallet

    async def requests(self, bearer: str | None, query: Mapping[str, str]) -> JsonObject:
        """Requests, newest first. Filters: paygate, outcome, payer, from, to. Raises: INVALID_PARAMETER, FORBIDDEN."""
        limit, offset = page_parameters(query)
        outcome = _word(query, "outcome", RequestOutcome)
        rows, total = await self.rows.requests(await self._filter(bearer, query), outcome, limit, offset)
        return {"data": [_request(row) for row in rows], "pagination": pagination(total, limit, offset)}

    async def request(self, bearer: str | None, request_id: str) -> JsonObject:
        """One request. Raises: NOT_FOUND, also for one at another's gate."""
        row = await self.rows.request(request_id)
        if row is None or not await self._may_see(bearer, row["gate_id"]):
            raise ApiError(Code.NOT_FOUND, "there is no such request at a PayGate of yours, or its row is too old")
        return _request(row)

    async def payments(self, bearer: str | None, query: Mapping[str, str]) -> JsonObject:
        """Payments, newest first. Filters: paygate, status, payer, held, from, to.

        Raises: INVALID_PARAMETER, FORBIDDEN.
        """
        limit, offset = page_parameters(query)
        status = _word(query, "status", _STATE_OF)
        state = _STATE_OF[status].value if status else ""
        held = _word(query, "held", ("true",)) != ""
        wanted = await self._filter(bearer, query)
        rows, total = await self.rows.payments(wanted, state, limit, offset, held=held)
        return {"data": [_payment(row) for row in rows], "pagination": pagination(total, limit, offset)}

    async def payment(self, bearer: str | None, purchase_id: str) -> JsonObject:
        """One payment. Raises: NOT_FOUND, also for one at another's gate."""
        row = await self.rows.payment(purchase_id)
        if row is None or not await self._may_see(bearer, row["gate_id"]):
            raise ApiError(Code.NOT_FOUND, "there is no such payment at a PayGate of yours")
        return _payment(row)

    async def feed(self, bearer: str | None, since_ms: int) -> list[JsonObject]:
        """Return what is new since then, oldest first."""
        rows = await self.rows.feed(await self.wallet(bearer), since_ms)
        return [_request(row) for row in reversed(rows)]

    async def revenue(self, bearer: str | None, span: Span) -> dict[str, dict[int, int]]:
        """Return micro-units by gate's name and beginning of the bucket."""
        rows = await self.rows.revenue(await self.wallet(bearer), span.from_ms, span.to_ms, span.size_ms)
        found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for row in rows:
            found[row["title"] or row["slug"]][row["start_ms"]] += in_whole(row["revenue_high"], row["revenue_low"])
        return found

    async def attention(self, bearer: str | None) -> dict[str, list[JsonObject]]:
        """Return what went wrong within a day and what waits for long."""
        wallet, now_ms = await self.wallet(bearer), clock_ms()
        failing = [
            {
                "paygateId": row["gate_id"],
                "name": row["title"] or row["slug"],
                "code": row["code"],
                "requests": row["requests"],
            }
            for row in await self.rows.failures(wallet, now_ms - _ATTENTION_MS)
        ]
        waiting = [
            {"id": row["id"], "name": row["title"] or row["slug"], "status": STATES[PurchaseState(row["state"])]}
            | {"since": iso(row["claimed_ms"])}
            for row in await self.rows.waiting(wallet, now_ms - _LONG_MS)
        ]
        return {"failing": failing, "waiting": waiting}

    async def _may_see(self, bearer: str | None, gate_id: int) -> bool:
        owner = await self.rows.owner_of(gate_id)
        if owner is None:
            await self.management.managed(bearer, gate_id)
            return True
        return owner == await self.wallet(bearer)

    async def _filter(self, bearer: str | None, query: Mapping[str, str]) -> RowFilter:
        """Raises: INVALID_PARAMETER; FORBIDDEN and NOT_FOUND for a gate that is not the caller's."""
        wallet, gate_id = await self.wallet(bearer), 0
        if "paygate" in query:
            gate_id = integer_parameter(query, "paygate", low=1, high=2**53 - 1, default=None)
            await self.management.managed(bearer, gate_id)
        payer = query.get("payer")
        now_ms = clock_ms()
        return RowFilter(
            wallet,
            parse_time(query, "from", now_ms - _DEFAULT_DAYS * DAY_MS),
            parse_time(query, "to", _FOREVER_MS),
            gate_id,
            "" if payer is None else parse_wallet(payer, field="payer"),
        )


def table_of(columns: Sequence[str], rows: Iterable[JsonMapping]) -> str:
    """Return these columns of rows as CSV."""
    return csv_table(columns, ([row[column] for column in columns] for row in rows))


def _word(query: Mapping[str, str], name: str, words: Iterable[str]) -> str:
    """Return one of these words; empty where none is asked for. Raises: INVALID_PARAMETER."""
    word = query.get(name)
    if word is not None and word not in set(words):
        raise invalid(name, f"{name} must be one of {', '.join(words)}")
    return word or ""


def _request(row: Row) -> JsonObject:
    began_ms = row["at_ms"] - row["duration_us"] // 1000
    bought = row["claimed_ms"] is not None and row["claimed_ms"] >= began_ms - 1
    return {
        "requestId": row["id"],
        "paygateId": row["gate_id"],
        "slug": row["slug"],
        "title": row["title"],
        "at": iso(row["at_ms"]),
        "atMs": row["at_ms"],
        "method": row["method"],
        "status": row["status"],
        "outcome": row["outcome"],
        "code": row["code"],
        "durationUs": row["duration_us"],
        "purchaseId": row["purchase_id"],
        "payer": None if row["payer"] is None else shown_address(row["payer"]),
        "network": row["network"],
        "sale": format_usdc(int(row["value_micro"])) if bought else None,
        "claimedMs": row["claimed_ms"] if bought else None,
        "grantedMs": row["granted_ms"] if bought else None,
    }


def _payment(row: Row) -> JsonObject:
    return {
        "id": row["id"],
        "paygateId": row["gate_id"],
        "slug": row["slug"],
        "title": row["title"],
        "status": STATES[PurchaseState(row["state"])],
        "failure": row["failure"],
        "network": row["network"],
        "payer": shown_address(row["payer"]),
        "amount": format_usdc(int(row["value_micro"])),
        "price": format_usdc(row["price_micro"]),
        "credits": row["credits"],
        "remaining": row["remaining"],
        "expiresAt": None if row["expires_ms"] is None else iso(row["expires_ms"]),
        "transaction": row["transaction_hash"],
        "createdAt": iso(row["claimed_ms"]),
        "paidAt": None if row["granted_ms"] is None else iso(row["granted_ms"]),
        "updatedAt": iso(row["updated_ms"]),
    }


# Routes of an owner's lists, and the feed of an owner's gates as server-sent events (contract 11). The feed has sales,
# calls and failures. It is read from the database, so that it is the same whichever node is asked, and goes on behind
# the id of the last event that its reader has.

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
