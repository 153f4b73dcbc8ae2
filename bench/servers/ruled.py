"""What no paid call on a held credit goes without, in as few calls of Python as there can be. Prints {"url": ...}.

    ruled PORT FILE               to 127.0.0.1:PORT, behind the program's ledger in FILE
    ruled PORT CERTIFICATE FILE   the same to a target behind TLS that shows this certificate

As `bare ledger` and `bare secure`, and besides: the head is known by its bytes, its gate is the one that it was judged
for, its caller owes nothing; the call has an id, a deadline, and a connection whose time is not over; the target gets a
head of the gateway's and its own is known by its bytes; the answer carries a receipt; what was served is counted, with
its latency, by gate and hour and once more for the program's metrics, and logged while the log has room. Where a
call could be another case (it is not alone on its connection, its server stops, its caller is slow, gone or elsewhere,
its connection is not what was promised, its answer is of another form), it is asked whether it is, and no more. What
the calls of a commit or of a turn have in common is done once for them, as the program does it. All of it is in the
methods that the loop and the ledger call, in objects that are made once for each connection. What is missing: what
the other cases do, and the program's layers. One read is taken for one message, and each head has bought a purchase of
its own, as the program's callers have.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import Counter, defaultdict, deque
from math import inf
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from bench.held import PURCHASES, filled
from bench.servers.bookkeeping import Held, spent_once
from bench.servers.listening import serve_protocol
from tollkeeper.api import clock_ms, new_request_id_at
from tollkeeper.core.statistics import HOUR_MS, Outcome, add_latencies
from tollkeeper.edge.secure import connect_secure
from tollkeeper.edge.unread import Unread
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
_HEAD_START: Final = b"GET /small HTTP/1.1\r\nhost: localhost\r\nx-a: %0300d\r\nx-request-id: "
_HEAD_END: Final = b"\r\nx-forwarded-for: 127.0.0.1\r\n\r\n"
_RECEIPT_START: Final = b"x-b: %0620d\r\nx-credits-remaining: "
_RECEIPT_END: Final = b"\r\nx-credits-total: 100000000\r\nx-request-id: "
_TOGETHER_MAX: Final = 64
_IDLE_SECONDS: Final = 4
_DEADLINE_SECONDS: Final = 600
_LOOK_SECONDS: Final = 300  # at deadlines
_IDLE_MAX: Final = 256
_JOINED_MAX: Final = 65536
_LOGGED_MAX: Final = 500
_LOGGED_AT_ONCE: Final = 50
_LOG_SECONDS: Final = 0.05


class Kept:
    """What a head is known for: its own purchase, and lines that are the same for each of its calls."""

    __slots__ = ("head_end", "head_start", "held", "is_again", "mark", "peer", "receipt_end", "receipt_start", "slug")

    def __init__(self, head: bytes, held: Held, peer: str) -> None:
        self.slug, self.is_again, self.mark, self.peer, self.held = "slug", True, hash(head), peer, held
        number = held.purchase.number
        self.head_start, self.receipt_start = _HEAD_START % number, _RECEIPT_START % number
        # Copies, as each of the program's has its own.
        self.head_end, self.receipt_end = bytes(bytearray(_HEAD_END)), bytes(bytearray(_RECEIPT_END))


class Answered(NamedTuple):
    """What a target's head is known for."""

    start: bytes
    whole_bytes: int
    lines: bytes  # to callers, with the first one
    status: int
    promised_seconds: int | None
    is_joinable: bool
    has_date: bool
    start_bytes: int


