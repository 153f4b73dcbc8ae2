"""Gas that was counted for transactions which were never executed, and never will be (security A-24).

It cost nothing, so the budget of the hour has it again, in the same share: else payments that no block ever holds would
stop the sales of everybody, at no cost to whoever signs them. Whether that is proven is decided in `hub`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import unit_of_work
from tollkeeper.storage.engine.queries import load_queries

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Steps

_QUERIES: Final = load_queries("transactions.sql")
_MINUTE_MS: Final = 60_000


@unit_of_work
def take_back_gas(settlement_id: str, attempt: int) -> Steps[None]:
    """Give back to the hour's budget the gas that was counted for the transactions of that attempt."""
    rows = yield _QUERIES.transactions_of_settlement(settlement_id=settlement_id, attempt=attempt)
    for row in rows:
        trusted = row["gas_trusted"]
        for is_trusted, gas in ((1, trusted), (0, row["gas_counted"] - trusted)):
            minute = row["created_ms"] // _MINUTE_MS
            yield _QUERIES.take_back_gas(network=row["network"], minute=minute, is_trusted=is_trusted, gas=gas)
        minute, gas = row["created_ms"] // _MINUTE_MS, row["gas_counted"]
        yield _QUERIES.take_back_gas_of_tenant(
            network=row["network"], minute=minute, settlement_id=settlement_id, gas=gas
        )
        yield _QUERIES.uncount_transaction(hash=row["hash"])
