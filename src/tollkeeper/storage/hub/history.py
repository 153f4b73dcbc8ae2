"""A wallet's settlements, page by page (specification 2.5, 4.3; contract 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.queries import load_queries
from tollkeeper.storage.hub.settlements import Settlement, read_row

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.storage.engine.database import Database

_QUERIES: Final = load_queries("settlements.sql")


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Query for rows whose signer and/or recipient is `wallet`, of one network or ("") of all."""

    wallet: str
    as_signer: bool = True
    as_recipient: bool = True
    network: str = ""


async def list_history(
    database: Database, query: HistoryQuery, limit: int, offset: int
) -> tuple[list[Settlement], int]:
    """One page, newest first, and how many there are in all."""
    total = await database.read(_QUERIES.count_history(**_history(query)), tenant=query.wallet)
    page = _QUERIES.list_history(**_history(query), limit=limit, offset=offset)
    rows = await database.read(page, tenant=query.wallet)
    return [read_row(row) for row in rows], total[0]["total"]


def _history(query: HistoryQuery) -> JsonObject:
    return {
        "wallet": query.wallet,
        "as_signer": int(query.as_signer),
        "as_recipient": int(query.as_recipient),
        "network": query.network,
    }