class Place:
    """Everything that calls share."""

    def __init__(
        self, database: Database, shelf: Shelf, bought: list[Held], port: int, tls: ssl.SSLContext | None
    ) -> None:
        self.ledger, self.gate_id = shelf.purchases.ledger, shelf.gate.id
        self.statistics = Statistics(database)
        self.loop = asyncio.get_running_loop()
        self.bought, self.port, self.tls = bought, port, tls
        self.known: dict[bytes, Kept] = {}
        self.latest: Answered | None = None
        self.gates, self.gate = {"slug": shelf}, shelf
        self.owing: set[str] = set()
        self.good: set[int] = set()
        self.is_draining = self.is_closed = False
        self.due: dict[Caller, float] = {}
        self.looks_at = self.loop.time() + _LOOK_SECONDS
        self.resolved_until = inf
        self.unread = Unread()
        self.answered: list[Caller] = []
        self.idle: deque[Target] = deque()
        self.expiry: dict[Target, float] = {}
        self.hour_ms = clock_ms() // HOUR_MS * HOUR_MS
        self.latencies: defaultdict[int, int] = defaultdict(int)
        self.logged: list[LoggedRequest] = []
        self.has_room = True
        self.statuses: Counter[int] = Counter()
        self.took: Counter[int] = Counter()
        self.sum_us = 0

    def send_answers(self) -> None:
        """To whomever a turn of the loop brought one; and it is counted."""
        calls, self.answered = self.answered, []
        answers: list[tuple[Caller, bytes]] = []
        for call in calls:
            if call.is_over or call.transport.is_closing():
                continue
            known, body = call.answer
            kept = call.kept
            call.duration_us = (perf_counter_ns() - call.started_ns) // 1000
            call.status = known.status
            parts = (
                known.lines,
                kept.receipt_start,
                b"%d" % call.left,
                kept.receipt_end,
                call.request_id.encode(),
                b"\r\n\r\n" if call.is_kept else b"\r\nconnection: close\r\n\r\n",
                body,
            )
            answers.append((call, b"".join(parts)))
        for call, answer in answers:
            call.transport.write(answer)
        calls = [call for call, _ in answers]
        if calls:
            self._count(calls)
        for call in calls:
            call.is_over = True
            call.unanswered = 0
            call.head_seconds = 0.0
            if call.lent_bytes or call.is_paused or call.waiting or call.refusal:
                raise RuntimeError("one call after the other")

    def _count(self, calls: list[Caller]) -> None:
        now_ms = clock_ms()
        if {call.status for call in calls} != {200} or not self.hour_ms <= now_ms < self.hour_ms + HOUR_MS:
            raise RuntimeError("all answers are alike, and few measure at the full hour")
        self.ledger.end_all([call.request_id for call in calls], 200)
        took = [call.duration_us for call in calls]
        add_latencies(self.latencies, took)
        self.statuses[200] += len(calls)
        self.took.update(map(int.bit_length, took))
        self.sum_us += sum(took)
        for call in calls:
            if not self.has_room:
                break
            ended_ms, purchase = call.arrived_ms + call.duration_us // 1000, call.held.purchase
            row = LoggedRequest(
                call.request_id,
                self.gate_id,
                ended_ms,
                "GET",
                call.status,
                Outcome.SERVED,
                None,
                call.duration_us,
                purchase.id,
            )
            self.logged.append(row)
            self.has_room = len(self.logged) < _LOGGED_MAX

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
        self.answer: tuple[Answered, bytes]
        self.peer = ""
        self.request_id, self.left, self.started_ns, self.arrived_ms = "", 0, 0, 0
        self.status = self.duration_us = 0
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
        kept = place.known.get(data)
        if kept is None:
            kept = place.known[data] = Kept(data, place.bought[len(place.known)], self.peer)
        if self.unanswered or place.is_draining or self.is_full or self.transport.is_closing() or not kept.is_again:
            raise RuntimeError("one call after the other")
        self.head_seconds = self.body_seconds = 0.0
        self.chatter_bytes = 0
        self.unanswered = 1
        self.is_accepted, self.is_over = True, False
        if place.gates.get(kept.slug) is not place.gate or place.owing:
            raise RuntimeError("nobody changes the gate or owes anything")
        self.kept, self.held = kept, kept.held
        self.arrived_ms = now_ms = clock_ms()
        self.started_ns = perf_counter_ns()
        self.request_id = new_request_id_at(now_ms)
        place.ledger.spend_held(self, now_ms)

    @staticmethod
    def spent_together(calls: Sequence[Caller], lefts: Sequence[int]) -> None:
        """See `storage.ledger.HeldCall`."""
        place = calls[0]._place  # noqa: SLF001 - its own
        loop, idle, expiry, due, good = place.loop, place.idle, place.expiry, place.due, place.good
        for at in range(0, len(calls), _TOGETHER_MAX):
            now = loop.time()
            due_seconds = now + _DEADLINE_SECONDS
            unread = place.unread.look()
            if now >= place.resolved_until or due_seconds < place.looks_at:
                raise RuntimeError("nothing changes so soon")
            requests: list[tuple[Target, bytes]] = []
            for call, left in zip(calls[at : at + _TOGETHER_MAX], lefts[at:], strict=False):
                kept = call.kept
                if call.is_over or call.peer is not kept.peer:
                    raise RuntimeError("nobody leaves, and all callers are at one place")
                call.left = left
                if kept.mark not in good:
                    good.add(kept.mark)
                head = b"".join((kept.head_start, call.request_id.encode(), kept.head_end))
                due[call] = due_seconds
                while idle:
                    target = idle.pop()
                    if (
                        expiry.pop(target) > now
                        and target.socket_number not in unread
                        and not target.transport.is_closing()
                    ):
                        target.caller = call
                        target.is_sent, target.is_heard = True, False
                        requests.append((target, head))
                        break
                    target.transport.abort()
                else:
                    task = loop.create_task(place.open(call, head))
                    task.add_done_callback(asyncio.Task.result)
            for target, head in requests:
                target.write(head)

    def spent_otherwise(self, result: SpendResult | ApiError) -> None:
        """See `storage.ledger.HeldCall`."""
        raise TypeError("every purchase has credits", result)


