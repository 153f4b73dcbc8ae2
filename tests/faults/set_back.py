"""The hub of a story: a process by a clock that goes wrong, whose books are set back to a backup."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Final

from tests.faults.clocked import running_under
from tests.faults.striking import Victim, faulty_hub
from tests.gateway.gateway_process import gateway_keys

# A transaction that is older may be replaced.
STUCK_SECONDS: Final = 2


async def hub_of(
    stack: AsyncExitStack, directory: Path, *node_urls: str, gateway_port: int, clock: Path, **options: Any
) -> Victim:
    """Until the stack is closed. `options`: of `HubProcess`."""
    options |= {"trusted_keys": gateway_keys(gateway_port), "stuck_seconds": STUCK_SECONDS}
    options["under"] = running_under(clock)
    return await stack.enter_async_context(faulty_hub(directory, *node_urls, **options))


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
