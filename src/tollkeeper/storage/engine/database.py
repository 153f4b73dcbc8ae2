"""Interface of a database: units of work that are durable when they return (architecture 6, F13-F15).

A unit is a value that begins a generator, as often as an engine has to: it yields statements, is sent their rows and
returns a result. It never awaits and knows no driver, so an engine drives it in its writing thread, and a test drives
it with a list. This module speaks to no database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tollkeeper.core.x402.version1 import PaymentKey

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Value: TypeAlias = int | str | bytes | list[int] | list[str] | None
Row: TypeAlias = JsonMapping  # the columns' types are the schema's; a store that reads a row names them


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with `:name` parameters, and the values bound to them.

    `instead`: a unit that returns the same rows, played in its place by an engine that has one writer and so needs no
    lock, or that has no functions on a server. `is_whole`: its unit consists of this statement, which says itself
    whose it is by `:node` (`Database.write_as`) if that matters. `turn`: units of one program that begin with it wait
    for each other by that name, before they take a connection.
    """

    sql: str
    params: Mapping[str, Value] = field(default_factory=dict)
    instead: Unit[list[Row]] | None = None
    is_whole: bool = False
    turn: str = ""


OURSELVES: Final = "the program itself"  # who lists for its own work

Steps: TypeAlias = Generator[Statement, list[Row], T]


class Unit(Generic[T_co]):
    """Work of one transaction, as a value: nothing is begun until it is iterated, and each time it begins anew.

    A unit may be part of another: `result = yield from unit`. What it was given it must not change before its end,
    since a transaction that the database broke off is played again.
    """

    __slots__ = ("_args", "_function", "_named")

    def __init__(self, function: Callable[..., Steps[T_co]], args: tuple[Any, ...], named: JsonObject) -> None:
        self._function, self._args, self._named = function, args, named

    @property
    def name(self) -> str:
        """The function's, and its class's before it."""
        return self._function.__qualname__

    def __iter__(self) -> Steps[T_co]:
        """Begin the work, anew with every call."""
        return self._function(*self._args, **self._named)


def unit_of_work(function: Callable[P, Steps[T]]) -> Callable[P, Unit[T]]:
    """Make a function that yields statements one that returns the unit which does."""

    @wraps(function)
    def make(*args: P.args, **named: P.kwargs) -> Unit[T]:
        return Unit(function, args, named)

    return make


@unit_of_work
def rows_of(statement: Statement) -> Steps[list[Row]]:
    """The unit of one statement: its rows."""
    return (yield statement)


class StorageError(ApiError):
    """The database cannot answer: it is locked, full, broken, closing, or not ours to open. Rendered as 503.

    After `Database.run` raised it the outcome of the unit is unknown, as after any lost answer: a commit that failed
    may still turn out to be on the disk when the database is next opened. Whoever repeats the unit must make it safe to
    repeat. The message of a running database is for every reader of the answer and names no path and no statement.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class MovedError(StorageError):
    """Somebody began to write to a file that nobody had open: what was read of it is worth nothing. Read it again."""


class NotTakenError(StorageError):
    """The database took nothing of what it was asked: the one case in which the outcome is known, and is none."""


class StatementError(Exception):
    """A statement that no database would take: a fault of ours, so a 500. Its unit is rolled back, others are not."""


class ConstraintError(StatementError):
    """A statement that broke a constraint of the schema. Its unit is rolled back, others are not."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Outcome of one job: its result, or the exception that left it."""

    result: Any = None
    error: BaseException | None = None


