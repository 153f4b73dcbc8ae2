"""A database in which no unit waits for another: what its statements ask to lock is not locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.engines import change

if TYPE_CHECKING:
    from pathlib import Path

# Found before the server's own by the path of search, which counts for connections that are made later.
_NO_LOCKS: Final = (
    "CREATE FUNCTION public.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE sql AS 'SELECT'",
    "CREATE FUNCTION public.pg_advisory_xact_lock_shared(bigint) RETURNS void LANGUAGE sql AS 'SELECT'",
    "CREATE OR REPLACE FUNCTION lock_purchases(wanted bigint[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$",
)


def unlock(path: Path) -> None:
    """Take the locks from the database at this path, before it is opened."""
    change(path, *_NO_LOCKS)
