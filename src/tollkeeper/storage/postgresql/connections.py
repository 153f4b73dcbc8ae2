"""Connections to a server: how a URL is read, how long what may take, and what its errors are.

`pgbouncer=transaction` in the URL says that a pooler hands each transaction another connection: then nothing is
prepared, and limits of time are the role's to set, since such a pooler takes none with a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from tollkeeper.storage.engine.database import ConstraintError, NotTakenError, StatementError, StorageError

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.storage.engine.database import Statement

# Callers are answered within five seconds. A server that is cut off says nothing: it is waited for longer than for one
# that lives, which ends what takes too long by itself, by what is left of that.
CONNECT_SECONDS: Final = 3.0
STATEMENT_SECONDS: Final = 4.0
LIST_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = STATEMENT_SECONDS + _SILENT_SECONDS
_IDLE_SECONDS: Final = 10.0
_POOLED: Final = ("pgbouncer", "transaction")
# Such a code is the statement's own fault: bad data, bad SQL, a limit of the program. Every other is the server's.
_STATEMENT_CLASSES: Final = frozenset({"0A", "21", "22", "23", "26", "2F", "38", "39", "42", "54", "P0"})
_ENDED_NODE: Final = "TK001"  # see the function `require_node`
AGAIN: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


def options_of(url: str, *, seconds: float | None, is_read_only: bool = False) -> JsonObject:
    """Return the options that asyncpg connects by. `seconds`: each statement may take, None for any time."""
    parts = urlsplit(url)
    words = parse_qsl(parts.query, keep_blank_values=True)
    is_pooled = _POOLED in words
    dsn = urlunsplit(parts._replace(query=urlencode([word for word in words if word != _POOLED])))
    options: dict[str, Any] = {"dsn": dsn, "timeout": CONNECT_SECONDS, "target_session_attrs": "primary"}
    if seconds is not None:
        options["command_timeout"] = seconds + _SILENT_SECONDS
    if is_pooled:
        return options | {"statement_cache_size": 0}
    settings = {
        "application_name": "tollkeeper",
        "idle_in_transaction_session_timeout": str(int(_IDLE_SECONDS * 1000)),
        "jit": "off",
    }
    if seconds is not None:
        settings["statement_timeout"] = str(int(seconds * 1000))
    if is_read_only:
        settings["default_transaction_read_only"] = "on"
    return options | {"server_settings": settings}


def fault_of(error: Exception, statement: Statement | None) -> Exception:
    """Return what is raised for an error of asyncpg's: any that is no statement's leaves an unknown outcome."""
    sql = " ".join(statement.sql.split())[:200] if statement is not None else "COMMIT"
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return ConstraintError(f"{type(error).__name__} of {error.constraint_name}: {sql}")  # its detail has values
    if getattr(error, "sqlstate", None) == _ENDED_NODE:
        return NotTakenError("this program was cut off from its database and begins anew")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StatementError(f"read may not write: {sql}")
    if isinstance(error, asyncpg.QueryCanceledError):
        undone = "this took too long, and nothing was changed: ask for less of it, or again later"  # by the server
        return StorageError("the database took too long") if statement is None else NotTakenError(undone)
    if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in _STATEMENT_CLASSES:
        return StatementError(f"{type(error).__name__} {error.sqlstate}: {sql}")
    return StorageError("the database cannot be reached, or did not answer")
