"""One of the nodes that spend known credits of the same purchases: callers who wait for their answer and ask again.

Told by its command line: the database's URL, its number, how many callers, for how many seconds. It says a line once it
is ready and begins at the next line of its input. Then it prints how many spends were answered, what they cost it, and
how many units the server broke off.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop

from bench.measuring import cpu_seconds
from tests.storage.test_purchases import HEADER, NOW_MS, Shop
from tollkeeper.api import new_request_id
from tollkeeper.core.purchases import Spend
from tollkeeper.gateway.purchase.monitor import key_of
from tollkeeper.storage.engine.database import Statement
from tollkeeper.storage.engine.nodes import join_nodes
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.ledger.spends import HeldSpend
from tollkeeper.storage.urls import open_database

if TYPE_CHECKING:
    from tollkeeper.core.api.errors import ApiError

UNMEASURED_SECONDS: Final = 0.5
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
    await ledger.open()
    node = f"spender{os.getpid()}.0"
    if await database.run(join_nodes(node, [])):
        database.write_as(node)
    found = await shop.gates.by_id((await database.read(Statement(_GATE)))[0]["id"])
    assert found is not None
    gate = found[0]
    bought = [await shop.purchases.by_id(row["id"]) for row in await database.read(Statement(_PURCHASES))]
    keys = [key_of(one) for one in bought if one is not None]
    print("ready", flush=True)
    sys.stdin.readline()
    answered = 0
    until = time.monotonic() + UNMEASURED_SECONDS + seconds

    def ask(place: int) -> None:
        request = SpendRequest(gate.id, gate.version, HEADER, new_request_id())
        ledger.spend(HeldSpend(keys[place % len(keys)], None, request), NOW_MS, partial(told, place, request.call_id))

    def told(place: int, call_id: str, answer: SpendResult | ApiError) -> None:
        nonlocal answered
        assert isinstance(answer, SpendResult), answer
        assert answer.outcome is Spend.SPENT, answer
        answered += 1
        ledger.end(call_id, 200)
        if time.monotonic() < until:
            ask(place + callers)

    for place in range(callers):
        ask(place)
    await asyncio.sleep(UNMEASURED_SECONDS)
    before, used, began = answered, cpu_seconds(os.getpid()), time.monotonic()
    await asyncio.sleep(seconds)
    count, used, took = answered - before, cpu_seconds(os.getpid()) - used, time.monotonic() - began
    sys.stdin.readline()  # the server is looked at while its processes live
    await ledger.idle()
    await database.close()
    told_line = {"rate": count / took, "spends": count, "answers": answered, "cpu_seconds": used, "anew": anew.count}
    print(json.dumps(told_line))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
