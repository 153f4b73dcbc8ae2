"""Loads named SQL: files of blocks headed `-- name: verb`, one statement each, with `:name` parameters.

The same files serve every engine, so what an engine must rewrite (PostgreSQL counts its parameters) is found here once,
with string literals, quoted names, comments and `::` casts left alone. It does not check that the SQL is right; the
tests of the stores prepare every statement.

Public numeric ids: one row per sequence, dense as far as units commit (contract 1: ids are per table).

A number that a unit took is given back when the unit is rolled back, so a refused request leaves no gap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import Statement, Steps, Value, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = re.compile(r"--\s*name\s*:(.*)")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_TOKEN: Final = re.compile(
    r"""(?P<literal> '(?:[^']|'')*' | "(?:[^"]|"")*" )
      | (?P<comment> --[^\n]* | /\*.*?\*/ )
      | (?P<cast> :: )
      | (?P<parameter> :[A-Za-z_][A-Za-z0-9_]* )
      | (?P<end> ; )
      | (?P<unclosed> ['"] | /\* )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class QueryFileError(ValueError):
    """A query file that is not a list of named single statements. Its message says where."""


@dataclass(frozen=True, slots=True)
class Query:
    """One named statement; called with exactly its parameters it is a `Statement`."""

    name: str
    sql: str
    parameters: frozenset[str]

    def __call__(self, /, **params: Value) -> Statement:
        """Bind the parameters. Raises: TypeError where one is missing or is none of the statement's."""
        if params.keys() != self.parameters:
            missing = ", ".join(sorted(self.parameters - params.keys()))
            extra = ", ".join(sorted(params.keys() - self.parameters))
            problems = [f"missing {missing}"] * bool(missing) + [f"unknown {extra}"] * bool(extra)
            raise TypeError(f"{self.name}: {'; '.join(problems)}")
        return Statement(self.sql, params)


class Queries:
    """The queries of one file as attributes: `queries.claim_purchase(network="base", payer=payer)`."""

    def __init__(self, source: str, queries: dict[str, Query]) -> None:
        self._source = source
        self._queries = queries

    def __getattr__(self, name: str) -> Query:
        """The query of that name. Raises: AttributeError."""
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no query named {name}") from None

    def __iter__(self) -> Iterator[Query]:
        """Every query, in the order of the file."""
        return iter(self._queries.values())


@cache
def load_queries(file_name: str) -> Queries:
    """The queries of `storage/queries/<file_name>`. Raises: QueryFileError, FileNotFoundError."""
    text = files("tollkeeper.storage").joinpath("queries", file_name).read_text("utf-8")
    return Queries(file_name, parse_queries(text, source=file_name))


def parse_queries(text: str, *, source: str) -> dict[str, Query]:
    """The named statements of a file's text. Raises: QueryFileError, naming `source` and the block."""
    queries: dict[str, Query] = {}
    for name, block in _blocks(text, source):
        if name in queries:
            raise QueryFileError(f"{source}: {name} is there twice")
        sql, parameters = _read_block(block, f"{source}: {name}")
        queries[name] = Query(name, sql, parameters)
    return queries


def _blocks(text: str, source: str) -> list[tuple[str, str]]:
    blocks: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        head = _HEAD.match(line.strip())
        if head is not None:
            name = head[1].strip()
            if _NAME.fullmatch(name) is None:
                raise QueryFileError(f"{source}:{number}: {name!r} is no name for a query")
            blocks.append((name, []))
        elif blocks:
            blocks[-1][1].append(line)
        elif line.strip() and not line.lstrip().startswith("--"):
            raise QueryFileError(f"{source}:{number}: SQL before the first name")
    return [(name, "\n".join(lines)) for name, lines in blocks]


def _read_block(block: str, where: str) -> tuple[str, frozenset[str]]:
    """The statement without comments and final semicolon, and the names of its parameters."""
    parts: list[str] = []
    parameters: set[str] = set()
    position = 0
    ended = False
    for token in _TOKEN.finditer(block):
        between = block[position : token.start()]
        if ended and (between.strip() or token.lastgroup != "comment"):
            break
        parts.append(between)
        position = token.end()
        if token.lastgroup == "unclosed":
            raise QueryFileError(f"{where}: {token[0]} is never closed")
        if token.lastgroup == "end":
            ended = True
        elif token.lastgroup != "comment":
            parts.append(token[0])
            if token.lastgroup == "parameter":
                parameters.add(token[0][1:])
        else:
            parts.append(" ")
    rest = block[position:]
    if ended and rest.strip():
        raise QueryFileError(f"{where}: more than one statement")
    sql = "".join([*parts, rest]).strip()
    if not sql:
        raise QueryFileError(f"{where}: no statement")
    return sql, frozenset(parameters)


def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with `$1`, `$2` in place of `:name`, and the names in that order."""
    names: dict[str, int] = {}

    def replaced(token: re.Match[str]) -> str:
        if token.lastgroup != "parameter":
            return token[0]
        return f"${names.setdefault(token[0][1:], len(names) + 1)}"

    return _TOKEN.sub(replaced, sql), tuple(names)


@unit_of_work
def next_id(name: str) -> Steps[int]:
    """Take the number after the last of a sequence, the first being 1.

    Inside a unit: `number = yield from next_id("paygates")`.
    """
    rows = yield load_queries("sequences.sql").next_value(name=name)
    value: int = rows[0]["value"]
    return value
