"""What no paid call on a held credit goes without, in as few calls of Python as there can be. Prints {"url": ...}.

    ruled PORT FILE               to 127.0.0.1:PORT, behind the program's ledger in FILE
    ruled PORT CERTIFICATE FILE   the same to a target behind TLS that shows this certificate

As `bare ledger` and `bare secure`, and besides: the head is known by its bytes, its gate is the one that it was judged
for, its caller owes nothing; the call has an id, a deadline, and a connection whose time is not over; the target gets a
head of the gateway's and its own is known by its bytes; the answer carries a receipt; what was served is counted, with
its latency, by gate and hour and once more for the program's metrics, and logged while the log has room. Where a
call could be another case (it is not alone on its connection, its server stops, its caller is slow, gone or elsewhere,
its connection is not what was promised, its answer is of another form), it is asked whether it is, and no more. All of
it is in the three methods that the loop and the ledger call, in objects that are made once for each connection. What is
missing: what the other cases do, and the program's layers. One read is taken for one message.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
import time
from collections import Counter, defaultdict, deque
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from bench.held import PURCHASES, filled
from bench.servers.bookkeeping import Held, spent_once
from bench.servers.listening import serve_protocol
from tollkeeper.api import clock_ms, new_request_id_at
from tollkeeper.core.statistics import HOUR_MS, Outcome, latency_bucket
from tollkeeper.edge.call import http_date
from tollkeeper.edge.secure import connect_secure
from tollkeeper.serving.http_server import run, until_signalled
from tollkeeper.storage.opening import open_database
from tollkeeper.storage.statistics import Counted, LoggedRequest, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.held import Shelf
    from tollkeeper.core.errors import ApiError
    from tollkeeper.storage.database import Database
    from tollkeeper.storage.purchase_rows import SpendResult

# As long as the gateway's own with a payment of 900 bytes.
_HEAD_START: Final = b"GET /small HTTP/1.1\r\nhost: localhost\r\n" + b"x-a: " + b"x" * 300 + b"\r\nx-request-id: "
_HEAD_END: Final = b"\r\nx-forwarded-for: 127.0.0.1\r\n\r\n"
_LINES: Final = b"x-credits-total: 100000000\r\nx-b: " + b"x" * 620 + b"\r\n"
_IDLE_SECONDS: Final = 4
_DEADLINE_SECONDS: Final = 600
_LOOK_SECONDS: Final = 300  # at deadlines
_IDLE_MAX: Final = 256
_JOINED_MAX: Final = 65536
_LOGGED_MAX: Final = 500
_LOGGED_AT_ONCE: Final = 50
_LOG_SECONDS: Final = 0.05


class Kept:
    """What a head is known for."""

    __slots__ = ("is_again", "mark", "peer", "slug")

    def __init__(self, peer: str) -> None:
        self.slug, self.is_again, self.mark, self.peer = "slug", True, 1, peer


class Answered(NamedTuple):
    """What a target's head is known for."""

    start: bytes
    whole_bytes: int
    lines: bytes  # to callers
    status: int
    promised_seconds: int | None
    has_length: bool
    has_date: bool


