"""The engine of several programs: a pool of connections to one PostgreSQL (READ COMMITTED).

Units of several programs run side by side. What one of them decides by what it reads is right because it takes its
locks first, in one order everywhere (`engine.database`); a unit that the server broke off all the same (40P01, 40001)
is begun anew. Any exception that is no statement's is an unknown outcome. Opening and migrating are in
`postgresql.schema`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from tollkeeper.places import Places
from tollkeeper.storage.engine.database import JobOutcome, NotTakenError, StatementError, StorageError
from tollkeeper.storage.postgresql.connections import (
    AGAIN,
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    LIST_SECONDS,
    STATEMENT_SECONDS,
    fault_of,
    options_of,
)
from tollkeeper.storage.postgresql.words import said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from asyncpg.pool import PoolConnectionProxy

    from tollkeeper.storage.engine.database import Row, Statement, Steps, Unit

    _Connection = PoolConnectionProxy[asyncpg.Record]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CONNECTIONS_MAX: Final = 8  # that write, and as many that read
_WAITING_SECONDS: Final = 4.0  # for a connection, while nobody is done with one
_AGAIN_SECONDS: Final = 4.0  # that a unit is begun anew for
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_PAUSE_SECONDS: Final = 0.02
_LISTS_AT_ONCE: Final = 4
_NOT_REACHED: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class _Pools:
    """Pools of one event loop: one to write, and one to read, which the server lets write nothing."""

    def __init__(self, url: str) -> None:
        self.writing = _Connections(options_of(url, seconds=STATEMENT_SECONDS))
        self.reading = _Connections(options_of(url, seconds=LIST_SECONDS, is_read_only=True))
        self.lists = Places(_LISTS_AT_ONCE)
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """One of this loop's units at a time. Raises: NotTakenError where one that was waited for met a fault."""
        line = self._lines.setdefault(name, _Line())
        line.count += 1
        faults = line.faults
        try:
            async with line.lock:
                if line.faults != faults:
                    raise NotTakenError("the database cannot be reached at the moment")
                try:
                    yield
                except StorageError:
                    line.faults += 1
                    raise
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[name]

    async def close(self) -> None:
        await self.writing.close()
        await self.reading.close()


class _Line:
    """Units that wait for each other here, and not each with a connection that others could use."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
        self.faults = 0


class _Connections:
    """A pool, and the connection that was used last: to return and lend it costs a tenth of a batch of spends."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._pool = asyncpg.create_pool(min_size=0, max_size=_CONNECTIONS_MAX, reset=_leave, **options)
        self._kept: _Connection | None = None
        self._answered = 0.0  # when the server was last done with something
        self._is_closing = False  # which waits for whatever is lent

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[_Connection]:
        """One of them. Raises: NotTakenError where none is to be had in time."""
        connection, self._kept = self._kept, None
        if connection is not None and _is_lost(connection):
            await self._put_back(connection)
            connection = None
        connection = connection or await self._acquire()
        is_sound = False
        try:
            yield connection
            is_sound = True
            self._answered = time.monotonic()
        finally:
            # Nobody waits where the pool has room.
            has_room = self._pool.get_idle_size() > 0 or self._pool.get_size() < _CONNECTIONS_MAX
            if is_sound and has_room and not self._is_closing and self._kept is None:
                self._kept = connection
            else:
                await self._put_back(connection)

    async def _acquire(self) -> _Connection:
        """Wait for one, as long as others get on with theirs."""
        pool, loop, waits_since = self._pool, asyncio.get_running_loop(), time.monotonic()
        try:
            await pool  # which makes it ready, once
            async with asyncio.timeout(None) as limit:
                next_look: asyncio.TimerHandle

                def look() -> None:
                    nonlocal next_look
                    left_seconds = max(waits_since, self._answered) + _WAITING_SECONDS - time.monotonic()
                    if left_seconds > 0:
                        next_look = loop.call_later(left_seconds, look)
                    else:
                        limit.reschedule(loop.time())

                next_look = loop.call_later(_WAITING_SECONDS, look)
                try:
                    return await pool.acquire()
                finally:
                    next_look.cancel()
        except _NOT_REACHED as error:
            if isinstance(error, TimeoutError) and pool.get_size() == pool.get_max_size():
                raise NotTakenError("too many requests wait for the database") from error
            logger.warning("the database cannot be reached: %s", type(error).__name__)
            raise NotTakenError("the database cannot be reached at the moment") from error

    async def _put_back(self, connection: _Connection) -> None:
        with suppress(*_NOT_REACHED):
            await self._pool.release(connection, timeout=CONNECT_SECONDS)

    async def close(self) -> None:
        self._is_closing = True
        kept, self._kept = self._kept, None
        if kept is not None:
            await self._put_back(kept)
        with suppress(TimeoutError, asyncpg.InterfaceError):  # one that was never used has nothing to close
            await asyncio.wait_for(self._pool.close(), CONNECT_SECONDS)


async def _leave(_connection: object) -> None:
    """Nothing is to be undone: no transaction leaves anything with its connection."""


