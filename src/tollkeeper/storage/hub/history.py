"""A wallet's settlements, page by page, and the history item of a row (specification 2.5, 4.3; contract 7)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.families import FAMILIES
from tollkeeper.core.settlement.states import HistoryRow
from tollkeeper.core.wallets import family_of, shown_address
from tollkeeper.storage.engine.queries import load_queries
from tollkeeper.storage.hub.settlements import Settlement, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

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


def history_row(settlement: Settlement, iso: Callable[[int], str]) -> HistoryRow:
    """Return the row that a history item is made of (contract 7). `iso` writes times."""
    payment = json.loads(settlement.payment)
    requirements = json.loads(settlement.requirements)
    own = FAMILIES[family_of(settlement.key.payer)].history_terms(payment["payload"], settlement.key.nonce)
    return HistoryRow(
        id=settlement.id,
        created=iso(settlement.created_ms),
        updated=iso(settlement.updated_ms),
        signer=shown_address(settlement.key.payer),
        amount=settlement.value,
        network=settlement.key.network,
        transaction_hash=settlement.told_hash or None,
        state=settlement.state,
        error=settlement.error,
        kind=settlement.kind,
        x402_data={
            "x402Version": payment["x402Version"],
            "scheme": payment["scheme"],
            "network": settlement.key.network,
            "asset": shown_address(settlement.key.asset),
            "payer": shown_address(settlement.key.payer),
            "payTo": shown_address(settlement.pay_to),
            "value": str(settlement.value),
            **own,
            "resource": requirements["resource"],
            "maxAmountRequired": requirements["maxAmountRequired"],
            "confirm": settlement.confirm,
        },
        purchase_data=None if settlement.purchase_data is None else json.loads(settlement.purchase_data),
    )


def _history(query: HistoryQuery) -> JsonObject:
    return {
        "wallet": query.wallet,
        "as_signer": int(query.as_signer),
        "as_recipient": int(query.as_recipient),
        "network": query.network,
    }
