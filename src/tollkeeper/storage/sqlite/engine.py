"""The embedded engine: SQLite with one writing connection, group commit and full durability (F13-F15).

One thread owns the only connection that writes. Whatever units arrived while it was committing become its next
transaction, each in a savepoint of its own: one sync, then all are answered, refusals too, because a refusal may rest
on what an earlier unit of the batch wrote. While the thread has nothing to do, an event loop that has short units
takes its turn and commits them by itself, those of one turn of the loop together, which costs less than the way to
the thread and back. A second thread reads the last committed state, a third one lists, and lets the log be folded
between two lists. Once a write or a sync has failed nothing is written any more, for after a failed sync nobody knows
what the disk holds, until the whole log of what was committed before has been copied into the file, synced there and
cut off (`_mend`); a failure that is not the disk's ends with the program only. Opening and migrating are in
`sqlite.file`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tollkeeper.places import Places
from tollkeeper.storage.engine.database import (
    JobOutcome,
    Row,
    Statement,
    StatementError,
    Steps,
    StorageError,
    Unit,
    unit_of_work,
)
from tollkeeper.storage.sqlite.batches import BatchThread, answer_to
from tollkeeper.storage.sqlite.connections import (
    BUSY_TIMEOUT_SECONDS,
    connect_reader,
    is_of_the_disk,
    limit_each,
    primary_code,
    rows_of,
    shown,
)
from tollkeeper.storage.sqlite.watch import FileWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tollkeeper.storage.sqlite.batches import GilYield

T = TypeVar("T")
_Short: TypeAlias = "tuple[Unit[Any], Callable[[JobOutcome], None]]"

logger = logging.getLogger(__name__)

_BUSY_PAUSE_SECONDS: Final = 0.001
# The log is folded into the file by the thread, so that no loop waits for it, once it may have so many pages: at most
# about six in every commit and one for every row, and of that the share that it had when it was last folded (rows of
# one commit are mostly neighbours), but no less than the least: what is written may change its kind.
_LOG_PAGES_MAX: Final = 2000  # eight megabytes: whoever syncs meanwhile waits for what is copied
_PAGES_OF_COMMIT: Final = 6
_LEAST_SHARE: Final = 1 / 8
_NOT_COPIED: Final = -1  # as SQLite says it, where another connection is copying
_LIST_SECONDS: Final = 10.0  # in which the log cannot begin anew, and every other list waits
_LISTS_AT_ONCE: Final = 4  # in the thread's queue, of which one tenant has one
_FOLDED_SECONDS: Final = 1.0  # that a list waits for the log at most: the next commit folds it
# Short units, other than spends, whose commits take longer are left to the thread: on a slow disk a loop that waits for
# each does little else.
_COMMIT_HERE_SECONDS: Final = 0.001
_COMMITS_WEIGHED: Final = 8
_SHORT_AT_ONCE: Final = 32  # units; a few milliseconds of the event loop
_LENT_TO_WRITER_SECONDS: Final = 0.002  # a batch of some hundred statements
_LENT_TO_READER_SECONDS: Final = 0.0002  # a look-up; a long query is mostly outside the interpreter

_PASSING_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_MEND_EVERY_SECONDS: Final = 2.0
_TOO_LONG: Final = f"this takes longer than {_LIST_SECONDS:.0f} s to read: ask for less of it, or later"
_NO_WRITES: Final = "the database takes no writes until its disk does again"
_LOST: Final = "the database's files are not those that were opened; the operator has to put them back and restart it"
_NO_WRITES_AT_ALL: Final = "the database takes no writes until the operator has restarted it"


class SqliteDatabase:
    """An open, migrated SQLite file whose lock is held. Carries out `Database`."""

    def __init__(self, path: Path, writer: sqlite3.Connection, lock: int) -> None:
        self._writer = writer
        reader, lister, looker, folder = (connect_reader(path) for _ in range(4))
        self._looker = looker  # for the loops
        self._lister = lister  # for its thread
        self._begin_list = limit_each(lister, _LIST_SECONDS, lambda: self._is_closed)
        self._folder = folder  # for the writing thread too
        self._lock = lock
        self._watch = FileWatch(path)
        writer.execute("PRAGMA busy_timeout = 0")  # an event loop may be the one that writes: it must not wait
        self._failure: str | None = None
        self._lost: str | None = None  # the files are not those that were opened: a failure for good, of reading too
        self._mend_at: float | None = None  # of a failed disk: when to try it again, by the monotonic clock
        self._log_begun = (0, writer.total_changes)  # commits and rows when the log was last folded
        self._log_share = 1.0  # of the pages that it may have had then
        self._is_held_up = False  # was it read then, so that it could not begin anew?
        self._is_wanted_short = False  # now, while nobody lists
        self._folded = threading.Event()
        self._short: dict[asyncio.AbstractEventLoop, list[_Short]] = {}  # of each loop's turn
        self._is_closed = False
        self._commit_seconds = 0.0  # what the last commits that wrote took, about
        self._changes = writer.total_changes
        self.commits = 0
        self.units = 0
        self._writing: BatchThread[Unit[Any]] = BatchThread(
            "tollkeeper-writer",
            self._commit_in_thread,
            self._close_writer,
            lent_seconds=_LENT_TO_WRITER_SECONDS,
            tidy=self._fold_log,
        )
        self._reading: BatchThread[Statement] = BatchThread(
            "tollkeeper-reader", partial(self._read_all, reader), reader.close, lent_seconds=_LENT_TO_READER_SECONDS
        )
        self._listing: BatchThread[Statement] = BatchThread(
            "tollkeeper-lister", self._list_all, lister.close, lent_seconds=_LENT_TO_READER_SECONDS, batch_max=1
        )
        self._lists = Places(_LISTS_AT_ONCE)

        self._watch.start(self._lose)

    def _lose(self, _why: str) -> None:
        self._lost = self._failure = _LOST

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        """Read a tenant's list on its own thread, a look-up here, anything else on the reading thread."""
        if tenant is not None:
            return await self._read_list(statement, tenant)
        if is_short:
            return self._read_here(statement)
        rows: list[Row] = await self._reading.submit(statement)
        return rows

    async def _read_list(self, statement: Statement, tenant: str) -> list[Row]:
        """Read on the listing thread. The turn of a caller who gives up is free only once his statement has ended."""
        await self._lists.take(tenant)
        future: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()
        tell = answer_to(future)

        def answer(outcome: JobOutcome) -> None:
            self._lists.give_back(tenant)
            tell(outcome)

        try:
            self._listing.post(statement, answer)
        except StorageError:
            self._lists.give_back(tenant)
            raise
        return await future

    def _read_here(self, statement: Statement) -> list[Row]:
        """Read in the loop: a look-up takes less than the way to a thread and back."""
        if self._is_closed:
            raise StorageError("the database is closed")
        outcome = self._read(self._looker, statement)
        if outcome.error is not None:
            raise outcome.error
        rows: list[Row] = outcome.result
        return rows

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        """Run the unit on the writing thread.

        A short one is committed here, unless the thread has work, which it joins, or the disk is slow.
        """
        if not is_short:
            result: T = await self._writing.submit(unit)
            return result
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if loop not in self._short:
            self._short[loop] = []
            loop.call_soon(self._commit_short, loop)
        self._short[loop].append((unit, answer_to(future)))
        return await future

    def _commit_short(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._short.pop(loop)
        short, later = gathered[:_SHORT_AT_ONCE], gathered[_SHORT_AT_ONCE:]
        if later:
            self._short[loop] = later
            loop.call_soon(self._commit_short, loop)
        is_fast = self._commit_seconds < _COMMIT_HERE_SECONDS
        outcomes = self._try_here([unit for unit, _ in short]) if is_fast else None
        for place, (unit, answer) in enumerate(short):
            if outcomes is not None:
                answer(outcomes[place])
                continue
            try:
                self._writing.post(unit, answer)
            except StorageError as error:
                answer(JobOutcome(error=error))

    def post(self, unit: Unit[Any], answer: Callable[[JobOutcome], None]) -> None:
        """Run the unit, and commit here, unless the thread has work, which the unit then joins."""
        outcomes = self._try_here([unit])
        if outcomes is None:
            self._writing.post(unit, answer)
        else:
            answer(outcomes[0])  # last: whatever it raises must not be taken for a failed commit

    def _try_here(self, units: list[Unit[Any]]) -> list[JobOutcome] | None:
        """The units as one transaction, committed in this loop; None, the units untouched, where that cannot be."""
        if not self._writing.take_turn():
            return None
        try:
            outcomes = self._commit_here(units)
            is_log_long = self._is_log_long()
        finally:
            self._writing.end_turn()
        if outcomes is not None and is_log_long:
            with suppress(StorageError):
                self._writing.post(_nothing(), lambda _: None)  # wakes the thread, which then folds the log
        return outcomes

    def write_as(self, node: str) -> None:
        """Nothing is bound to a name: one program has the file."""

    async def close(self) -> None:
        """Close all connections once begun work has ended. Lists are broken off: they may take too long."""
        if not self._is_closed:
            self._is_closed = True  # which breaks off lists: one may take longer than whoever stops us waits
            self._looker.close()
            self._watch.stop()
        await self._listing.close()
        await self._reading.close()
        await self._writing.close()  # the last to close, so that it folds the log into the file

    def _close_writer(self) -> None:
        try:
            self._folder.close()
            self._writer.close()
        finally:
            self._watch.close()
            os.close(self._lock)

    def _commit_here(self, units: list[Unit[Any]]) -> list[JobOutcome] | None:
        """The units as one transaction; None, the units untouched, where another program holds the file.

        None, too, where writing has failed: the thread tries the disk again, and waits for it.
        """
        try:
            if self._failure is not None or not self._has_begun():
                return None
            return self._commit(units) if len(units) > 1 else [self._commit_alone(units[0])]
        except StorageError as error:
            return [JobOutcome(error=error) for _ in units]

    def _commit_in_thread(self, units: list[Unit[Any]]) -> list[JobOutcome]:
        """Wait for another program, then as `_commit`, lending the interpreter while the disk is busy."""
        self._mend()
        if self._failure is None and not self._has_begun_in_time():
            logger.warning("another program holds the database")
            raise StorageError("the database is held by another program")
        return self._commit(units, gil_yield=self._writing.gil_yield)

    def _has_begun_in_time(self) -> bool:
        """Begin as `_has_begun` does, by the thread, which waits for another program. Raises: StorageError."""
        patient_until = time.monotonic() + BUSY_TIMEOUT_SECONDS
        while not self._has_begun():
            if time.monotonic() >= patient_until:
                return False
            self._writing.gil_yield.rest()
            time.sleep(_BUSY_PAUSE_SECONDS)
            self._writing.gil_yield.work()
        return True

    def _mend(self) -> None:
        """After a failure of the disk, once in a while: write again where the disk holds what was committed.

        All of it is copied from the log into the file and synced, and the log is cut off, with whatever the failed
        commit left behind its end: nothing rests on a sync that failed. The failed transaction itself was undone: that
        what it wrote is no part of the log is known to this process, and to no later one, so a restart is no safer.
        """
        if self._lost or self._mend_at is None or time.monotonic() < self._mend_at:
            return
        self._writing.gil_yield.rest()
        try:
            ((is_busy, _, _),) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            logger.warning("the disk still takes no writes: %s", error)
            is_busy = True
        finally:
            self._writing.gil_yield.work()
        if is_busy:  # or somebody reads just now
            self._mend_at = time.monotonic() + _MEND_EVERY_SECONDS
            return
        self._failure, self._mend_at, self._is_held_up = self._lost, None, False
        self._log_begun = self.commits, self._writer.total_changes
        logger.warning("the database takes writes again: its disk holds all that was committed")

    def _has_begun(self) -> bool:
        """Return True if a transaction was begun; not while another program writes. Raises: StorageError."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if primary_code(error) in _PASSING_CODES:
                return False
            raise self._give_up(error) from error
        return True

    def _commit(self, units: list[Unit[Any]], gil_yield: GilYield | None = None) -> list[JobOutcome]:
        """Run the units in the transaction that has begun. Raises: StorageError, the answer to every one of them."""
        if self._failure is not None:
            raise StorageError(self._failure)
        try:
            outcomes = [self._drive(unit) for unit in units]
            if gil_yield is not None:
                gil_yield.rest()
            self._end_transaction()
            if gil_yield is not None:
                gil_yield.work()
        except sqlite3.Error as error:
            raise self._give_up(error) from error
        self.commits += 1
        self.units += len(units)
        return outcomes

    def _commit_alone(self, unit: Unit[Any]) -> JobOutcome:
        """Commit as `_commit` does, one unit: it is the transaction, so it needs no savepoint. Raises: StorageError."""
        try:
            try:
                outcome = JobOutcome(self._play(unit))
            except sqlite3.Error:
                raise
            except BaseException as error:  # noqa: BLE001 - a unit's own exception is its caller's
                self._writer.execute("ROLLBACK")
                return JobOutcome(error=error)
            self._end_transaction()
        except sqlite3.Error as error:
            raise self._give_up(error) from error
        self.commits += 1
        self.units += 1
        return outcome

    def _end_transaction(self) -> None:
        """Commit, and note how long the disk takes. Raises: sqlite3.Error."""
        began = time.perf_counter()
        self._writer.execute("COMMIT")
        if self._writer.total_changes != self._changes:
            self._changes = self._writer.total_changes
            self._commit_seconds += (time.perf_counter() - began - self._commit_seconds) / _COMMITS_WEIGHED

    def _is_log_long(self) -> bool:
        is_late = self._is_wanted_short and self._is_held_up  # no copying reached the end since
        return is_late or self._log_pages_max() * self._log_share > _LOG_PAGES_MAX

    def _log_pages_max(self) -> int:
        """Return how many pages the log may have got since it was last folded."""
        commits, rows = self._log_begun
        return (self.commits - commits) * _PAGES_OF_COMMIT + self._writer.total_changes - rows

    def _fold_log(self) -> None:
        """Copy what the log holds into the file, so that the log begins anew.

        Nearly all of it while the loops go on committing, by another connection; then, while nobody can write, the
        little that came meanwhile, for only a log that is copied to its end begins anew. SQLite before 3.51.3 may take
        the frames of a log that has just begun anew for copied, where a copying begins behind another one that reached
        the end. None does here: there are commits since the last one then, or that one did not reach
        the end.
        """
        if self._failure is not None or not self._is_log_long():
            return
        pages_max, begun = max(1, self._log_pages_max()), self._log_begun
        self._log_begun = self.commits, self._writer.total_changes  # so the loops ask for no other folding meanwhile
        pages = _NOT_COPIED
        try:
            pages = self._copied_pages()
            with self._writing.turn:
                if self._has_begun_in_time():
                    try:
                        whole = self._copied_pages()
                    finally:
                        self._writer.execute("ROLLBACK")
                    pages = whole if pages == _NOT_COPIED else pages
        except StorageError:
            return  # logged; nothing is written any more
        except sqlite3.Error:  # what was answered is safe in the log
            logger.exception("the log could not be folded into the database")
            return
        if pages == _NOT_COPIED:  # another program holds the database
            self._log_begun = begun
        else:
            self._log_share = min(1.0, max(_LEAST_SHARE, pages / pages_max))
            if not self._is_held_up:
                self._folded.set()

    def _copied_pages(self) -> int:
        """Copy the log by the other connection; return how many pages it has. Raises: sqlite3.Error."""
        self._writing.gil_yield.rest()
        try:
            ((_, pages, copied),) = self._folder.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            self._writing.gil_yield.work()
        self._is_held_up = copied < pages
        return int(pages)

    def _drive(self, unit: Unit[Any]) -> JobOutcome:
        """One unit in its savepoint. Raises: sqlite3.Error where the storage failed."""
        self._writer.execute("SAVEPOINT unit")
        try:
            outcome = JobOutcome(self._play(unit))
        except sqlite3.Error:
            raise
        except BaseException as error:  # noqa: BLE001 - a unit's own exception is its caller's
            self._writer.execute("ROLLBACK TO unit")
            outcome = JobOutcome(error=error)
        self._writer.execute("RELEASE unit")
        return outcome

    def _play(self, unit: Unit[Any]) -> Any:  # noqa: ANN401 - the unit's own result
        steps = iter(unit)
        try:
            asked = next(steps)
            while True:
                rows = rows_of(self._writer, asked) if asked.instead is None else self._play(asked.instead)
                asked = steps.send(rows)
        except StopIteration as stop:
            return stop.value
        finally:
            steps.close()

    def _list_all(self, statements: list[Statement]) -> list[JobOutcome]:
        return [self._list(statement) for statement in statements]

    def _list(self, statement: Statement) -> JobOutcome:
        """Read a list as `_read` does. `close` does not wait for it, and nobody waits longer than some seconds."""
        if self._is_held_up and not self._is_closed:
            self._let_fold()
        if self._is_closed:
            return JobOutcome(error=StorageError("the database is closed"))
        self._begin_list()
        return self._read(self._lister, statement)

    def _let_fold(self) -> None:
        """Wait until the log was folded, once for each time that it could not be: it begins anew while nobody reads it.

        Lists that follow on each other would have it grow for as long as they come.
        """
        self._folded.clear()
        self._is_wanted_short = True
        self._listing.gil_yield.rest()
        if self._is_held_up:  # else it was folded just now
            self._folded.wait(_FOLDED_SECONDS)
        self._listing.gil_yield.work()
        self._is_wanted_short = self._is_held_up = False

    def _read_all(self, connection: sqlite3.Connection, statements: list[Statement]) -> list[JobOutcome]:
        return [self._read(connection, statement) for statement in statements]

    def _read(self, connection: sqlite3.Connection, statement: Statement) -> JobOutcome:
        if self._lost:
            return JobOutcome(error=StorageError(self._lost))
        try:
            return JobOutcome(rows_of(connection, statement))
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_READONLY:
                return JobOutcome(error=StatementError(f"read may not write: {shown(statement)}"))
            if primary_code(error) == sqlite3.SQLITE_INTERRUPT:  # by `close`, else a list
                return JobOutcome(error=StorageError("the database is closed" if self._is_closed else _TOO_LONG))
            logger.exception("the database could not be read")
            return JobOutcome(error=StorageError("the database cannot be read at the moment"))
        except Exception as error:  # noqa: BLE001 - it is this reader's own
            return JobOutcome(error=error)

    def _give_up(self, error: sqlite3.Error) -> StorageError:
        """Undo the transaction and, unless the cause passes by itself, write nothing any more."""
        with suppress(sqlite3.Error):
            self._writer.execute("ROLLBACK")
        if primary_code(error) in _PASSING_CODES:
            logger.warning("another program holds the database: %s", error)
            return StorageError("the database is held by another program")
        logger.error("the database failed and takes no writes: %s", error)
        is_disk = is_of_the_disk(error)
        self._failure = self._lost or (_NO_WRITES if is_disk else _NO_WRITES_AT_ALL)
        self._mend_at = time.monotonic() + _MEND_EVERY_SECONDS if is_disk else None
        return StorageError(self._failure)


@unit_of_work
def _nothing() -> Steps[None]:
    yield from ()
