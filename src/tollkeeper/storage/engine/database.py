"""Interface of a database: units of work that are durable when they return (architecture 6, F13-F15).

A unit is a generator that yields statements, is sent their rows and returns a result. It never awaits and knows no
driver, so an engine drives it in its writing thread, and a test drives it with a list. This module speaks to no
database.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from tollkeeper.core.api.errors import ApiError, Code

T = TypeVar("T")

Value: TypeAlias = int | str | bytes | None
Row: TypeAlias = Mapping[str, Any]  # the columns' types are the schema's; a store that reads a row names them


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with `:name` parameters, and the values bound to them."""

    sql: str
    params: dict[str, Value] = field(default_factory=dict)


OURSELVES: Final = "the program itself"  # who lists for its own work

Unit: TypeAlias = Generator[Statement, list[Row], T]


def rows_of(statement: Statement) -> Unit[list[Row]]:
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


class Job(Protocol):
    """A unit that was not begun yet, as a value."""

    def unit(self) -> Unit[Any]:
        """The unit, anew with every call."""


class Database(Protocol):
    """One open database. Safe to share between tasks; bound to no event loop."""

    async def read(self, statement: Statement) -> list[Row]:
        """The rows of one query, from one consistent state that holds every unit answered before the call.

        Raises: StorageError; StatementError for SQL that is wrong or would write.
        """

    async def read_short(self, statement: Statement) -> list[Row]:
        """Read as `read` does, a few rows by their key: the loop may be blocked for it."""

    async def read_long(self, statement: Statement, tenant: str) -> list[Row]:
        """Read as `read` does, lists and sums that grow with what was sold or asked: no other reader waits for it.

        `tenant`: who asks. The lists of other tenants wait for one of this tenant's at a time. Raises: StorageError
        also if it takes longer than ten seconds.
        """

    async def run(self, unit: Unit[T]) -> T:
        """Drive `unit` in one transaction and return its result once that is durable.

        An exception that leaves the unit undoes all that the unit did and is raised here, likewise once everything
        that it can have seen is durable. Cancelling the caller does not stop a unit that was handed over.

        Raises: StorageError; StatementError; whatever the unit raises.
        """

    async def run_short(self, unit: Unit[T]) -> T:
        """Run as `run` does, a unit of a few statements that a caller waits for.

        Units of one turn of the event loop may be one commit, and the loop may be blocked for it, as by `post`.
        """

    def post(self, job: Job, answer: Callable[[JobOutcome], None]) -> None:
        """Run the job's unit as `run` does, without a task: `answer` is called in this event loop with its outcome.

        It may be called before this returns, and the loop may be blocked for the commit: an engine whose commit takes
        less than the way to another thread and back does it here. For short units only.
        Raises: StorageError where the job is not taken.
        """

    async def close(self) -> None:
        """Refuse new work, finish the accepted work, close; `read_long` is broken off. Again: does nothing."""
