"""Connections that a proxy passes on: whoever asks, whoever is asked, and what it carries between them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

_QUIET_SECONDS: Final = 0.05
_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Link(ABC):
    """One connection of whoever asks and the one to whoever is asked; it stands until either way returns."""

    def __init__(self, asker: asyncio.StreamWriter, asked: asyncio.StreamWriter) -> None:
        self._asker = asker
        self._asked = asked

    @abstractmethod
    async def carry_requests(self, source: asyncio.StreamReader) -> None:
        """What the asker sends."""

    @abstractmethod
    async def carry_answers(self, source: asyncio.StreamReader) -> None:
        """What it is answered."""

    def end(self) -> None:
        """What was written still goes out; then both ends see the connection break."""
        self._asker.close()
        self._asked.close()


@asynccontextmanager
async def linking(
    listen: Callable[[_Serve], Awaitable[asyncio.Server]],
    connect: Callable[[], Awaitable[_Streams]],
    link_of: Callable[[asyncio.StreamWriter, asyncio.StreamWriter], Link],
) -> AsyncIterator[asyncio.Server]:
    """A proxy's server: a link for each connection."""
    links: set[asyncio.Task[None]] = set()

    async def carry(source: asyncio.StreamReader, asker: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        links.add(task)
        try:
            answers, asked = await connect()
            link = link_of(asker, asked)
            ways = {
                asyncio.create_task(link.carry_requests(source)),
                asyncio.create_task(link.carry_answers(answers)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                link.end()
        except (OSError, asyncio.CancelledError):  # the test is over, or whoever is asked is away
            pass
        finally:
            asker.close()
            links.discard(task)

    server = await listen(carry)
    try:
        yield server
    finally:
        server.close()
        await asyncio.sleep(_QUIET_SECONDS)  # whoever was let in just now is known by then
        for link in list(links):
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        await server.wait_closed()
