"""A real database that fails its process at one named boundary: it kills it, refuses, or keeps it waiting.

A boundary is a query or a unit of work, named by the function that asks for it, a job by its class. A fault is ordered
by a file, comes once, and takes its order away as it comes: so one process can be told of one fault after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from tollkeeper.storage.engine.database import Database, JobOutcome, Row, Statement, StorageError, Unit, rows_of

T = TypeVar("T")

DELAY_SECONDS: Final = 0.5


class Moment(Enum):
    """Of a boundary."""

    BEFORE = "before"  # nothing was asked
    AFTER = "after"  # it was carried out; its caller does not know


class Kind(Enum):
    """What befalls the process there."""

    CRASH = "crash"  # SIGKILL
    ERROR = "error"
    TIMEOUT = "timeout"  # the caller waits, far longer than usual
    DUPLICATE = "duplicate"  # of a node: asked twice, or answered twice


def order(file: Path, boundary: str, moment: Moment, kind: Kind) -> None:
    """The next one to come by that boundary has that fault."""
    made = file.with_suffix(".new")
    made.write_text(json.dumps([boundary, moment.value, kind.value]))
    made.replace(file)


class FaultyDatabase:
    """`orders`: the file that a fault is ordered by; beside it, `.seen` holds the boundaries that came."""

    def __init__(self, real: Database, orders: Path) -> None:
        self.real = real
        self.orders = orders
        self._seen: set[str] = set()
        self._posting: asyncio.Future[None]

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        """As the real one, but for the fault."""
        name = sys._getframe(1).f_code.co_name  # noqa: SLF001 - who awaits this
        await self._befall(name, Moment.BEFORE)
        rows = await self.real.read(statement, is_short=is_short, tenant=tenant)
        await self._befall(name, Moment.AFTER)
        return rows

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        """As the real one, but for the fault."""
        name = _name_of(unit, sys._getframe(1).f_code.co_name)  # noqa: SLF001 - who awaits this
        await self._befall(name, Moment.BEFORE)
        result = await self.real.run(unit, is_short=is_short)
        await self._befall(name, Moment.AFTER)
        return result

    def post(self, unit: Unit[Any], answer: Callable[[JobOutcome], None]) -> None:
        """As the real one, but for the fault."""
        self._posting = asyncio.ensure_future(self._post(unit, answer))

    async def _post(self, unit: Unit[Any], answer: Callable[[JobOutcome], None]) -> None:
        """An error answers; the unit is carried out all the same where it comes after it."""
        done: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()
        try:
            await self._befall(_name_of(unit, "post"), Moment.BEFORE)
            self.real.post(unit, done.set_result)
            outcome = await done
            await self._befall(_name_of(unit, "post"), Moment.AFTER)
        except StorageError as error:
            outcome = JobOutcome(error=error)
        answer(outcome)

    def write_as(self, node: str) -> None:
        """As the real one."""
        self.real.write_as(node)

    async def close(self) -> None:
        """As the real one."""
        await self.real.close()

    async def _befall(self, name: str, moment: Moment) -> None:
        if name not in self._seen:
            self._seen.add(name)
            with self.orders.with_suffix(".seen").open("a", encoding="utf-8") as seen:
                seen.write(f"{name}\n")
        kind = self._ordered(name, moment)
        if kind is Kind.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind is Kind.ERROR:
            raise StorageError("the disk said no")
        if kind is Kind.TIMEOUT:
            await asyncio.sleep(DELAY_SECONDS)

    def _ordered(self, name: str, moment: Moment) -> Kind | None:
        try:
            boundary, ordered_moment, kind = json.loads(self.orders.read_text())
            if (boundary, ordered_moment) != (name, moment.value):
                return None
            self.orders.unlink()
        except FileNotFoundError:
            return None
        return Kind(kind)


def _name_of(unit: Unit[Any], asker: str) -> str:
    """A unit that several verbs share has the name of whoever asks for it: one that is private, or of one statement."""
    of, _, name = unit.name.rpartition(".")
    if of and name == "unit":
        return _in_small_letters(of)
    return asker if name.startswith("_") or name == rows_of.__name__ else name


def _in_small_letters(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
