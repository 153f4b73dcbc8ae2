"""Lists over all gates of an owner: requests, payments, what is new, what needs attention (contract 11)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms, integer_parameter, iso, page_parameters, pagination
from tollkeeper.core.api.csv_table import csv_table
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.networks import format_usdc
from tollkeeper.core.paygates.statistics import DAY_MS, RequestOutcome, Span
from tollkeeper.core.purchases import PurchaseState
from tollkeeper.core.wallets import parse_wallet, shown_address
from tollkeeper.gateway.management.statistics import parse_time
from tollkeeper.storage.gateway.owner_lists import RowFilter
from tollkeeper.storage.ledger.purchase_rows import in_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    """The verbs behind the lists."""

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
            _moment(query, "from", now_ms - _DEFAULT_DAYS * DAY_MS),
            _moment(query, "to", _FOREVER_MS),
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


def _moment(query: Mapping[str, str], name: str, default_ms: int) -> int:
    text = query.get(name)
    if text is None:
        return default_ms
    when_ms = parse_time(text)
    if when_ms is None:
        raise invalid(name, f"{name} must be a time such as 2026-01-31T12:00:00Z, or a day")
    return when_ms


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
