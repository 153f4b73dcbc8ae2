"""A real database that fails its process at one named boundary: it kills it, refuses, or keeps it waiting.

A boundary is a query or a unit of work, named by the function that asks for it. The fault comes once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import GeneratorType
from typing import Final, Self, TypeVar

from tollkeeper.storage import Database, StorageError
from tollkeeper.storage.database import Job, Outcome, Row, Statement, Unit

T = TypeVar("T")

DELAY_SECONDS: Final = 1.0


class Moment(Enum):
    """Of a boundary."""

    BEFORE = "before"  # nothing was asked
    AFTER = "after"  # it was carried out; its caller does not know


class Kind(Enum):
    """What befalls the process there."""

    CRASH = "crash"  # SIGKILL
    ERROR = "error"
    TIMEOUT = "timeout"  # the caller waits, far longer than usual


@dataclass(frozen=True)
class DatabaseFault:
    """`armed_by`: a file that must be there, so that a fault waits for its payment."""

    boundary: str
    moment: Moment
    kind: Kind
    armed_by: str

    def named(self) -> dict[str, str]:
        """As JSON can hold it."""
        return {
            "boundary": self.boundary,
            "moment": self.moment.value,
            "kind": self.kind.value,
            "armed_by": self.armed_by,
        }

    @classmethod
    def of_names(cls, names: dict[str, str]) -> Self:
        """From what `named` made."""
        return cls(names["boundary"], Moment(names["moment"]), Kind(names["kind"]), names["armed_by"])


class FaultyDatabase:
    """`fault` comes once; the armed file is deleted as it comes."""

    def __init__(self, real: Database, fault: DatabaseFault) -> None:
        self.real = real
        self.fault = fault

    async def read(self, statement: Statement) -> list[Row]:
        """As the real one, but for the fault."""
        name = sys._getframe(1).f_code.co_name  # noqa: SLF001 - who awaits this
        await self._befall(name, Moment.BEFORE)
        rows = await self.real.read(statement)
        await self._befall(name, Moment.AFTER)
        return rows

    async def run(self, unit: Unit[T]) -> T:
        """As the real one, but for the fault."""
        name = _name_of(unit)
        try:
            await self._befall(name, Moment.BEFORE)
        except StorageError:
            unit.close()
            raise
        result = await self.real.run(unit)
        await self._befall(name, Moment.AFTER)
        return result

    def post(self, job: Job, answer: Callable[[Outcome], None]) -> None:
        """As the real one."""
        self.real.post(job, answer)

    async def close(self) -> None:
        """As the real one."""
        await self.real.close()

    async def _befall(self, name: str, moment: Moment) -> None:
        fault = self.fault
        if (name, moment) != (fault.boundary, fault.moment):
            return
        try:
            os.unlink(fault.armed_by)  # noqa: PTH108 - whoever deletes it has the fault
        except FileNotFoundError:
            return
        if fault.kind is Kind.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind is Kind.ERROR:
            raise StorageError("the disk said no")
        await asyncio.sleep(DELAY_SECONDS)


def _name_of(unit: object) -> str:
    assert isinstance(unit, GeneratorType)
    return unit.__name__
