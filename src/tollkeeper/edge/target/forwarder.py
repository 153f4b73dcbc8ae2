"""The way to every target: what all forwarded calls share, and how one is begun (spec 7, 8; contract 4.5, 4.7).

`relay` hands the whole answer over, `stream` hands it out as it comes; both go by callbacks. Connections, lookups of
names and room for answers are shared between tenants (`core.shares`), so that a target that hangs, or callers who do
not take their answers, hold up their own tenant only (A-58). Knows nothing of payments.
Refusals: UPSTREAM_BLOCKED, UPSTREAM_UNREACHABLE, UPSTREAM_INVALID, UPSTREAM_TOO_LARGE, UPSTREAM_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import structlog

from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.core.shares import Shares
from tollkeeper.edge.server.crowds import Crowding
from tollkeeper.edge.shared.deadlines import Deadlines
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.connection import Lane, TargetConnection, TargetKey
from tollkeeper.edge.target.pool import TargetPool
from tollkeeper.edge.target.relay import AnswerOwner, ForwardLimits, Relay, RelayRequest
from tollkeeper.edge.target.spool import SpoolRoom
from tollkeeper.edge.target.stream import StreamedRelay, StreamOwner

WAYS_MAX: Final = 1024
DEFAULT_LIMITS: Final = ForwardLimits()

log = structlog.get_logger("tollkeeper.edge")


@dataclass(slots=True)
class Way:
    """Place of a target, and the lanes of idle connections to the addresses that its host has until `until`."""

    scheme: str
    host: str
    port: int
    addresses: list[str] | None = None
    lanes: tuple[Lane, ...] = ()
    until: float = 0.0  # by the resolver's clock


class Forwarder:
    """The way to every target: resolver, connections, spool, deadlines. One per process and event loop."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        tls: ssl.SSLContext | None = None,
        spool_folder: Path | None = None,
        places: int = sys.maxsize,
    ) -> None:
        """`places`: how many calls may have a connection to their target, or wait for one, in all."""
        self.resolver = resolver
        self.places = Shares(places)
        self.crowding = Crowding()
        self.pool = TargetPool(tls, places=places)
        self.room = SpoolRoom(spool_folder)
        self.deadlines = Deadlines()
        self._ways: dict[tuple[str, str, int], Way] = {}

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all its calls. Kept, because Python asks the system for its process id to find it again."""
        return asyncio.get_running_loop()

    def relay(self, request: RelayRequest, owner: AnswerOwner, *, limits: ForwardLimits = DEFAULT_LIMITS) -> Relay:
        """A call on its way to its target, not yet started; `owner` gets the answer."""
        return Relay(self, request, owner, limits)

    def stream(
        self, request: RelayRequest, owner: StreamOwner, *, limits: ForwardLimits = DEFAULT_LIMITS
    ) -> StreamedRelay:
        """Forward as `relay` does; `owner` gets the answer as it comes."""
        return StreamedRelay(self, request, owner, limits)

    def close(self) -> None:
        """Drop all connections; whoever still waits for a target is told UNAVAILABLE."""
        self.deadlines.close()
        self.pool.close()
        self.resolver.close()
        self.room.close()

    def kept(self, target: TargetUrl) -> TargetConnection | None:
        """Return a kept connection to the target if one is idle, without waiting."""
        way = self._ways.get((target.scheme, target.host, target.port)) or self._way(target)
        if self.resolver.clock() < way.until:
            return self.pool.take(way.lanes, self.loop.time())
        addresses = self.resolver.cached(way.host)
        return None if addresses is None else self._kept(way, addresses)

    def _way(self, target: TargetUrl) -> Way:
        place = target.scheme, target.host, target.port
        way = self._ways.get(place)
        if way is None:
            if len(self._ways) >= WAYS_MAX:
                self._ways.clear()
            way = self._ways[place] = Way(*place)
        return way

    async def connect(self, target: TargetUrl, tenant: str, *, fresh: bool) -> TargetConnection:
        """Connect to the target; take a kept connection unless it must be `fresh`. Raises UPSTREAM_*.

        Waits for the lookup of an unknown name, on a thread, and for a new connection: 5 and 10 s at most.
        """
        addresses = await self.resolver.resolve(target.host, target.port, tenant)
        kept = None if fresh else self._kept(self._way(target), addresses)
        return kept or await self.pool.open(target.scheme, addresses, target.port, target.host)

    def _kept(self, way: Way, addresses: list[str]) -> TargetConnection | None:
        if way.addresses is not addresses:
            keys = (TargetKey(way.scheme, address, way.port, way.host) for address in addresses)
            way.addresses, way.lanes = addresses, tuple(self.pool.lane(key) for key in keys)
        way.until = self.resolver.cached_until(way.host)
        return self.pool.take(way.lanes, self.loop.time())