class Database(Protocol):
    """One open database. Safe to share between tasks; bound to no event loop."""

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        """The rows of one query, from one consistent state that holds every unit answered before the call.

        `is_short`: a few rows by their key, so the loop may be blocked for it. `tenant`: who asks for a list or a sum
        that grows with what was sold or asked: no other reader waits for it, and the lists of other tenants wait for
        one of this tenant's at a time.
        Raises: StorageError, for a tenant's list also if it takes longer than ten seconds; StatementError for SQL that
        is wrong or would write.
        """

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        """Carry out `unit` in one transaction and return its result once that is durable.

        An exception that leaves the unit undoes all that the unit did and is raised here, likewise once everything
        that it can have seen is durable. Cancelling the caller does not stop a unit that was handed over.
        `is_short`: a few statements that a caller waits for. Units of one turn of the event loop may be one commit
        then, and the loop may be blocked for it, as by `post`.

        Raises: StorageError; StatementError; whatever the unit raises.
        """

    def post(self, unit: Unit[Any], answer: Callable[[JobOutcome], None]) -> None:
        """Carry out a short unit as `run` does, without a task: `answer` is called in this loop with its outcome.

        It may be called before this returns, and the loop may be blocked for the commit: an engine whose commit takes
        less than the way to another thread and back does it here.
        Raises: StorageError where the unit is not taken.
        """

    def write_as(self, node: str) -> None:
        """Bind each unit that is handed over from now on to the node of this name (`engine.nodes`).

        Once another program has ended that node, none of them is committed: NotTakenError. Units that were handed over
        before are the former node's.
        """

    async def close(self) -> None:
        """Refuse new work, finish the accepted work, close; a tenant's list is broken off. Again: does nothing."""


async def read_page(database: Database, count: Statement, page: Statement, tenant: str) -> tuple[list[Row], int]:
    """Return a page's rows, and how many rows there are in all. They are counted first: none that was counted lacks."""
    total = await database.read(count, tenant=tenant)
    return await database.read(page, tenant=tenant), total[0]["total"]


class Snapshot(Protocol):
    """One consistent state of a database, read by a connection of its own that cannot write (security 5).

    It works beside running servers and holds up nobody. Meant for checks that read whole tables. Blocks; any thread may
    read, one at a time.
    """

    def read(self, statement: Statement) -> list[Row]:
        """The rows of one query. Raises: StorageError."""


# Locks that a unit takes before it decides by what it reads, where units run side by side. There is one order, in which
# every unit takes what it needs: gates, then what is counted together (the settlements of a network, what is trusted at
# a gate and of a payer, a wallet's first login), then purchases with their credits by number. An engine with one writer
# needs none of them and plays nothing in their place: then no rows come back. Else one does, and what was read before
# has to be read again.


@unit_of_work
def _nothing() -> Steps[list[Row]]:
    yield from ()
    return []


nothing: Final = _nothing()  # what an engine does in place of a statement that it has no need of


def gates_as_they_are(gate_ids: Iterable[int]) -> Statement:
    """None of these gates changes until the unit ends. Any number of units hold one so."""
    return Statement(
        "SELECT count(pg_advisory_xact_lock_shared(g.id)) AS locked FROM unnest(CAST(:ids AS BIGINT[])) AS g (id)",
        {"ids": sorted(set(gate_ids))},
        nothing,
    )


def gate_to_change(gate_id: int) -> Statement:
    """Nobody else changes the gate, and nobody spends, claims or grants at it."""
    return Statement("SELECT count(pg_advisory_xact_lock(:id)) AS locked", {"id": gate_id}, nothing)


def login_as_it_is(session_id: str) -> Statement:
    """Nobody ends the login until this unit ends."""
    sql = "SELECT count(*) AS locked FROM (SELECT id FROM sessions WHERE id = :id FOR SHARE) AS s"
    return Statement(sql, {"id": session_id}, nothing)


def counted_together(*names: str) -> Statement:
    """No other unit that counts one of these does until this one ends, by names as `claims:base`."""
    sql = (
        "SELECT count(pg_advisory_xact_lock(hashtextextended(n.name, 0))) AS locked"
        " FROM unnest(CAST(:names AS TEXT[])) AS n (name)"
    )
    return Statement(sql, {"names": sorted(names)}, nothing, turn=" ".join(sorted(names)))


def purchases_to_change(*ids: str) -> Statement:
    """No other unit changes these purchases, or what they have of credits."""
    sql = "SELECT lock_purchases(ARRAY(SELECT number FROM purchases WHERE id = ANY (CAST(:ids AS TEXT[])))) AS locked"
    return Statement(sql, {"ids": list(ids)}, nothing)


