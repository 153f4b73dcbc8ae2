"""A TCP proxy before a node, or before a hub, that knows bytes and no HTTP: it delays, cuts, doubles, swallows them.

It strikes a connection as the bytes of a chosen call come by, and that connection stays struck until it ends; others
pass as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from tests.faults.linking import Link, linking

LATENCY_SECONDS: Final = 0.04
# How long hubs of these tests wait for their node, and what is longer.
NODE_TIMEOUT_SECONDS: Final = 1.0
TOO_LATE_SECONDS: Final = 1.3
_QUIET_SECONDS: Final = 0.05
# What is called in what comes by: a node's method, or the first part of a hub's path.
OF_NODE: Final = re.compile(rb'"method":"(\w+)"')
OF_HUB: Final = re.compile(rb"^(?:GET|POST) (/[^/ ?]+)")


class Fault(Enum):
    """What becomes of a connection from the request on that was chosen."""

    LATENCY = auto()  # every piece comes late, in both directions
    CUT_REQUEST = auto()  # it breaks when some bytes have passed; the node cannot have understood
    CUT_ANSWER = auto()  # the request passes; it breaks when some bytes of the answer have passed
    BLACKHOLE = auto()  # nothing passes any more, and nobody is told
    SILENCE = auto()  # the request passes; nothing comes back, and nobody is told
    TOO_LATE = auto()  # the answer comes when the hub has given up
    TWICE = auto()  # every answer comes twice
    ASKED_TWICE = auto()  # the node is asked twice, and answers twice
    KILL_BEFORE = auto()  # the hub dies; the node never sees the request
    KILL_AFTER = auto()  # the hub dies as the node answers


@dataclass
class TcpChaos:
    """`strike` chooses; `struck` counts how often it came to that. `methods`: what was called."""

    url: str = ""
    struck: int = 0
    methods: set[str] = field(default_factory=set)
    kill: Callable[[], object] = lambda: None  # what kills the hub
    calls: re.Pattern[bytes] = OF_NODE
    struck_links: set[Link] = field(default_factory=set)
    asking: int = 0  # connections on which somebody may still ask
    _wanted: str = ""
    _fault: Fault = Fault.LATENCY
    _size_bytes: int = 0
    _left: int = 0

    def strike(self, method: str, fault: Fault, *, after_bytes: int = 0, times: int = 1) -> None:
        """Strike the next connections on which that method is called; cuts come after so many bytes."""
        self._wanted, self._fault, self._size_bytes, self._left = method, fault, after_bytes, times
        self.struck = 0

    def calm(self) -> None:
        """Strike no further connection; what is struck stays so."""
        self._left = 0

    def heal(self) -> None:
        """Connections that were struck end: what is left in them is the answer to nothing."""
        while self.struck_links:
            self.struck_links.pop().end()

    def judge(self, sent: bytes) -> Fault | None:
        """Whether these bytes from the hub are struck."""
        called = {name.decode() for name in self.calls.findall(sent)}
        self.methods |= called
        if self._left == 0 or self._wanted not in called:
            return None
        self._left -= 1
        self.struck += 1
        return self._fault

    @property
    def size_bytes(self) -> int:
        """How many bytes pass before a cut."""
        return self._size_bytes


class _Link(Link):
    """One connection of the hub and the one to the node that belongs to it."""

    def __init__(self, chaos: TcpChaos, hub: asyncio.StreamWriter, node: asyncio.StreamWriter) -> None:
        super().__init__(hub, node)
        self._chaos = chaos
        self._fault: Fault | None = None

    async def carry_requests(self, source: asyncio.StreamReader) -> None:
        self._chaos.asking += 1
        try:
            await self._carry_requests(source)
        finally:
            self._chaos.asking -= 1

    async def _carry_requests(self, source: asyncio.StreamReader) -> None:
        while sent := await source.read(65536):
            struck = self._chaos.judge(sent)
            if struck is not None:
                self._fault = struck
                self._chaos.struck_links.add(self)
            if self._fault is Fault.BLACKHOLE:
                continue
            if struck is Fault.KILL_BEFORE:
                self._chaos.kill()
                return
            if struck is Fault.ASKED_TWICE:
                self._asked.write(sent)
            if struck is Fault.CUT_REQUEST:
                self._asked.write(sent[: min(self._chaos.size_bytes, len(sent) - 1)])
                await self._asked.drain()
                return
            if self._fault is Fault.LATENCY:
                await asyncio.sleep(LATENCY_SECONDS)
            self._asked.write(sent)
            await self._asked.drain()

    async def carry_answers(self, source: asyncio.StreamReader) -> None:
        while answered := await source.read(65536):
            fault = self._fault
            if fault in {Fault.SILENCE, Fault.BLACKHOLE}:
                continue
            if fault is Fault.CUT_ANSWER:
                self._asker.write(answered[: min(self._chaos.size_bytes, len(answered) - 1)])
                await self._asker.drain()
                return
            if fault is Fault.KILL_AFTER:
                self._chaos.kill()
                return
            if fault is Fault.TOO_LATE:
                await asyncio.sleep(TOO_LATE_SECONDS)
            if fault is Fault.LATENCY:
                await asyncio.sleep(LATENCY_SECONDS)
            if fault is Fault.TWICE:
                answered += await _rest(source)
                self._asker.write(answered)
                await asyncio.sleep(_QUIET_SECONDS)
            self._asker.write(answered)
            await self._asker.drain()


async def _rest(source: asyncio.StreamReader) -> bytes:
    """What else comes of an answer."""
    rest = b""
    with contextlib.suppress(TimeoutError):
        while more := await asyncio.wait_for(source.read(65536), _QUIET_SECONDS):
            rest += more
    return rest


@asynccontextmanager
async def run_tcp_chaos(node_url: str, calls: re.Pattern[bytes] = OF_NODE) -> AsyncIterator[TcpChaos]:
    """The proxy in front of that node, or of a hub, on a free port."""
    chaos = TcpChaos(calls=calls)
    address = urlsplit(node_url)
    async with linking(
        lambda carry: asyncio.start_server(carry, "127.0.0.1", 0),
        lambda: asyncio.open_connection(address.hostname, address.port),
        partial(_Link, chaos),
    ) as server:
        host, port = server.sockets[0].getsockname()[:2]
        chaos.url = f"http://{host}:{port}/"
        yield chaos
