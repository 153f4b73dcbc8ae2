"""The invariants of every database that a test left behind (security 5)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.engines import databases_below
from tollkeeper.api import clock_ms
from tollkeeper.core.settlement.reconciliation import Difference
from tollkeeper.core.trust import DEFAULT_EXPOSURE
from tollkeeper.storage.books.invariants import Bounds, inspect
from tollkeeper.storage.engine.database import Statement, StorageError
from tollkeeper.storage.urls import open_snapshot

BOUNDS = Bounds(
    DEFAULT_EXPOSURE.payer.purchases,
    DEFAULT_EXPOSURE.payer.value_micro,
    DEFAULT_EXPOSURE.gate.purchases,
    DEFAULT_EXPOSURE.gate.value_micro,
)


def purchases_and_calls(columns: str) -> str:
    """A statement for these columns of each purchase (`holdings`), of its `calls` and its entries' `total`.

    Calls whose credit was given back, as to one that a stop cuts, are none of them. The view of calls reads the journal
    of them all each time, so they are counted once, for all purchases.
    """
    return (
        "WITH spent AS MATERIALIZED (SELECT purchase_id AS id, count(*) AS calls FROM calls"  # noqa: S608
        " WHERE state <> 'RESTORED' GROUP BY 1),"
        " entered AS MATERIALIZED (SELECT purchase_id AS id, sum(delta) AS total FROM credit_entries GROUP BY 1)"
        f" SELECT {columns} FROM (SELECT p.*, coalesce(s.calls, 0) AS calls, e.total FROM holdings p"
        " LEFT JOIN spent s ON s.id = p.id LEFT JOIN entered e ON e.id = p.id)"
    )


def differences_of(path: Path) -> list[Difference]:
    """Everything that does not hold of the database at this path; it may be in use."""
    with open_snapshot(str(path)) as snapshot:
        sales, settled = (
            snapshot.read(Statement(f"SELECT count(*) AS total FROM {table}"))[0]["total"]  # noqa: S608 - own names
            for table in ("purchases", "settlements")
        )
        return inspect(snapshot, clock_ms(), BOUNDS, is_shared=bool(sales and settled)).differences


def databases_in(directory: Path) -> list[Path]:
    """The databases of this program below a directory, but for those that a test damaged."""
    found = databases_below(directory)
    for path in directory.rglob("*"):
        if not path.is_file() or path.name.endswith(("-wal", "-shm", ".lock")):
            continue
        with path.open("rb") as file:
            is_database = file.read(16) == b"SQLite format 3\0"
        if is_database:
            found.append(path)
    return found


def assert_books_agree(directory: Path) -> None:
    """No invariant is broken in any database below the directory."""
    for path in databases_in(directory):
        with suppress(StorageError):  # a file that the test itself damaged
            assert differences_of(path) == [], path
