"""Connections to targets: opened to a checked address, kept for reuse within bounds (contract 3.4, performance 5).

A kept connection serves only exchanges with its own key, which names the address that was checked. Who may have how
many in use is `forwarder`'s. Says nothing about requests or responses.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final
from weakref import WeakValueDictionary

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.edge.shared.nothing_sent import NothingSentError
from tollkeeper.edge.target.connection import Lane, TargetConnection, TargetKey
from tollkeeper.edge.target.tls import connect_secure

# Below the 5 seconds after which widespread servers (uvicorn, Node) close: a POST on a connection that the target is
# just closing cannot be sent again.
IDLE_SECONDS: Final = 4
IDLE_PER_TARGET: Final = 256
IDLE_IN_ALL: Final = 1024
CONNECT_TIMEOUT_SECONDS: Final = 10.0  # shared by the addresses that are tried
ADDRESSES_MAX: Final = 4
SILENT_SECONDS: Final = 30.0  # so long an address that did not answer at all is tried behind a target's others
# That this process, or the machine, can open nothing more is not the target's fault.
OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})


def target_tls_context() -> ssl.SSLContext:
    """The system's trust, verified names, HTTP/1.1 only.

    Raises: NothingSentError where it cannot be read now: the context would trust nobody, and not say so.
    """
    require_descriptor()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def require_descriptor() -> None:
    """For what fails without saying that nothing more can be opened. Raises: NothingSentError where that is so."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as fault:
        if fault.errno in OURS:
            raise NothingSentError from None


