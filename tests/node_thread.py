"""A sandbox node in an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunnableNode(Protocol):
    """Node that can be started and stopped in an event loop."""

    async def start(self) -> str:
        """Serve. Returns the URL. Raises: OSError where the port is taken."""

    async def stop(self) -> None:
        """Stop serving."""


N = TypeVar("N", bound=RunnableNode)


@contextlib.contextmanager
def run_in_thread(node: N) -> Iterator[N]:
    """Serve `node` until the block ends. Do not touch its chain meanwhile. Raises: OSError."""
    started = threading.Event()
    stopping = asyncio.Event()
    failure: list[BaseException] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        try:
            await node.start()
        except OSError as error:
            failure.append(error)
            return
        finally:
            started.set()
        await stopping.wait()
        await node.stop()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run, name=type(node).__name__, daemon=True)
    thread.start()
    started.wait()
    if failure:
        thread.join()
        raise failure[0]
    try:
        yield node
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