def purchases_to_spend(numbers: Iterable[int], ids: Iterable[str], payments: Sequence[PaymentKey]) -> Statement:
    """Lock purchases that are named in several ways, at once, as `purchases_to_change` does."""
    sql = """
        SELECT lock_purchases(CAST(:numbers AS BIGINT[]) || ARRAY(
            SELECT number FROM purchases WHERE id = ANY (CAST(:ids AS TEXT[]))
            UNION SELECT number FROM purchases WHERE (network, asset, payer, nonce) IN (SELECT * FROM unnest(
                CAST(:networks AS TEXT[]), CAST(:assets AS TEXT[]), CAST(:payers AS TEXT[]), CAST(:nonces AS TEXT[])
            ))
        )) AS locked
    """
    named = {
        "networks": [payment.network for payment in payments],
        "assets": [payment.asset for payment in payments],
        "payers": [payment.payer for payment in payments],
        "nonces": [payment.nonce for payment in payments],
    }
    return Statement(sql, {"numbers": [*numbers], "ids": [*ids], **named}, nothing)


# Loads named SQL: files of blocks headed `-- name: verb`, one statement each, with `:name` parameters. The same files
# serve every engine, so what an engine must rewrite (PostgreSQL counts its parameters) is found here once, with string
# literals, quoted names, comments and `::` casts left alone. It does not check that the SQL is right; the tests of the
# stores prepare every statement.

_HEAD: Final = re.compile(r"^-- name: ([a-z0-9_]+)$", re.MULTILINE)
_TOKEN: Final = re.compile(
    r"""(?P<literal> '(?:[^']|'')*' | "(?:[^"]|"")*" )
      | (?P<comment> --[^\n]* | /\*.*?\*/ )
      | (?P<cast> :: )
      | (?P<parameter> :[A-Za-z_][A-Za-z0-9_]* )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Query:
    """One named statement; called with exactly its parameters it is a `Statement`."""

    name: str
    sql: str
    parameters: frozenset[str]

    def __call__(self, /, **params: Value) -> Statement:
        """Bind the parameters. Raises: TypeError where one is missing or is none of the statement's."""
        if params.keys() != self.parameters:
            raise TypeError(f"{self.name} takes {sorted(self.parameters)}, not {sorted(params)}")
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
    """The queries of `storage/queries/<file_name>`: each a line `-- name: x`, then one statement."""
    text = files("tollkeeper.storage").joinpath("queries", file_name).read_text("utf-8")
    return Queries(file_name, parse_queries(text))


def parse_queries(text: str) -> dict[str, Query]:
    """Return the named statements of a file's text, in its order."""
    _, *parts = _HEAD.split(text)
    return {name: _query(name, block) for name, block in zip(parts[::2], parts[1::2], strict=True)}


def _query(name: str, block: str) -> Query:
    """Return the statement without comments and final semicolon, and the names of its parameters."""
    sql = _TOKEN.sub(lambda token: " " if token.lastgroup == "comment" else token[0], block)
    parameters = frozenset(token[0][1:] for token in _TOKEN.finditer(sql) if token.lastgroup == "parameter")
    return Query(name, sql.strip().removesuffix(";").strip(), parameters)


def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with `$1`, `$2` in place of `:name`, and the names in that order."""
    names: dict[str, int] = {}

    def replaced(token: re.Match[str]) -> str:
        if token.lastgroup != "parameter":
            return token[0]
        return f"${names.setdefault(token[0][1:], len(names) + 1)}"

    return _TOKEN.sub(replaced, sql), tuple(names)


# Public numeric ids: one row per sequence, dense as far as units commit (contract 1: ids are per table). A number that
# a unit took is given back when the unit is rolled back, so a refused request leaves no gap.


@unit_of_work
def next_id(name: str) -> Steps[int]:
    """Take the number after the last of a sequence, the first being 1.

    Inside a unit: `number = yield from next_id("paygates")`.
    """
    rows = yield load_queries("sequences.sql").next_value(name=name)
    value: int = rows[0]["value"]
    return value