def places_for_targets() -> int:
    """Return how many connections to targets this process may have: half of what its callers have descriptors up to.

    A call that waits for its target takes two, one of them with its caller (`protocol_class.strict_protocol`).
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if descriptors == resource.RLIM_INFINITY else descriptors // 4


class TargetPool:
    """Idle connections by key, newest first out, oldest first evicted. For one event loop."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        idle_seconds: float = IDLE_SECONDS,
        idle_per_target: int = IDLE_PER_TARGET,
        idle_in_all: int = IDLE_IN_ALL,
        places: int = sys.maxsize,
    ) -> None:
        """`tls` checks targets' certificates; by default the system's trust does, loaded when it is first needed.

        `places`: what connections in use and idle ones have together. Half of it may be idle, and gives way.
        """
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._idle_per_target = idle_per_target
        self._idle_in_all = min(idle_in_all, max(1, places // 2))
        self._idle_anywhere = min(self._idle_per_target, self._idle_in_all)  # below it neither bound can be reached
        self._lanes: WeakValueDictionary[TargetKey, Lane] = WeakValueDictionary()  # as long as anybody knows them
        self._expiry: dict[TargetConnection, float] = {}  # of idle ones, in the order of going idle
        self._open: set[TargetConnection] = set()
        self._places = places
        self._opening = 0
        self._silent: dict[str, float] = {}  # addresses that did not answer, until when they are tried last
        self._sweep: asyncio.TimerHandle | None = None
        self._time: Callable[[], float]  # the loop's, once there is a connection
        self._closed = False

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all its calls. Kept, because Python asks the system for its process id to find it again."""
        return asyncio.get_running_loop()

    @property
    def idle_count(self) -> int:
        """How many connections wait for use."""
        return len(self._expiry)

    @property
    def open_count(self) -> int:
        """How many connections are open, in use or not."""
        return len(self._open)

    def lane(self, key: TargetKey) -> Lane:
        """Return the queue in which idle connections for `key` wait."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
        return lane

    def take(self, lanes: Iterable[Lane], now_seconds: float) -> TargetConnection | None:
        """An idle connection of the first of `lanes` that has one, no longer in the pool, or None.

        Never one on which something came since its last exchange, though the loop has not looked: an answer that nobody
        asked for would be the next exchange's, and an end would lose what cannot be sent again. `now_seconds`: the
        loop's time.
        """
        for lane in lanes:
            while lane:
                connection = lane.pop()
                if (
                    self._expiry.pop(connection) > now_seconds
                    and not connection.has_unread()
                    and not connection.transport.is_closing()
                ):
                    return connection
                connection.abort()
        return None

    async def open(self, scheme: str, addresses: Sequence[str], port: int, server_name: str) -> TargetConnection:
        """A new connection to the first of `addresses` (checked by the caller) that answers.

        One that said nothing at all just now is tried last: else each new connection would wait for it again.

        Raises UPSTREAM_UNREACHABLE, NothingSentError.
        """
        refusal = ApiError(Code.UPSTREAM_UNREACHABLE, "the target has no address")
        tried = addresses[:ADDRESSES_MAX]
        if self._silent:
            now = self.loop.time()
            tried = sorted(tried, key=lambda address: self._silent.get(address, 0.0) > now)
        for address in tried:
            key = TargetKey(scheme, address, port, server_name)
            try:
                return await asyncio.wait_for(self._connect(key), CONNECT_TIMEOUT_SECONDS / len(tried))
            except ssl.SSLError:  # not a matter of the address
                raise ApiError(Code.UPSTREAM_UNREACHABLE, "the target's TLS handshake failed") from None
            except OSError as fault:  # asyncio's TimeoutError is one
                if fault.errno in OURS:
                    raise NothingSentError from None
                if isinstance(fault, TimeoutError) and len(tried) > 1:
                    self._note_silent(address)
                refusal = ApiError(Code.UPSTREAM_UNREACHABLE, "the target cannot be reached")
        raise refusal

    def _note_silent(self, address: str) -> None:
        now = self.loop.time()
        self._silent = {one: until for one, until in self._silent.items() if until > now}
        self._silent[address] = now + SILENT_SECONDS

    def renew(self) -> None:
        """Drop what waits for use: the next exchanges are on new connections."""
        for connection in list(self._expiry):
            self._evict(connection)

    def close(self) -> None:
        """Drop every connection; what is in flight fails."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.drop()

    async def _connect(self, key: TargetKey) -> TargetConnection:
        if len(self._open) + self._opening >= self._places and self._expiry:
            self._evict(next(iter(self._expiry)))  # whose place this one has
        self._time = self.loop.time
        connection = TargetConnection(key, self.lane(key), self._keep, self._forget)
        self._opening += 1
        try:
            if key.scheme == "https":
                if self._tls is None:  # reads the system's trust store, and holds the loop meanwhile: 20 to 40 ms, once
                    self._tls = target_tls_context()
                await connect_secure(self._tls, key.server_name, connection, key.address, key.port)
            else:
                await self.loop.create_connection(lambda: connection, key.address, key.port)
        finally:
            self._opening -= 1
        if self._closed or connection.is_closing():
            connection.abort()
            raise ConnectionResetError
        self._open.add(connection)
        return connection

    def _keep(self, connection: TargetConnection, promised_seconds: int | None) -> None:
        """Take back a connection that can carry another exchange."""
        seconds = self._idle_seconds
        if promised_seconds is not None:
            seconds = min(seconds, promised_seconds - 1)
        if self._closed or seconds <= 0:
            connection.abort()
            return
        lane, expiry = connection.lane, self._expiry
        if len(expiry) >= self._idle_anywhere:
            self._make_room(lane)
        lane.append(connection)
        expiry[connection] = self._time() + seconds
        if self._sweep is None:
            self._sweep = self.loop.call_later(1.0, self._expire)

    def _make_room(self, lane: Lane) -> None:
        if len(lane) >= self._idle_per_target:
            self._evict(lane[0])
        if len(self._expiry) >= self._idle_in_all:
            self._evict(next(iter(self._expiry)))

    def _forget(self, connection: TargetConnection) -> None:
        self._open.discard(connection)
        if connection in self._expiry:
            self._remove(connection)

    def _evict(self, connection: TargetConnection) -> None:
        self._remove(connection)
        connection.abort()

    def _remove(self, connection: TargetConnection) -> None:
        del self._expiry[connection]
        connection.lane.remove(connection)

    def _expire(self) -> None:
        now = self.loop.time()
        for connection in [idle for idle, expires in self._expiry.items() if expires <= now]:
            self._evict(connection)
        self._sweep = self.loop.call_later(1.0, self._expire) if self._expiry else None
