"""Names asked of the system, on threads, so that hosts whose name servers are silent stop nobody else (security A-41).

The system's lookup blocks its thread for as long as it likes, some twenty seconds where nobody answers, and cannot be
ended. So a host has one thread at a time, however often it is asked for; the lookups of those who make gates, which
cost them nothing, have threads apart from those of calls, and so have hosts that were silent lately. Judges no address.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

CALL_THREADS: Final = 32
OTHER_THREADS: Final = 8
SILENT_SECONDS: Final = 2.0
SILENT_KEPT_SECONDS: Final = 600.0
SILENT_MAX: Final = 1024


class NotAskedError(Exception):
    """Others had all threads for as long as the lookup was waited for: nothing is known of its host."""


class _Asking:
    """One lookup. `began_seconds`: since when it has its thread, by `time.monotonic`; None before."""

    __slots__ = ("began_seconds", "found")

    def __init__(self) -> None:
        self.began_seconds: float | None = None
        self.found: asyncio.Future[list[str]]

    def is_silent(self) -> bool:
        """Whether it has had its thread for long; one that merely waited for a thread is not the host's fault."""
        return self.began_seconds is not None and time.monotonic() - self.began_seconds >= SILENT_SECONDS


class Lookups:
    """The system's lookups of one process. For one event loop."""

    def __init__(self) -> None:
        self._of_calls = _threads(CALL_THREADS, "resolve-call")
        self._of_silent = _threads(OTHER_THREADS, "resolve-silent")
        self._of_checks = _threads(OTHER_THREADS, "resolve-check")
        self._asking: dict[tuple[str, bool], _Asking] = {}
        self._silent_until: dict[str, float] = {}

    async def addresses(self, host: str, port: int, *, is_check: bool) -> list[str]:
        """The addresses of `host` as text. Raises: OSError; NotAskedError in place of the cancelling.

        Whoever has waited long enough gives up by cancelling; nobody else may wait for the same meanwhile. What has no
        thread by then is not asked any more.
        """
        name = host, is_check
        asking = self._asking.get(name) or self._begin(host, port, is_check=is_check)
        try:
            return await asyncio.shield(asking.found)
        except asyncio.CancelledError:
            if asking.began_seconds is None:
                asking.found.cancel()
                self._forget(name, asking)
                raise NotAskedError from None
            if asking.is_silent():
                self._silent_until.pop(host, None)
                if len(self._silent_until) >= SILENT_MAX:
                    del self._silent_until[next(iter(self._silent_until))]
                self._silent_until[host] = time.monotonic() + SILENT_KEPT_SECONDS
            raise

    def close(self) -> None:
        """End the threads."""
        for threads in (self._of_calls, self._of_silent, self._of_checks):
            threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, host: str, port: int, *, is_check: bool) -> _Asking:
        threads = self._of_checks if is_check else self._of_silent if self._is_silent(host) else self._of_calls
        self._asking[host, is_check] = asking = _Asking()
        loop = asyncio.get_running_loop()
        asking.found = loop.run_in_executor(threads, _look_up(host, port, asking))
        asking.found.add_done_callback(lambda _: self._forget((host, is_check), asking))
        return asking

    def _is_silent(self, host: str) -> bool:
        return self._silent_until.get(host, 0.0) > time.monotonic()

    def _forget(self, name: tuple[str, bool], asking: _Asking) -> None:
        if self._asking.get(name) is asking:
            del self._asking[name]
        if asking.found.done() and not asking.found.cancelled():
            asking.found.exception()  # perhaps nobody waits any more


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=name)


def _look_up(host: str, port: int, asking: _Asking) -> Callable[[], list[str]]:
    def look_up() -> list[str]:
        asking.began_seconds = time.monotonic()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    return look_up