def _is_lost(connection: _Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # it broke off, and has left the pool already
        return True


class PostgresqlDatabase:
    """A database whose schema is this program's. Carries out `Database`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pools: dict[asyncio.AbstractEventLoop, _Pools] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._node: str | None = None
        self.commits = 0
        self.units = 0

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        """Read by a connection that cannot write. A tenant has one list at a time."""
        del is_short  # no look-up is quicker than the way to the server
        if tenant is None:
            return await self._read(statement, ANSWER_SECONDS)
        lists = self._here().lists
        await lists.take(tenant)
        try:
            return await self._read(statement)
        finally:
            lists.give_back(tenant)

    async def _read(self, statement: Statement, seconds: float | None = None) -> list[Row]:
        async with self._here().reading.lent() as connection:
            return await _rows(connection, statement, seconds=seconds)

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        """Run the unit in a task of its own, which outlives its caller."""
        del is_short
        self._here()
        return await asyncio.shield(self._begin(self._run(unit, self._node)))

    def post(self, unit: Unit[Any], answer: Callable[[JobOutcome], None]) -> None:
        """Run the unit in a task, which calls `answer`."""
        self._here()

        async def told(node: str | None) -> None:
            try:
                outcome = JobOutcome(await self._run(unit, node))
            except Exception as error:  # noqa: BLE001 - it is the answer
                outcome = JobOutcome(error=error)
            answer(outcome)

        self._begin(told(self._node))

    def write_as(self, node: str) -> None:
        """Every unit from now on is this node's, by a lock that whoever ends the node waits for."""
        self._node = node

    async def close(self) -> None:
        """Refuse new work, wait for what was begun, let the connections go."""
        self._is_closed = True
        while self._running:
            await asyncio.wait(self._running)
        pools, self._pools = self._pools, {}
        for of_loop in pools.values():
            await of_loop.close()

    def _here(self) -> _Pools:
        """The pools of this loop. Raises: StorageError once it is closed."""
        if self._is_closed:
            raise StorageError("the database is closed")
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = _Pools(self._url)
        return self._pools[loop]

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone

    async def _run(self, unit: Unit[T], node: str | None) -> T:
        """Carry the unit out, anew where the server broke it off. Raises: StorageError; what the unit raises."""
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                result = await self._run_once(unit, node)
            except AGAIN as error:
                if time.monotonic() >= until:
                    raise NotTakenError("too many change the same at once; try again") from error
                logger.info("a unit is begun anew: %s (%s)", type(error).__name__, unit.name)
                await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS))  # noqa: S311 - no secret
            else:
                self.commits += 1
                self.units += 1
                return result

    async def _run_once(self, unit: Unit[T], node: str | None) -> T:
        pools = self._pools[asyncio.get_running_loop()]
        steps = iter(unit)
        try:
            try:
                first = next(steps)
            except StopIteration as stop:
                nothing_asked: T = stop.value
                return nothing_asked
            if not first.turn:
                return await _carry_out(pools, unit, steps, first, node)
            async with pools.turn(first.turn):
                return await _carry_out(pools, unit, steps, first, node)
        finally:
            steps.close()


async def _carry_out(pools: _Pools, unit: Unit[T], steps: Steps[T], first: Statement, node: str | None) -> T:
    """Carry out the unit whose first statement this is."""
    async with pools.writing.lent() as connection:
        try:
            if not first.is_whole:  # else it is a transaction of its own: one way to the server, not three
                await _say(connection, _BEGIN if node is None else f"{_BEGIN}; SELECT require_node('{node}')")
            asked = first
            while True:
                asked = steps.send(await _rows(connection, asked, node))
                _require_transaction(connection, unit)
        except StopIteration as stop:
            if connection.is_in_transaction():
                await _say(connection, "COMMIT")
            result: T = stop.value
            return result
        except BaseException:
            await _roll_back(connection)
            raise


async def _rows(
    connection: _Connection, statement: Statement, node: str | None = None, seconds: float | None = None
) -> list[Row]:
    """The rows of a statement, within so many seconds or the pool's. Raises: as `fault_of` says; AGAIN."""
    try:
        sql, values = said(statement, node)
    except KeyError as error:
        raise StatementError(f"no value for {error}") from error
    try:
        return [dict(record) for record in await connection.fetch(sql, *values, timeout=seconds)]
    except AGAIN:
        raise
    except Exception as error:
        _leave_silent(connection, error)
        fault = fault_of(error, statement)
        if not isinstance(fault, (StatementError, NotTakenError)):
            logger.warning("the database cannot be reached: %s", type(error).__name__)
        raise fault from error


async def _say(connection: _Connection, words: str) -> None:
    try:
        await connection.execute(words)
    except AGAIN:
        raise
    except Exception as error:
        _leave_silent(connection, error)
        raise fault_of(error, None) from error


def _leave_silent(connection: _Connection, error: Exception) -> None:
    """Close the connection to a server that did not answer: it would not answer what ends its statement either."""
    if isinstance(error, TimeoutError):
        connection.terminate()


def _require_transaction(connection: _Connection, unit: Unit[Any]) -> None:
    if not connection.is_in_transaction():
        raise StatementError(f"{unit.name} goes on behind a statement that was to be all of it")


async def _roll_back(connection: _Connection) -> None:
    """Undo what was begun; a connection that cannot is closed, by which the server undoes it."""
    try:
        if not connection.is_closed() and connection.is_in_transaction():
            await connection.execute("ROLLBACK", timeout=CONNECT_SECONDS)
    except Exception:  # noqa: BLE001 - whatever it is, the connection is of no use
        with suppress(asyncpg.InterfaceError):  # one that broke off has left the pool already
            connection.terminate()