class Target(asyncio.Protocol):
    """One connection to the target."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.caller: Caller | None = None
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]
        self.is_sent = True
        self.is_parsed = self.is_heard = self.is_paused = False
        self.has_served = False
        self.socket_number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write
        self.socket_number = transport.get_extra_info("socket").fileno()
        self._place.unread.watch(self.socket_number)

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """See `SecureSpeaker`."""
        self.write = write

    def rest(self) -> None:
        """See `secure.SecureSpeaker`; here nobody else waits."""

    def in_record(self, *, is_begun: bool) -> None:
        """See `secure.SecureSpeaker`; here nobody sends what was not asked for."""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        place, caller = self._place, self.caller
        if caller is None:
            self.transport.abort()
            return
        known = place.latest
        if known is None or len(data) != known.whole_bytes or not data.startswith(known.start):
            known = place.latest = _answered(data)
        if self.is_parsed or not self.is_sent or self.is_paused or known.promised_seconds is not None:
            raise RuntimeError("one read is one message, and nothing is promised")
        self.caller = None
        self.has_served = True
        idle, expiry = place.idle, place.expiry
        if place.is_closed or len(expiry) >= _IDLE_MAX or self.transport.get_write_buffer_size():
            raise RuntimeError("there are as many connections as callers")
        idle.append(self)
        expiry[self] = place.loop.time() + _IDLE_SECONDS
        if not known.is_joinable or known.status >= 400 or caller.is_over or not known.has_date:
            raise RuntimeError("all answers are alike")
        place.due.pop(caller, None)
        caller.answer = known, data[known.start_bytes :]
        if not place.answered:
            place.loop.call_soon(place.send_answers)
        place.answered.append(caller)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._place.unread.forget(self.socket_number)
        if self._place.expiry.pop(self, None) is not None:
            self._place.idle.remove(self)


def _answered(data: bytes) -> Answered:
    """What a target's answer says, read once."""
    size_bytes = data.find(b"\r\n\r\n") + 4
    start = data[:size_bytes]
    body_bytes = len(data) - size_bytes
    lines = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\ncontent-length: %d\r\n" % body_bytes
    is_joinable = b"\r\nContent-Length: " in start and body_bytes <= _JOINED_MAX
    return Answered(start, len(data), lines, int(start[9:12]), None, is_joinable, b"\r\nDate: " in start, size_bytes)


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
