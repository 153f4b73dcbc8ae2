"""What no paid call on a held credit goes without, in as few calls of Python as there can be. Prints {"url": ...}.

    ruled PORT FILE               to 127.0.0.1:PORT, behind the program's ledger in FILE
    ruled PORT CERTIFICATE FILE   the same to a target behind TLS that shows this certificate

As `bare ledger` and `bare secure`, and besides: the head is known by its bytes, its gate is the one that it was judged
for, its caller owes nothing; the call has an id, a deadline, and a connection whose time is not over; the target gets a
head of the gateway's and its own is known by its bytes; the answer carries a receipt; what was served is counted, with
its latency. All of it is in the three methods that the loop and the ledger call. What is missing: every other case, a
row of the log, and what the program's layers cost. One read is taken for one message.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, cast

from bench.held import PURCHASES, filled
from bench.servers.bookkeeping import spent_once
from bench.servers.listening import serve_protocol
from tollkeeper.api import clock_ms, new_request_id_at
from tollkeeper.core.statistics import latency_bucket
from tollkeeper.edge.call import http_date
from tollkeeper.edge.secure import connect_secure
from tollkeeper.serving.http_server import run, until_signalled
from tollkeeper.storage.opening import open_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.held import Shelf
    from tollkeeper.core.errors import ApiError
    from tollkeeper.storage.purchase_rows import Purchase, SpendResult

# As long as the gateway's own with a payment of 900 bytes.
_HEAD_START: Final = b"GET /small HTTP/1.1\r\nhost: localhost\r\n" + b"x-a: " + b"x" * 300 + b"\r\nx-request-id: "
_HEAD_END: Final = b"\r\nx-forwarded-for: 127.0.0.1\r\n\r\n"
_LINES: Final = b"x-b: " + b"x" * 650 + b"\r\n"
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\n%bx-credits-remaining: %d\r\nx-credits-total: %d\r\ncontent-length: %d\r\n%bx-request-id: %b"
    b"\r\n\r\n%b"
)
_IDLE_SECONDS: Final = 4
_DEADLINE_SECONDS: Final = 600


class Kept:
    """What a head is known for."""

    __slots__ = ("slug",)

    def __init__(self) -> None:
        self.slug = "slug"


class Place:
    """Everything that calls share."""

    def __init__(self, shelf: Shelf, bought: list[Purchase], port: int, tls: ssl.SSLContext | None) -> None:
        self.ledger, self.version = shelf.purchases.ledger, shelf.gate.version
        self.loop = asyncio.get_running_loop()
        self.bought, self.port, self.tls = bought, port, tls
        self.random = random.Random(1)  # noqa: S311 - which purchases
        self.known: dict[bytes, Kept] = {}
        self.answers: dict[bytes, int] = {}
        self.gates, self.gate = {"slug": shelf}, shelf
        self.owing: set[str] = set()
        self.due: dict[Caller, float] = {}
        self.idle: deque[Target] = deque()
        self.expiry: dict[Target, float] = {}
        self.latencies: defaultdict[int, int] = defaultdict(int)

    async def open(self, caller: Caller, head: bytes) -> None:
        """To the target, by a connection that is not there yet."""
        target = Target(self)
        if self.tls is None:
            await self.loop.create_connection(lambda: target, "localhost", self.port)
        else:
            await connect_secure(self.tls, "localhost", target, "localhost", self.port)
        target.caller = caller
        target.write(head)


class Caller(asyncio.Protocol):
    """One caller's connection, and the one call that is on it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.transport: asyncio.Transport
        self.purchase: Purchase
        self.call_id, self.left, self.started_ns = "", 0, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        place = self._place
        kept = place.known.get(data)
        if kept is None:
            kept = place.known[data] = Kept()
        if place.gates.get(kept.slug) is not place.gate or place.owing:
            raise RuntimeError("nobody changes the gate or owes anything")
        now_ms = clock_ms()
        self.started_ns = time.perf_counter_ns()
        self.call_id = new_request_id_at(now_ms)
        # All callers send the same bytes here; of the gateway's each has a purchase of its own.
        self.purchase = place.random.choice(place.bought)
        place.ledger.spend_held(self.purchase, place.version, self.call_id, now_ms, self.spent)

    def spent(self, result: int | SpendResult | ApiError) -> None:
        """What the ledger calls."""
        place = self._place
        if not isinstance(result, int):
            raise TypeError("every purchase has credits")
        self.left = result
        head = b"%b%b%b" % (_HEAD_START, self.call_id.encode(), _HEAD_END)
        now = place.loop.time()
        place.due[self] = now + _DEADLINE_SECONDS
        idle = place.idle
        while idle:
            target = idle.pop()
            if place.expiry.pop(target) > now and not target.transport.is_closing():
                target.caller = self
                target.write(head)
                return
            target.transport.abort()
        task = place.loop.create_task(place.open(self, head))
        task.add_done_callback(asyncio.Task.result)


class Target(asyncio.Protocol):
    """One connection to the target."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.caller: Caller | None = None
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """See `SecureSpeaker`."""
        self.write = write

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        place, caller = self._place, self.caller
        if caller is None:
            self.transport.abort()
            return
        self.caller = None
        head_bytes = data.find(b"\r\n\r\n") + 4
        body_bytes = place.answers.get(data[:head_bytes])
        if body_bytes is None:
            body_bytes = place.answers[data[:head_bytes]] = len(data) - head_bytes
        if body_bytes != len(data) - head_bytes or self.transport.get_write_buffer_size():
            raise RuntimeError("one read is one message")
        place.idle.append(self)
        place.expiry[self] = place.loop.time() + _IDLE_SECONDS
        place.due.pop(caller, None)
        place.ledger.end(caller.call_id, 200)
        place.latencies[latency_bucket((time.perf_counter_ns() - caller.started_ns) // 1000)] += 1
        if caller.transport.is_closing():
            return
        caller.transport.write(
            _ANSWER
            % (
                _LINES,
                caller.left,
                caller.purchase.granted,
                body_bytes,
                http_date(int(time.time())),
                caller.call_id.encode(),
                data[head_bytes:],
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        if self._place.expiry.pop(self, None) is not None:
            self._place.idle.remove(self)


async def serve(stop: asyncio.Event) -> None:
    """The server, until `stop` is set."""
    port, *certificate, path = sys.argv[1:]
    shelf = await filled(open_database(path))
    bought = [await spent_once(shelf, number) for number in range(PURCHASES)]
    tls = ssl.create_default_context(cafile=certificate[0]) if certificate else None
    place = Place(shelf, bought, int(port), tls)
    await serve_protocol(lambda: Caller(place), stop)


if __name__ == "__main__":
    run(until_signalled(serve))
