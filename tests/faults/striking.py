"""Faults ordered at one boundary of a program that runs between faulty parts, and the program that they befall.

A boundary is what the program awaits: its database, by the function that asks; a node's method; a part of a hub's path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.faults.tcp_chaos import NODE_TIMEOUT_SECONDS, OF_HUB, Fault, TcpChaos, run_tcp_chaos
from tests.hub.faulty_database import Kind, Moment, order
from tests.hub.hub_process import HubProcess, TestProcess

FAULTS: Final = {
    (Kind.CRASH, Moment.BEFORE): Fault.KILL_BEFORE,
    (Kind.CRASH, Moment.AFTER): Fault.KILL_AFTER,
    (Kind.ERROR, Moment.BEFORE): Fault.CUT_REQUEST,
    (Kind.ERROR, Moment.AFTER): Fault.CUT_ANSWER,
    (Kind.TIMEOUT, Moment.BEFORE): Fault.BLACKHOLE,
    (Kind.TIMEOUT, Moment.AFTER): Fault.SILENCE,
    (Kind.DUPLICATE, Moment.BEFORE): Fault.ASKED_TWICE,
    (Kind.DUPLICATE, Moment.AFTER): Fault.TWICE,
}


@dataclass(frozen=True)
class Case:
    """One fault at one boundary."""

    boundary: str
    moment: Moment
    kind: Kind

    @property
    def is_of_database(self) -> bool:
        """Those are called by functions' names, a Solana node's in mixed letters, a hub's begin with a slash."""
        return self.boundary.islower() and not self.boundary.startswith(("eth_", "/"))


def cases(boundaries: tuple[str, ...], *kinds: Kind) -> Iterator[Case]:
    """All combinations; a database gives no answer twice."""
    for boundary in boundaries:
        for moment in Moment:
            for kind in kinds:
                case = Case(boundary, moment, kind)
                if not case.is_of_database or kind is not Kind.DUPLICATE:
                    yield case


Start: TypeAlias = Callable[[Path, Callable[[TestProcess], object]], TestProcess]


class Victim:
    """A program between a faulty database and faulty connections; a new one where the last one was killed."""

    def __init__(self, orders: Path, chaoses: Sequence[TcpChaos], start: Start) -> None:
        """`orders`: the file that faults of its database are ordered by. `start` is given it, and what to call."""
        self._orders = orders
        self._chaoses = chaoses
        self._start = start
        self._struck = chaoses[0]
        self._process: TestProcess | None = None
        self._starting = asyncio.Lock()
        self.starts = 0
        self.deaths = 0  # of which it was told

    async def url(self) -> str:
        """Of the process that runs; one that dies while it starts is started again."""
        async with self._starting:
            while self._process is None or not self._process.url or self._process.process.poll() is not None:
                self.deaths += self._process is not None
                self.end()
                self._process = await asyncio.to_thread(self._start, self._orders, self._may_be_killed)
                self.starts += 1
            return self._process.url

    def _may_be_killed(self, process: TestProcess) -> None:
        for chaos in self._chaoses:
            chaos.kill = process.kill

    @property
    def seen(self) -> set[str]:
        """Every boundary that any of its processes came by."""
        seen = set(self._orders.with_suffix(".seen").read_text("utf-8").split())
        return seen.union(*(chaos.methods for chaos in self._chaoses))

    def prepare(self, case: Case) -> None:
        """The fault comes as soon as anything comes by its boundary."""
        if case.is_of_database:
            order(self._orders, case.boundary, case.moment, case.kind)
            return
        is_of_hub = case.boundary.startswith("/")
        self._struck = next(chaos for chaos in self._chaoses if (chaos.calls is OF_HUB) is is_of_hub)
        self._struck.strike(case.boundary, FAULTS[case.kind, case.moment])

    def has_come(self, case: Case) -> bool:
        """Did it?"""
        return not self._orders.exists() if case.is_of_database else self._struck.struck > 0

    async def until_come(self, case: Case) -> None:
        """A crash has come once the process is dead."""
        async with asyncio.timeout(60):
            while not self.has_come(case):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
            if case.kind is Kind.CRASH and self._process is not None:
                await asyncio.to_thread(self._process.process.wait)

    def end(self) -> None:
        """No process runs any more."""
        if self._process is not None:
            self._process.__exit__()
            self._process = None


@asynccontextmanager
async def faulty_hub(directory: Path, node_url: str, **options: Any) -> AsyncIterator[Victim]:
    """A hub process between a faulty database and a faulty node; `options`: of `HubProcess`."""
    async with run_tcp_chaos(node_url) as chaos:

        def start(orders: Path, on_start: Callable[[TestProcess], object]) -> TestProcess:
            given = {"node_timeout_seconds": NODE_TIMEOUT_SECONDS, "orders": orders, "on_start": on_start, **options}
            return HubProcess(directory, chaos.url, **given)

        hub = Victim(directory / "order.json", [chaos], start)
        try:
            yield hub
        finally:
            hub.end()
