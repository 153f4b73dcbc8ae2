"""Statements in PostgreSQL's words: numbered parameters, and its own text where SQL differs (`queries/postgresql/`).

A file there has the name of the file whose queries it says in other words, and the same names of queries.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from tollkeeper.storage.engine.database import load_queries, numbered

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Statement, Value


def said(statement: Statement, node: str | None = None) -> tuple[str, list[Value]]:
    """The text for the server, and the values in the order of their numbers; `:node` is the engine's own to say.

    Raises: KeyError for a value that lacks.
    """
    sql, names = in_its_words(statement.sql)
    params = statement.params
    return sql, [node if name == "node" else params[name] for name in names]


@cache
def in_its_words(sql: str) -> tuple[str, tuple[str, ...]]:
    """The text for the server, and the names of its parameters in the order of their numbers."""
    return numbered(_own_words().get(sql, sql))


@cache
def _own_words() -> dict[str, str]:
    """Return PostgreSQL's text by the common one. Raises: AttributeError for a query that the common file has not."""
    own: dict[str, str] = {}
    for entry in files("tollkeeper.storage").joinpath("queries", "postgresql").iterdir():
        if entry.name.endswith(".sql"):
            common = load_queries(entry.name)
            for query in load_queries(f"postgresql/{entry.name}"):
                own[getattr(common, query.name).sql] = query.sql
    return own
