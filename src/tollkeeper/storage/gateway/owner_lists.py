"""Rows of requests and payments at all gates of an owner, for the pages that he reads (contract 2, 11)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import load_queries, read_page

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Database, Row

_Q: Final = load_queries("owner_lists.sql")
FEED_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows of a listing: of one gate, or of all gates of the owner; of a time, a payer, an outcome or state."""

    owner_wallet: str
    from_ms: int
    to_ms: int
    gate_id: int = 0
    payer: str = ""


class OwnerRows:
    """The rows in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def requests(self, wanted: RowFilter, outcome: str, limit: int, offset: int) -> tuple[list[Row], int]:
        """Return requests, newest first, and how many there are."""
        values = {**asdict(wanted), "outcome": outcome}
        count, page = _Q.count_requests_found(**values), _Q.requests_found(**values, limit=limit, offset=offset)
        return await read_page(self._database, count, page, wanted.owner_wallet)

    async def request(self, request_id: str) -> Row | None:
        """Return one request."""
        rows = await self._database.read(_Q.request_by_id(id=request_id))
        return rows[0] if rows else None

    async def feed(self, owner_wallet: str, since_ms: int) -> list[Row]:
        """Return the newest requests since then that were no mere question for the price, newest first."""
        feed = _Q.requests_since(owner_wallet=owner_wallet, since_ms=since_ms, limit=FEED_MAX)
        return await self._database.read(feed, tenant=owner_wallet)

    async def payments(
        self, wanted: RowFilter, state: str, limit: int, offset: int, *, held: bool
    ) -> tuple[list[Row], int]:
        """Return payments, newest first, and how many there are. `held`: only those with credits left."""
        values = {**asdict(wanted), "state": state, "held": int(held)}
        count, page = _Q.count_payments_found(**values), _Q.payments_found(**values, limit=limit, offset=offset)
        return await read_page(self._database, count, page, wanted.owner_wallet)

    async def payment(self, purchase_id: str) -> Row | None:
        """Return one payment."""
        rows = await self._database.read(_Q.payment_by_id(id=purchase_id))
        return rows[0] if rows else None

    async def owner_of(self, gate_id: int) -> str | None:
        """Return who owns a gate, or owned it when it was deleted."""
        rows = await self._database.read(_Q.gate_of(gate_id=gate_id))
        owner: str | None = rows[0]["owner_wallet"] if rows else None
        return owner

    async def revenue(self, owner_wallet: str, from_ms: int, to_ms: int, size_ms: int) -> list[Row]:
        """Return the revenue of each gate, network and bucket of time."""
        statement = _Q.revenue_by_gate(owner_wallet=owner_wallet, from_ms=from_ms, to_ms=to_ms, size_ms=size_ms)
        return await self._database.read(statement, tenant=owner_wallet)

    async def failures(self, owner_wallet: str, from_ms: int) -> list[Row]:
        """Return the gates whose targets failed since then, and by which code."""
        return await self._database.read(
            _Q.failures_by_gate(owner_wallet=owner_wallet, from_ms=from_ms), tenant=owner_wallet
        )

    async def parked(self) -> list[Row]:
        """Return payments of every owner's gates whose outcome nobody can tell, oldest first."""
        return await self._database.read(_Q.payments_parked())

    async def waiting(self, owner_wallet: str, before_ms: int) -> list[Row]:
        """Return payments without an outcome that began before that time."""
        return await self._database.read(
            _Q.payments_waiting(owner_wallet=owner_wallet, before_ms=before_ms), tenant=owner_wallet
        )
