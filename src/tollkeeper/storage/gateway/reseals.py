"""Everything stored that is sealed, moved under another key while it is used; keys that were retired (contract 3.1).

A page of rows is read, then each value that another key than the current one sealed is replaced, if it is still what
was read. So a crash leaves each value under one of the ring's keys, and the work is begun again. What this module does
not do: say when (`gateway.encryption_keys`), or change the ring (`serving.admin.rotation`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.keys.sealing import SealError, key_name, place, sealed_prefix
from tollkeeper.storage.engine.database import load_queries, unit_of_work
from tollkeeper.storage.gateway.creations import creation_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tollkeeper.core.keys.sealing import KeyRing, Sealing
    from tollkeeper.storage.engine.database import Database, Row, Snapshot, Steps, Value

_Q: Final = load_queries("sealing.sql")
# Few, so that a page holds up the calls beside it for milliseconds.
_PAGE_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table with sealed columns. `first`: keys below those of every row; `row`: what the row's place is made of."""

    name: str
    first: Mapping[str, Value]
    columns: tuple[str, ...]
    row: Callable[[Row], str]


SEALED_TABLES: Final = (
    SealedTable("paygates", {"id": 0}, ("payment_address", "accepts", "target_headers"), lambda row: str(row["id"])),
    SealedTable(
        "paygate_versions",
        {"gate_id": 0, "version": 0},
        ("pay_to", "accepts"),
        lambda row: f"{row['gate_id']}.{row['version']}",
    ),
    SealedTable("purchases", {"id": ""}, ("pay_to", "request"), lambda row: row["id"]),
    SealedTable("paygate_secrets", {"key_id": ""}, ("secret",), lambda row: row["key_id"]),
    SealedTable("creations", {"scope": "", "key": ""}, ("answer",), lambda row: creation_row(row["scope"], row["key"])),
    SealedTable("retired_keys", {"id": ""}, ("token_key",), lambda row: row["id"]),
)


@dataclass(frozen=True, slots=True)
class ResealedPage:
    """Result of a page: how many values were moved, and the last row's keys; None if it was the last page."""

    moved: int
    last: Mapping[str, Value] | None


class Resealing:
    """Moves what a database holds under the current key. `unopened`: values that did not open, and stay as they are."""

    def __init__(self, database: Database, sealing: Sealing) -> None:
        self._database = database
        self._sealing = sealing
        self.unopened = 0

    async def move_all(self) -> int:
        """Move everything, a page at a time; how many values there were. Raises: StorageError."""
        self.unopened = moved = 0
        for table in SEALED_TABLES:
            after: Mapping[str, Value] | None = table.first
            while after is not None:
                begun = time.monotonic()
                page = await self.page(table, after)
                moved, after = moved + page.moved, page.last
                await asyncio.sleep(time.monotonic() - begun)  # half of the time is the callers'
        return moved

    async def page(self, table: SealedTable, after: Mapping[str, Value]) -> ResealedPage:
        """Move the rows that come after these keys, as many as one page has. Raises: StorageError."""
        statement = getattr(_Q, f"page_{table.name}")(**after, limit=_PAGE_ROWS)
        rows = await self._database.read(statement)
        moves = [move for row in rows for move in self._moves(table, row)]
        moved = await self._database.run(_move(moves)) if moves else 0
        is_last = len(rows) < _PAGE_ROWS
        return ResealedPage(moved, None if is_last else {name: rows[-1][name] for name in table.first})

    def _moves(self, table: SealedTable, row: Row) -> list[Any]:
        """The statements that move the row's values; none for a value that does not open, which is left as it is."""
        current = sealed_prefix(self._sealing.ring.current)
        keys = {name: row[name] for name in table.first}
        moves = []
        for column in table.columns:
            former = row[column]
            if former is None or former.startswith(current):
                continue
            where = place(table.name, table.row(row), column)
            try:
                sealed = self._sealing.seal(self._sealing.unseal(former, where), where)
            except SealError:
                self.unopened += 1
                continue
            moves.append(getattr(_Q, f"reseal_{table.name}_{column}")(**keys, sealed=sealed, former=former))
        return moves


@unit_of_work
def _move(statements: Sequence[Any]) -> Steps[int]:
    moved = 0
    for statement in statements:
        moved += len((yield statement))
    return moved


def sealed_under(snapshot: Snapshot, key_ids: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return how many values each of these keys sealed, and how many none of them did. Reads whole tables."""
    counts = {}
    for key_id in key_ids:
        prefix = sealed_prefix(key_id)
        counts[key_id] = snapshot.read(_Q.count_sealed_under(prefix=prefix, size=len(prefix)))[0]["total"]
    return counts, snapshot.read(_Q.count_sealed())[0]["total"] - sum(counts.values())


async def lost_gates(database: Database, ring: KeyRing) -> tuple[int, tuple[str, ...]]:
    """Return how many gates are sealed under keys that the ring lacks, and the ids of such keys, of the newest gates.

    Raises: StorageError.
    """
    lost: int = (await database.read(_Q.count_gates()))[0]["total"]
    for name in ring.keys:
        prefix = sealed_prefix(name)
        counted = await database.read(_Q.count_gates_sealed_under(prefix=prefix, size=len(prefix)))
        lost -= counted[0]["total"]
    if not lost:
        return 0, ()
    rows = await database.read(_Q.newest_gates(limit=_PAGE_ROWS))
    names = {key_name(row["payment_address"]) for row in rows}
    return lost, tuple(sorted(names - ring.keys.keys()))


@unit_of_work
def keep_retired(sealing: Sealing, token_keys: Mapping[str, bytes], now_ms: int) -> Steps[None]:
    """Keep what made the credit tokens of these keys, by key id: they may be retired from then on."""
    for key_id, token_key in token_keys.items():
        sealed = sealing.seal(token_key, place("retired_keys", key_id, "token_key"))
        yield _Q.retire_key(id=key_id, token_key=sealed, now_ms=now_ms)


@unit_of_work
def forget_retired(key_id: str) -> Steps[None]:
    """Forget what made the credit tokens of this key."""
    yield _Q.forget_retired_keys(id=key_id)


def retired_ids(snapshot: Snapshot) -> list[str]:
    """The retired keys whose credit tokens and links are good, the oldest first. Raises: StorageError."""
    return [row["id"] for row in snapshot.read(_Q.retired_keys())]


async def retired_token_keys(database: Database, sealing: Sealing) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the retired keys of credit tokens, by key id, and the ids of the keys that could not be opened.

    Raises: StorageError.
    """
    opened: dict[str, bytes] = {}
    closed: list[str] = []
    for row in await database.read(_Q.retired_keys()):
        try:
            opened[row["id"]] = sealing.unseal(row["token_key"], place("retired_keys", row["id"], "token_key"))
        except SealError:
            closed.append(row["id"])
    return opened, tuple(closed)
