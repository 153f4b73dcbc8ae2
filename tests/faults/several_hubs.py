"""Hubs of a story: one process or two on one database, by a clock that goes wrong, and books set back to a backup."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Final

from tests.faults.clocked import running_under
from tests.faults.striking import Victim, faulty_hub
from tests.faults.tcp_chaos import TcpChaos
from tests.gateway.gateway_process import gateway_keys
from tests.hub.test_several_processes import LIFE_SECONDS, ledger_process

# A transaction that is older may be replaced.
STUCK_SECONDS: Final = 2


class Hubs:
    """Two hub processes on one database, of which one is asked, or dies, after the other."""

    def __init__(self, hubs: list[Victim]) -> None:
        self._hubs = hubs
        self._turn = 0

    @property
    def chaoses(self) -> list[TcpChaos]:
        """Before the nodes of both."""
        return [chaos for hub in self._hubs for chaos in hub.chaoses]

    @property
    def running_url(self) -> str:
        """Of one that serves; empty while none does."""
        urls = [hub.running_url for hub in self._hubs if hub.running_url]
        self._turn += 1
        return urls[self._turn % len(urls)] if urls else ""

    async def url(self) -> str:
        """Of one, once both serve."""
        first, *_ = [await hub.url() for hub in self._hubs]
        return first

    def end(self) -> None:
        """One dies."""
        self._turn += 1
        self._hubs[self._turn % len(self._hubs)].end()


async def hubs_of(
    stack: AsyncExitStack,
    directory: Path,
    *node_urls: str,
    gateway_port: int,
    clock: Path,
    are_two: bool = False,
    **options: Any,
) -> Victim | Hubs:
    """Until the stack is closed; of two each has the same nodes. `options`: of `HubProcess`."""
    options |= {"trusted_keys": gateway_keys(gateway_port), "stuck_seconds": STUCK_SECONDS}
    options["under"] = running_under(clock)
    if not are_two:
        return await stack.enter_async_context(faulty_hub(directory, *node_urls, **options))
    stack.enter_context(ledger_process(directory))
    options["life_seconds"] = LIFE_SECONDS
    return Hubs([await stack.enter_async_context(faulty_hub(directory, *node_urls, **options)) for _ in range(2)])


def back_up(books: Path, to: Path) -> None:
    """As it runs."""
    to.parent.mkdir(exist_ok=True)
    to.unlink(missing_ok=True)
    with closing(sqlite3.connect(books)) as source, closing(sqlite3.connect(to)) as copy:
        source.backup(copy)


def restore(books: Path, backup: Path) -> None:
    """While nobody has it open."""
    for path in books.parent.glob(books.name + "-*"):
        path.unlink()
    books.write_bytes(backup.read_bytes())
