"""What a paid call must leave in the books, behind a relay that reads nothing of what it passes on (`bare`)."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bench.held import HEADER, PURCHASES, key_of
from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.core.errors import ApiError
from tollkeeper.storage.purchase_rows import Purchase, SpendRequest, SpendResult
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from bench.held import Shelf

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
    bought = [Held(await spent_once(shelf, number), shelf) for number in range(PURCHASES)]
    ledger, chosen = shelf.purchases.ledger, random.Random(1)  # noqa: S311 - as above

    def spent(call_id: str, caller: asyncio.Protocol, data: bytes) -> None:
        ledger.end(call_id, 200)
        relay.send(caller, data)

    def take(caller: asyncio.Protocol, data: bytes) -> None:
        ledger.spend_held(_Call(new_request_id(), chosen.choice(bought), spent, caller, data), clock_ms())

    return take


class Held:
    """What a call shows (`storage.ledger.Shown`)."""

    __slots__ = ("purchase", "standing")

    def __init__(self, purchase: Purchase, shelf: Shelf) -> None:
        self.purchase, self.standing = purchase, (shelf.gate.id, shelf.gate.version)


class _Call:
    """See `storage.ledger.HeldCall`."""

    __slots__ = ("caller", "data", "held", "request_id", "spent")

    def __init__(
        self,
        request_id: str,
        held: Held,
        spent: Callable[[str, asyncio.Protocol, bytes], None],
        caller: asyncio.Protocol,
        data: bytes,
    ) -> None:
        self.request_id, self.held, self.spent, self.caller, self.data = request_id, held, spent, caller, data

    @staticmethod
    def spent_together(calls: Sequence[_Call], _lefts: Sequence[int]) -> None:
        """See `storage.ledger.HeldCall`."""
        for call in calls:
            call.spent(call.request_id, call.caller, call.data)

    def spent_otherwise(self, result: SpendResult | ApiError) -> None:
        """See `storage.ledger.HeldCall`."""
        raise TypeError("every purchase has credits", result)


async def spent_once(shelf: Shelf, number: int) -> Purchase:
    """The purchase, as whoever spent a credit of it knows it."""
    wish = SpendRequest(shelf.gate.id, shelf.gate.version, HEADER, new_request_id())
    result = await shelf.purchases.spend(key_of(number), wish, clock_ms())
    assert result.purchase is not None
    return result.purchase
