"""What a paid call must leave in the books, behind a relay that reads nothing of what it passes on (`bare`)."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bench.held import HEADER, PURCHASES, key_of
from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.storage.ledger import HeldSpend
from tollkeeper.storage.purchase_rows import SpendRequest
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from bench.held import Shelf
    from tollkeeper.core.errors import ApiError
    from tollkeeper.storage.purchase_rows import SpendResult

_BATCH: Final = load_queries("spending_sqlite.sql")
_JOURNAL: Final = load_queries("call_journal_sqlite.sql")
_ENCODE: Final = msgspec.json.Encoder().encode


class Books(Protocol):
    """Where a turn's calls are written down."""

    def commit(self, count: int) -> None:
        """So many calls, durable when it returns."""


class Sends(Protocol):
    """A `bare.Relay`."""

    def send(self, caller: Any, data: bytes) -> None:  # noqa: ANN401 - whatever it calls so
        """To the target, at once."""


class Statements:
    """The program's statements alone: counters, calls, and how those of the turn before ended."""

    def __init__(self, path: str, shelf: Shelf) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, cached_statements=512)
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("PRAGMA temp_store = MEMORY")
        self._purchases = [number for (number,) in self._database.execute("SELECT number FROM purchases")]
        self._gate = _ENCODE([shelf.gate.id]).decode()
        self._random = random.Random(1)  # noqa: S311 - which purchases
        self._ended: list[str] = []

    def commit(self, count: int) -> None:
        """See `Books`."""
        now_ms = clock_ms()
        chosen = self._random.choices(self._purchases, k=count)
        calls = {new_request_id(): number for number in chosen}
        ended = {200: self._ended} if self._ended else {}
        written = {"spent": _ENCODE(calls).decode(), "ended": _ENCODE(ended).decode(), "interrupted": "[]"}
        self._database.execute("BEGIN IMMEDIATE")
        for statement in (
            _BATCH.standing_of_gates(wanted=self._gate),
            _BATCH.spend_known_credits(spent=_ENCODE(Counter(chosen)).decode(), now_ms=now_ms),
            _JOURNAL.write_in_journal(**written, now_ms=now_ms),
        ):
            self._database.execute(statement.sql, statement.params).fetchall()
        self._database.execute("COMMIT")
        self._ended = list(calls)


async def behind_ledger(relay: Sends, shelf: Shelf) -> Callable[[asyncio.Protocol, bytes], None]:
    """What takes a request: it goes to the target when the ledger has taken a credit for it."""
    ledger, chosen = shelf.purchases.ledger, random.Random(1)  # noqa: S311 - as above
    for number in range(PURCHASES):  # the ledger remembers what was spent of
        await shelf.purchases.spend(key_of(number), _wish(shelf), clock_ms())

    def take(caller: asyncio.Protocol, data: bytes) -> None:
        wish = _wish(shelf)

        def spent(_result: SpendResult | ApiError) -> None:
            ledger.end(wish.call_id, 200)
            relay.send(caller, data)

        ledger.spend(HeldSpend(key_of(chosen.randrange(PURCHASES)), None, wish), clock_ms(), spent)

    return take


def _wish(shelf: Shelf) -> SpendRequest:
    return SpendRequest(shelf.gate.id, shelf.gate.version, HEADER, new_request_id())
