"""Resolves a target's host and lets through only addresses that a target may be at (contract 3.4, security A-41).

One refused address refuses the host. The caller connects to an address that was returned here, so that a name which
changes between check and connect changes nothing. The judgement itself is `tollkeeper.core.http.target_addresses`;
which addresses are this machine's own, and how the gateway is reached, is known here.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import urlsplit

from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.http.target_addresses import (
    DEFAULT_PORTS,
    FIELD,
    TargetUrl,
    check_target_url,
    is_target_address,
    not_allowed,
    parse_address,
)
from tollkeeper.edge.shared.nothing_sent import NothingSentError
from tollkeeper.edge.target.dns import Lookups, NotAskedError
from tollkeeper.edge.target.pool import OURS, require_descriptor

Lookup = Callable[[str, int], Awaitable[list[str]]]  # (host, port) -> addresses as text; raises OSError

CACHE_SECONDS: Final = 5.0
LOOKUP_TIMEOUT_SECONDS: Final = 5.0
CACHED_HOSTS_MAX: Final = 1024
# A third of each is one tenant's. Whoever makes gates pays nothing for it, so that what calls need is kept apart.
CALL_THREADS: Final = 96
CHECK_THREADS: Final = 24


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """Place of the gateway itself: host and port of its public URL."""

    host: str
    port: int

    @staticmethod
    def of(public_url: str) -> OwnPlace:
        """The place of a gateway with this URL, an origin."""
        parts = urlsplit(public_url)
        host = parts.hostname or ""
        return OwnPlace(str(parse_address(host) or host), parts.port or DEFAULT_PORTS[parts.scheme])


@dataclass(slots=True)
class Resolver:
    """Resolves hosts under one policy, remembering an answer for a few seconds.

    `allow_private` as in `core.http.target_addresses.is_target_address`; without it nothing is resolved that is the
    gateway's `own` place, or at an address of this machine: what listens there trusts its neighbours. `lookup` and
    `clock` (seconds, monotonic) are for tests. Lookups of one host at one time for one tenant are one lookup, but that
    a call waits for none of `check_target`.
    """

    allow_private: bool
    own: OwnPlace | None = None
    lookup: Lookup | None = None
    clock: Callable[[], float] = time.monotonic
    _cache: dict[str, tuple[float, list[str]]] = field(default_factory=dict)
    _running: dict[tuple[Lookups, str, str], asyncio.Task[list[str]]] = field(default_factory=dict)
    _of_calls: Lookups = field(default_factory=lambda: Lookups("resolve-call", CALL_THREADS))
    _of_checks: Lookups = field(default_factory=lambda: Lookups("resolve-check", CHECK_THREADS))

    def cached(self, host: str) -> list[str] | None:
        """The addresses of `host` if they were checked in the last seconds."""
        entry = self._cache.get(host)
        return entry[1] if entry is not None and self.clock() < entry[0] else None

    def cached_until(self, host: str) -> float:
        """Until when, by `clock`, what is `cached` is; 0 where nothing is."""
        entry = self._cache.get(host)
        return 0.0 if entry is None else entry[0]

    async def resolve(self, host: str, port: int, tenant: str) -> list[str]:
        """Every address of `host`, each one allowed. `tenant`: whose share of the lookups it takes.

        Raises UPSTREAM_BLOCKED if one is not allowed, UPSTREAM_UNREACHABLE if there is none or nobody answers,
        NothingSentError where the tenant's share was taken, or nothing more can be opened.
        """
        self._require_elsewhere(host, port)
        return await self._resolve(self._of_calls, host, port, tenant)

    async def check_target(self, url: str, tenant: str) -> TargetUrl:
        """`url` taken apart and its host resolved, as on create and update by `tenant`.

        Raises INVALID_PARAMETER; NothingSentError as `resolve`, which says nothing of the URL.
        """
        target = check_target_url(url, allow_private=self.allow_private)
        try:
            self._require_elsewhere(target.host, target.port)
            await self._resolve(self._of_checks, target.host, target.port, tenant)
        except NothingSentError:
            raise
        except ApiError as refusal:
            raise invalid(FIELD, f"{FIELD}: {refusal.message}") from None
        return target

    def close(self) -> None:
        """End the lookup threads."""
        self._of_calls.close()
        self._of_checks.close()

    def _require_elsewhere(self, host: str, port: int) -> None:
        """Refuse the gateway's own place. Raises UPSTREAM_BLOCKED."""
        if not self.allow_private and self.own == OwnPlace(host, port):
            raise self._blocked("the target is this gateway itself", None)

    async def _resolve(self, lookups: Lookups, host: str, port: int, tenant: str) -> list[str]:
        known = self.cached(host)
        if known is not None:
            return known
        asked = lookups, host, tenant
        task = self._running.get(asked)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(lookups, host, port, tenant))
            self._running[asked] = task
            task.add_done_callback(lambda done: self._finished(asked, done))
        # One waiter that gives up must not end the lookup of the others.
        return await asyncio.shield(task)

    def _finished(self, asked: tuple[Lookups, str, str], task: asyncio.Task[list[str]]) -> None:
        del self._running[asked]
        if not task.cancelled() and task.exception() is None:
            host = asked[1]
            if len(self._cache) >= CACHED_HOSTS_MAX:
                self._cache.pop(next(iter(self._cache)))
            self._cache.pop(host, None)
            self._cache[host] = (self.clock() + CACHE_SECONDS, task.result())

    async def _look_up(self, lookups: Lookups, host: str, port: int, tenant: str) -> list[str]:
        texts = [host] if parse_address(host) is not None else await self._ask(lookups, host, port, tenant)
        for text in texts:
            address = parse_address(text)
            if address is None or not is_target_address(address, allow_private=self.allow_private):
                raise self._blocked("the target's address is not a public one", address)
            if not self.allow_private and is_of_this_machine(text):
                raise self._blocked("the target's address is one of this machine's own", address)
        if not texts:
            raise _unresolved()
        return texts

    def _blocked(self, why: str, address: IPv4Address | IPv6Address | None) -> ApiError:
        return ApiError(Code.UPSTREAM_BLOCKED, not_allowed(why, address, allow_private=self.allow_private))

    async def _ask(self, lookups: Lookups, host: str, port: int, tenant: str) -> list[str]:
        own = self.lookup
        asking = lookups.addresses(host, port, tenant) if own is None else own(host, port)
        try:
            return await asyncio.wait_for(asking, LOOKUP_TIMEOUT_SECONDS)
        except (OSError, UnicodeError):  # asyncio's TimeoutError is an OSError
            require_descriptor()
            raise _unresolved() from None
        except NotAskedError:
            raise NothingSentError("the target's host name cannot be resolved now; send the same again") from None


def is_of_this_machine(address: str) -> bool:
    """Return True if `address` is one of this machine's own. Asks the routing table, sends nothing.

    Raises: NothingSentError if the table cannot be asked.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as unsent:
            unsent.connect((address, 9))
            # What is sent to an own address is sent from it.
            return parse_address(str(unsent.getsockname()[0])) == parse_address(address)
    except OSError as fault:
        if fault.errno in OURS:
            raise NothingSentError from None
        return False  # there is no way to it, so it is not here


def _unresolved() -> ApiError:
    return ApiError(Code.UPSTREAM_UNREACHABLE, "the target's host name cannot be resolved")
