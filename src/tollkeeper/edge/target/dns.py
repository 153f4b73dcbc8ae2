"""Names asked of the system, on threads that tenants share, so that silent name servers stop nobody else (A-41, A-58).

The system's lookup blocks its thread for as long as it likes, some twenty seconds where nobody answers, and cannot be
ended. So a host has one thread at a time, however often it is asked for, and a tenant its share of the threads.
Judges no address.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from tollkeeper.places import Places


class NotAskedError(Exception):
    """The tenant's share was taken for as long as the lookup was waited for: nothing is known of its host."""


class Lookups:
    """The system's lookups of one kind, by so many threads. For one event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = Places(threads)
        self._asked: dict[str, asyncio.Future[list[str]]] = {}  # by host, each with a thread of its own

    async def addresses(self, host: str, port: int, tenant: str) -> list[str]:
        """Return the addresses of `host` as text. Raises: OSError; NotAskedError in place of the cancelling.

        Whoever has waited long enough gives up by cancelling. A lookup that has no thread by then is not begun.
        """
        if host not in self._asked:
            try:
                await self._places.take(tenant)
            except asyncio.CancelledError:
                raise NotAskedError from None
            if host in self._asked:
                self._places.give_back(tenant)
            else:
                self._begin(host, port, tenant)
        return await asyncio.shield(self._asked[host])

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, host: str, port: int, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        self._asked[host] = asked = loop.run_in_executor(self._threads, _look_up, host, port)

        def ended(_: asyncio.Future[list[str]]) -> None:
            del self._asked[host]
            self._places.give_back(tenant)
            if not asked.cancelled():
                asked.exception()  # perhaps nobody waits any more

        asked.add_done_callback(ended)


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
