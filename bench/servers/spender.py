"""One of the nodes that spend known credits of the same purchases: callers who wait for their answer and ask again.

Told by its command line: the database's URL, its number, how many callers, for how many seconds. It prints how many
spends a second were answered, and how many units the server broke off.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.storage.test_purchases import HEADER, NOW_MS, Shop
from tollkeeper.api import new_request_id
from tollkeeper.core.purchases import Spend
from tollkeeper.gateway.purchase.monitor import key_of
from tollkeeper.storage.engine.database import Statement
from tollkeeper.storage.ledger.ledger import HeldSpend, Ledger
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.urls import open_database

if TYPE_CHECKING:
    from tollkeeper.core.api.errors import ApiError

_UNMEASURED_SECONDS: Final = 0.5
_PURCHASES: Final = "SELECT id FROM purchases ORDER BY number"
_GATE: Final = "SELECT min(id) AS id FROM paygates"


class Anew(logging.Handler):
    """Counts units that the server broke off."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count it."""
        self.count += record.getMessage().startswith("a unit is begun anew")


async def main(url: str, callers: int, seconds: float) -> None:
    """Spend, and tell."""
    anew, logger = Anew(), logging.getLogger("tollkeeper.storage.postgresql.engine")
    logger.addHandler(anew)
    logger.setLevel(logging.INFO)
    database = open_database(url)
    shop, ledger = Shop(database), Ledger(database)
    found = await shop.gates.by_id((await database.read(Statement(_GATE)))[0]["id"])
    assert found is not None
    gate = found[0]
    bought = [await shop.purchases.by_id(row["id"]) for row in await database.read(Statement(_PURCHASES))]
    keys = [key_of(one) for one in bought if one is not None]
    answered = 0
    until = time.monotonic() + _UNMEASURED_SECONDS + seconds

    def ask(place: int) -> None:
        request = SpendRequest(gate.id, gate.version, HEADER, new_request_id())
        ledger.spend(HeldSpend(keys[place % len(keys)], None, request), NOW_MS, partial(told, place))

    def told(place: int, answer: SpendResult | ApiError) -> None:
        nonlocal answered
        assert isinstance(answer, SpendResult), answer
        assert answer.outcome is Spend.SPENT, answer
        answered += 1
        if time.monotonic() < until:
            ask(place + callers)

    for place in range(callers):
        ask(place)
    await asyncio.sleep(_UNMEASURED_SECONDS)
    before, began = answered, time.monotonic()
    await asyncio.sleep(seconds)
    rate = (answered - before) / (time.monotonic() - began)
    await ledger.idle()
    await database.close()
    print(json.dumps({"rate": rate, "anew": anew.count}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
