"""Faults ordered at one boundary of a program that runs between faulty parts, and the program that they befall.

A boundary is what the program awaits: its database, by the function that asks; a node's method; a part of a hub's path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import aiohttp

from tests.faults.tcp_chaos import NODE_TIMEOUT_SECONDS, OF_HUB, OF_NODE, Fault, TcpChaos, run_tcp_chaos
from tests.hub.faulty_database import Kind, Moment, order
from tests.hub.hub_process import HubProcess, TestProcess

# Longer than a node rests that gave no answer, and than recovery takes to ask it for its blocks after that.
_RESTED_SECONDS: Final = 2.6
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
    node: int = 0  # of several, which one is struck

    @property
    def is_of_database(self) -> bool:
        """Those are called by functions' names, a Solana node's in mixed letters, a hub's begin with a slash."""
        return self.boundary.islower() and not self.boundary.startswith(("eth_", "/"))


def cases(boundaries: tuple[str, ...], *kinds: Kind, node: int = 0) -> Iterator[Case]:
    """All combinations; a database gives no answer twice."""
    for boundary in boundaries:
        for moment in Moment:
            for kind in kinds:
                case = Case(boundary, moment, kind, node)
                if not case.is_of_database or kind is not Kind.DUPLICATE:
                    yield case


Start: TypeAlias = Callable[[Path, Callable[[TestProcess], object]], TestProcess]


class Struck(Protocol):
    """Programs that faults befall, and that are started anew."""

    @property
    def deaths(self) -> int:
        """Of its processes."""

    @property
    def starts(self) -> int:
        """Of its processes."""

    @property
    def seen(self) -> set[str]:
        """Every boundary that any of its processes came by."""

    async def url(self) -> str:
        """Where it is, once it serves."""

    def prepare(self, case: Case) -> None:
        """The fault comes as soon as anything comes by its boundary."""

    def has_come(self, case: Case) -> bool:
        """Did it?"""

    async def until_come(self, case: Case) -> None:
        """It did."""

    def end(self) -> None:
        """No process runs any more."""


class Victim:
    """A program between a faulty database and faulty connections; a new one where the last one was killed."""

    def __init__(self, orders: Path, chaoses: Sequence[TcpChaos], start: Start) -> None:
        """`orders`: the file that faults of its database are ordered by. `start` is given it, and what to call."""
        self._orders = orders
        self.chaoses = chaoses
        self._start = start
        self._struck = chaoses[0]
        self._has_resting = False
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

    async def between(self, work: Callable[[], object]) -> None:
        """Its process dies, and the next one starts when that is done."""
        async with self._starting:
            self.end()
            await asyncio.to_thread(work)

    @property
    def running_url(self) -> str:
        """Of the process that serves; empty while none does."""
        process = self._process
        return process.url if process is not None and process.process.poll() is None else ""

    def _may_be_killed(self, process: TestProcess) -> None:
        for chaos in self.chaoses:
            chaos.kill = process.kill

    @property
    def seen(self) -> set[str]:
        """Every boundary that any of its processes came by."""
        seen = set(self._orders.with_suffix(".seen").read_text("utf-8").split())
        return seen.union(*(chaos.methods for chaos in self.chaoses))

    async def rested(self) -> None:
        """Of several nodes each is asked again, also one that gave no answer a moment ago.

        The first one is, since a hub that has nothing to do may ask none, and one that fails again rests longer.
        """
        if self._has_resting:
            self._has_resting = False
            for chaos in self.chaoses:
                chaos.heal()
            await asyncio.sleep(_RESTED_SECONDS)
            async with aiohttp.ClientSession() as http, http.get(await self.url() + "/readyz") as answer:
                await answer.read()

    def prepare(self, case: Case) -> None:
        """The fault comes as soon as anything comes by its boundary."""
        is_of_several = sum(chaos.calls is OF_NODE for chaos in self.chaoses) > 1
        # A node of an EVM network rests that answers twice, and none that is asked twice.
        is_taken = case.kind is Kind.CRASH or (
            case.kind is Kind.DUPLICATE and case.moment is Moment.BEFORE and case.boundary.startswith("eth_")
        )
        self._has_resting = is_of_several and not is_taken and not case.is_of_database
        if case.is_of_database:
            order(self._orders, case.boundary, case.moment, case.kind)
            return
        is_of_hub = case.boundary.startswith("/")
        self._struck = [chaos for chaos in self.chaoses if (chaos.calls is OF_HUB) is is_of_hub][case.node]
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

    async def ended(self) -> None:
        """As `end`, and nothing that it asked before is still on its way, to be struck in the next one's place."""
        self.end()
        async with asyncio.timeout(20):
            while any(chaos.asking for chaos in self.chaoses):  # noqa: ASYNC110 - of other tasks
                await asyncio.sleep(0.01)

    def end(self) -> None:
        """No process runs any more."""
        if self._process is not None:
            self._process.__exit__()
            self._process = None


@asynccontextmanager
async def faulty_hub(directory: Path, *node_urls: str, **options: Any) -> AsyncIterator[Victim]:
    """A hub process between a faulty database and faulty nodes; `options`: of `HubProcess`."""
    async with AsyncExitStack() as stack:
        chaoses = [await stack.enter_async_context(run_tcp_chaos(url)) for url in node_urls]

        def start(orders: Path, on_start: Callable[[TestProcess], object]) -> TestProcess:
            given = {"node_timeout_seconds": NODE_TIMEOUT_SECONDS, "orders": orders, "on_start": on_start, **options}
            first, *others = (chaos.url for chaos in chaoses)
            return HubProcess(directory, first, other_node_urls=others, **given)

        hub = Victim(directory / "order.json", chaoses, start)
        try:
            yield hub
        finally:
            hub.end()
