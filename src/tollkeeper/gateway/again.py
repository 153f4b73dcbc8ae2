"""A call like one before, from its first byte to its answer on the straight way (contract 4.2, 4.6, 4.7; performance).

Most paid calls are the same bytes as one before, at the very same gate, on a connection with nothing else to do; the
ledger has their credit, a kept connection reaches their target, and the answer comes whole with a head that was read
before. `CallAgain` is such a call and all that happens to it: caller, ledger and target talk to this one object, for
each object and each call of Python between them would cost as much as what it does.

    slug -> rate limit -> spend -> forward -> answer with the receipt

The rest was judged for the call before, and `held` says why it holds. Whatever is not on this way goes on as an
`access.PaidCall` at the very step where it left (`rest`), and is decided there. Decides nothing itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms, new_request_id_at
from tollkeeper.core.framing import BodyEnd
from tollkeeper.edge.call import CLOSING_END_OF_HEAD, END_OF_HEAD, InboundCall, http_date
from tollkeeper.edge.forwarding import DEFAULT_LIMITS
from tollkeeper.edge.joined_writes import JOINED_SIZE_BYTES
from tollkeeper.edge.target import Exchange
from tollkeeper.gateway.access import PaidCall
from tollkeeper.gateway.heads import answer_lines, target_head_end
from tollkeeper.storage.purchase_rows import SpendResult

if TYPE_CHECKING:
    from tollkeeper.core.errors import ApiError
    from tollkeeper.core.forwarding import Header
    from tollkeeper.core.framing import ResponseFraming
    from tollkeeper.edge.call import CallHandler, Connection
    from tollkeeper.edge.heads import RequestHead, ResponseHead
    from tollkeeper.edge.relay import Relay
    from tollkeeper.edge.target import TargetConnection, TargetFailure
    from tollkeeper.gateway.held import Held

_ANSWER_SECONDS: Final = DEFAULT_LIMITS.response_seconds


class CallAgain(InboundCall, Exchange):
    """One request whose head spent a credit before, as its `held` has it."""

    rest: PaidCall | None = None  # who goes on with it, once it left the straight way
    left = 0  # credits, from the spend on
    _target: TargetConnection | None = None  # from then on the target's answer is awaited
    _is_body_complete = _has_begun = True

    def __init__(self, connection: Connection, handler: CallHandler, head: RequestHead, body: bytes) -> None:
        self._connection = connection
        self._handler = handler
        self.head = head
        self.held: Held = head.notes.held
        self.method = head.method
        self.arrived_ms = now_ms = clock_ms()
        self.request_id = new_request_id_at(now_ms)
        self.started_ns = time.perf_counter_ns()
        if body:
            self._ahead = [body]

    # 1, 2. Slug: is it the very gate that the head was judged for. Rate limit: nothing is counted here, only asked.

    def begin(self) -> None:
        """See `InboundCall`."""
        held = self.held
        access = held.access
        try:
            if access.gates.kept(held.slug) is not held.opened or (access.limit.owing and access.limit.is_over(self)):
                self.rest = PaidCall(access, self)
                self.rest.arrive()
                return
            spend, version = access.purchases.ledger.spend_held, held.opened.gate.version
            spend(held.purchase, version, self.request_id, self.arrived_ms, self._spent)
        except Exception as fault:  # noqa: BLE001 - whatever it was, this caller must not wait for ever
            self.fail(fault)

    # 4. Spend. Waits for the ledger's commit. 6. Forward. Waits for the target.

    def _spent(self, result: int | SpendResult | ApiError) -> None:
        if self.rest is not None or not isinstance(result, int):
            self._goes_on().spent_again(result)
            return
        try:
            held = self.held
            access = held.access
            self.left = result
            if held.mark not in access.limit.good:
                access.limit.was_good(held.mark)
            forwarder = access.forwarder
            loop, deadlines = forwarder.loop, forwarder.deadlines
            now_seconds = loop.time()
            target = forwarder.kept_on(held.way, now_seconds)
            if target is None:
                self._goes_on().forward_again(self.target_head(), self.left)
                return
            self._target = target
            due_seconds = now_seconds + _ANSWER_SECONDS
            if due_seconds < deadlines.looks_at_seconds:
                deadlines.set(self, due_seconds, loop)
            else:
                deadlines.due[self] = due_seconds
            head = self.target_head()
            target.send(self, self.method, head if self._ahead is None else head + self._ahead[0])
        except Exception as fault:  # noqa: BLE001 - as above
            self._goes_on().broken(fault)

    def target_head(self) -> bytes:
        """The head of the request to the target (contract 4.7)."""
        held = self.held
        end = held.head_end
        if (peer := self._connection.peer) is not held.peer:
            client = held.access.limit.clients.of(peer, self.head.headers)
            end = target_head_end(self, client, self.head.content_length)
        return b"".join((held.head_start, self.request_id.encode(), end))

    # 7. The answer, with the receipt.

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """See `target.Exchange`."""
        status = head.status
        if len(body) > JOINED_SIZE_BYTES or head.framing.end is BodyEnd.NONE:
            self._relayed().on_whole(head, body)
            return
        held = self.held
        access = held.access
        access.forwarder.deadlines.due.pop(self, None)
        try:
            _, has_date, start = head.notes or answer_lines(head)
            duration_us = (time.perf_counter_ns() - self.started_ns) // 1000
            now_ms = self.arrived_ms + duration_us // 1000
            if status < 400:
                access.traffic.served(held.opened.gate.id, self, status, held.purchase.id, now_ms, duration_us)
            else:
                access.traffic.ended(held.opened.gate.id, self, status, held.purchase.id, None, failed=False)
            self.response_started = True
            self.status = status
            self._connection.transport.write(
                b"".join(
                    (
                        start if has_date else start + http_date(now_ms // 1000),
                        held.receipt_start,
                        b"%d" % self.left,
                        held.receipt_end,
                        self.request_id.encode(),
                        END_OF_HEAD if self.keep_alive else CLOSING_END_OF_HEAD,
                        body,
                    )
                )
            )
            self.response_complete = True  # from here as `_complete` has it
            self._ahead = None
            if not self.keep_alive:
                self._connection.end()
            self._tell_ended()
            self._connection.on_response_complete()
        except Exception as fault:  # noqa: BLE001 - as above
            self.fail(fault)

    # Where it leaves the straight way

    def _goes_on(self) -> PaidCall:
        """The call as `access` has it, at the step where it is."""
        if self.rest is None:
            self.rest = PaidCall.of_held(self, self.held)
        return self.rest

    def _relayed(self) -> Relay:
        """The exchange with the target as `relay` has it; its connection tells that one from now on."""
        target = self._target
        assert target is not None  # noqa: S101 - the target was sent the request
        relay = self._goes_on().relay_again(self.target_head(), self.left)
        self.held.access.forwarder.deadlines.hand_over(self, relay)
        relay.take_over(target, self)
        return relay

    def lose(self) -> None:
        """See `InboundCall`."""
        if self.rest is None and not (self.response_complete or self.disconnected):
            self._goes_on()
            if self._target is not None:
                self._relayed()
        super().lose()

    def on_head(self, status: int, headers: list[Header], framing: ResponseFraming) -> None:
        """See `target.Exchange`."""
        self._relayed().on_head(status, headers, framing)

    def on_body(self, data: bytes) -> None:
        """See `target.Exchange`."""
        self._relayed().on_body(data)

    def on_end(self) -> None:
        """See `target.Exchange`."""
        self._relayed().on_end()

    def on_failure(self, failure: TargetFailure) -> None:
        """See `target.Exchange`."""
        self._relayed().on_failure(failure)

    def pause_sending(self) -> None:
        """See `target.Exchange`; the request was handed over whole."""

    def resume_sending(self) -> None:
        """See `target.Exchange`."""

    def time_out(self) -> None:
        """See `deadlines.Bound`."""
        self._relayed().time_out()

    def give_up(self) -> None:
        """See `deadlines.Bound`."""
        self._relayed().give_up()