class Place:
    """Everything that calls share."""

    def __init__(
        self, database: Database, shelf: Shelf, bought: list[Held], port: int, tls: ssl.SSLContext | None
    ) -> None:
        self.ledger, self.gate_id = shelf.purchases.ledger, shelf.gate.id
        self.statistics = Statistics(database)
        self.loop = asyncio.get_running_loop()
        self.bought, self.port, self.tls = bought, port, tls
        self.random = random.Random(1)  # noqa: S311 - which purchases
        self.known: dict[bytes, Kept] = {}
        self.answers: dict[bytes, Answered] = {}
        self.latest: Answered | None = None
        self.gates, self.gate = {"slug": shelf}, shelf
        self.owing: set[str] = set()
        self.good: set[int] = set()
        self.is_draining = self.is_closed = False
        self.due: dict[Caller, float] = {}
        self.looks_at = self.loop.time() + _LOOK_SECONDS
        self.resolved_until = inf
        self.idle: deque[Target] = deque()
        self.expiry: dict[Target, float] = {}
        self.hour_ms = clock_ms() // HOUR_MS * HOUR_MS
        self.latencies: defaultdict[int, int] = defaultdict(int)
        self.logged: list[LoggedRequest] = []
        self.has_room = True
        self.statuses: Counter[int] = Counter()
        self.took = [0] * 65
        self.sum_us = 0

    async def log(self) -> None:
        """Writes what was counted and logged, as `gateway.traffic` does while more comes than it writes."""
        while True:
            await asyncio.sleep(_LOG_SECONDS)
            rows, self.logged = self.logged[:_LOGGED_AT_ONCE], self.logged[_LOGGED_AT_ONCE:]
            self.has_room = True
            if rows:
                await self.statistics.add(Counted({}, {}, {}, rows, {}))

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
        self.held: Held
        self.kept: Kept
        self.peer = ""
        self.request_id, self.left, self.started_ns, self.arrived_ms = "", 0, 0, 0
        self.head_seconds = self.body_seconds = 0.0
        self.unanswered = self.chatter_bytes = self.lent_bytes = 0
        self.is_deaf = self.in_head = self.in_body = self.is_full = self.is_paused = self.is_accepted = False
        self.is_kept, self.is_over = True, False
        self.waiting: deque[bytes] = deque()
        self.refusal: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)
        self.peer = sys.intern(transport.get_extra_info("peername")[0])

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_full = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_full = False

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        place = self._place
        if self.is_deaf or self.in_head or self.in_body:
            raise RuntimeError("one read is one message")
        held = place.known.get(data)
        if held is None:
            held = place.known[data] = Kept(self.peer)
        if self.unanswered or place.is_draining or self.is_full or self.transport.is_closing() or not held.is_again:
            raise RuntimeError("one call after the other")
        self.head_seconds = self.body_seconds = 0.0
        self.chatter_bytes = 0
        self.unanswered = 1
        self.is_accepted, self.is_over = True, False
        if place.gates.get(held.slug) is not place.gate or place.owing:
            raise RuntimeError("nobody changes the gate or owes anything")
        self.kept = held
        self.arrived_ms = now_ms = clock_ms()
        self.started_ns = time.perf_counter_ns()
        self.request_id = new_request_id_at(now_ms)
        # All callers send the same bytes here; of the gateway's each has a purchase of its own.
        self.held = place.random.choice(place.bought)
        place.ledger.spend_held(self, now_ms)

    @staticmethod
    def spent_together(calls: Sequence[Caller], lefts: Sequence[int]) -> None:
        """See `storage.ledger.HeldCall`."""
        for call, left in zip(calls, lefts, strict=True):
            call.spent(left)

    def spent_otherwise(self, result: SpendResult | ApiError) -> None:
        """See `storage.ledger.HeldCall`."""
        raise TypeError("every purchase has credits", result)

    def spent(self, left: int) -> None:
        """A credit was taken."""
        place, held = self._place, self.kept
        if self.is_over:
            raise RuntimeError("nobody leaves")
        self.left = left
        if held.mark not in place.good:
            place.good.add(held.mark)
        if self.peer is not held.peer:
            raise RuntimeError("all callers are at one place")
        head = b"".join((_HEAD_START, self.request_id.encode(), _HEAD_END))
        now = place.loop.time()
        if now >= place.resolved_until or now + _DEADLINE_SECONDS < place.looks_at:
            raise RuntimeError("nothing changes so soon")
        place.due[self] = now + _DEADLINE_SECONDS
        idle = place.idle
        while idle:
            target = idle.pop()
            if place.expiry.pop(target) > now and not target.transport.is_closing():
                target.caller = self
                target.is_sent, target.is_heard = True, False
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
        self.is_sent = True
        self.is_parsed = self.is_heard = self.is_paused = False
        self.served = 0
        self.promised_seconds: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """See `SecureSpeaker`."""
        self.write = write

    def rest(self) -> None:
        """See `secure.SecureSpeaker`; here nobody else waits."""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        place, caller = self._place, self.caller
        if caller is None:
            self.transport.abort()
            return
        known = place.latest
        if known is None or not data.startswith(known.start):
            known = place.latest = _answered(data)
        if self.is_parsed or not self.is_sent or self.is_paused or len(data) != known.whole_bytes:
            raise RuntimeError("one read is one message")
        self.caller = None
        self.is_heard = True
        self.served += 1
        self.promised_seconds = promised = known.promised_seconds
        seconds = _IDLE_SECONDS if promised is None else min(_IDLE_SECONDS, promised - 1)
        is_full = len(place.idle) >= _IDLE_MAX or len(place.expiry) >= _IDLE_MAX
        if place.is_closed or seconds <= 0 or is_full or self.transport.get_write_buffer_size():
            raise RuntimeError("there are as many connections as callers")
        place.idle.append(self)
        place.expiry[self] = place.loop.time() + seconds
        status, body = known.status, data[len(known.start) :]
        if len(body) > _JOINED_MAX or not known.has_length or status >= 400 or caller.is_over:
            raise RuntimeError("all answers are alike")
        place.due.pop(caller, None)
        duration_us = (time.perf_counter_ns() - caller.started_ns) // 1000
        now_ms = caller.arrived_ms + duration_us // 1000
        call_id, purchase = caller.request_id, caller.held.purchase
        place.ledger.end(call_id, status)
        if not place.hour_ms <= now_ms < place.hour_ms + HOUR_MS:
            raise RuntimeError("few measure at the full hour")
        place.latencies[latency_bucket(duration_us)] += 1
        if place.has_room:
            row = LoggedRequest(
                call_id, place.gate_id, now_ms, "GET", status, Outcome.SERVED, None, duration_us, purchase.id
            )
            place.logged.append(row)
            place.has_room = len(place.logged) < _LOGGED_MAX
        place.statuses[status] += 1
        place.took[duration_us.bit_length()] += 1
        place.sum_us += duration_us
        if caller.transport.is_closing():
            return
        caller.transport.write(
            b"".join(
                (
                    b"HTTP/1.1 200 OK\r\n",
                    known.lines,
                    b"x-credits-remaining: %d\r\n" % caller.left,
                    b"" if known.has_date else http_date(now_ms // 1000),
                    b"x-request-id: ",
                    call_id.encode(),
                    b"\r\n\r\n" if caller.is_kept else b"\r\nconnection: close\r\n\r\n",
                    body,
                )
            )
        )
        caller.is_over = True
        caller.unanswered = 0
        caller.head_seconds = 0.0
        if caller.lent_bytes or caller.is_paused or caller.waiting or caller.refusal:
            raise RuntimeError("one call after the other")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        if self._place.expiry.pop(self, None) is not None:
            self._place.idle.remove(self)


def _answered(data: bytes) -> Answered:
    """What a target's answer says, read once."""
    size_bytes = data.find(b"\r\n\r\n") + 4
    start = data[:size_bytes]
    lines = b"content-length: %d\r\n%b" % (len(data) - size_bytes, _LINES)
    has_length, has_date = b"\r\nContent-Length: " in start, b"\r\nDate: " in start
    return Answered(start, len(data), lines, int(start[9:12]), None, has_length, has_date)


async def serve(stop: asyncio.Event) -> None:
    """The server, until `stop` is set."""
    port, *certificate, path = sys.argv[1:]
    database = open_database(path)
    shelf = await filled(database)
    bought = [Held(await spent_once(shelf, number), shelf) for number in range(PURCHASES)]
    tls = ssl.create_default_context(cafile=certificate[0]) if certificate else None
    place = Place(database, shelf, bought, int(port), tls)
    logging = place.loop.create_task(place.log())
    await serve_protocol(lambda: Caller(place), stop)
    logging.cancel()


if __name__ == "__main__":
    run(until_signalled(serve))
