"""Databases and the stores whose verbs run on them.

`open_database` picks the engine by the URL. `database` says what an engine is, `queries` loads the named SQL,
`migrations` the numbered schema, `sequences` hands out public ids; the stores (`auth`, `purchases`,
`settlements` and others) are units of work built from them and know no engine.
"""

from __future__ import annotations

from tollkeeper.storage.engine.database import (
    ConstraintError,
    Database,
    Row,
    Statement,
    StatementError,
    Steps,
    StorageError,
    Unit,
    Value,
    unit_of_work,
)
from tollkeeper.storage.engine.queries import Queries, Query, load_queries
from tollkeeper.storage.urls import open_database, pending

__all__ = [
    "ConstraintError",
    "Database",
    "Queries",
    "Query",
    "Row",
    "Statement",
    "StatementError",
    "Steps",
    "StorageError",
    "Unit",
    "Value",
    "load_queries",
    "open_database",
    "pending",
    "unit_of_work",
]
