"""A call like one before, from its first byte to its answer on the straight way (contract 4.2, 4.6, 4.7; performance).

Most paid calls are the same bytes as one before, at the very same gate, on a connection with nothing else to do; the
ledger has their credit, a kept connection reaches their target, and the answer has a length and fits in memory.
`CallAgain` is such a call and all that happens to it: caller, ledger and target talk to this one object, for each
object and each call of Python between them would cost as much as what it does. Those whose credits one commit took are
forwarded together, and those whose short answers one turn of the loop brought are answered together.

    step of `access`             here
    1 slug, 2 rate limit         `begin`
    2 method to 3 signature      not taken: judged for the call before, and `held` says why that holds
    4 spend                      `begin` -> the ledger -> `spent_together`
    6 forward                    `_forwarded_together`
    answer with the receipt      `on_whole`, `on_end` -> `_answer_with` -> `_answers_of`, `answered_together`

Whatever is not on this way goes on as an `access.PaidCall` at the very step where it left (`rest`, a `LeftCall`), and
is decided there. Decides nothing itself.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from tollkeeper.api import clock_ms, new_request_id_at
from tollkeeper.core.framing import BodyEnd
from tollkeeper.core.purchases import Spend
from tollkeeper.edge.call import CLOSING_END_OF_HEAD, END_OF_HEAD, InboundCall, http_date
from tollkeeper.edge.forwarding import DEFAULT_LIMITS
from tollkeeper.edge.parts import add_part
from tollkeeper.edge.relay import RelayRequest
from tollkeeper.edge.spool import BATCH_SIZE_BYTES
from tollkeeper.gateway.access import PaidCall
from tollkeeper.gateway.buying import Buyer
from tollkeeper.gateway.calls import body_of
from tollkeeper.gateway.heads import answer_lines, receipt_lines, target_head_end
from tollkeeper.gateway.steps import Stage
from tollkeeper.storage.purchase_rows import SpendResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.core.errors import ApiError
    from tollkeeper.edge.call import CallHandler, Connection
    from tollkeeper.edge.exchange import TargetFailure
    from tollkeeper.edge.forwarding import Look
    from tollkeeper.edge.heads import RequestHead, ResponseHead
    from tollkeeper.edge.parts import Part
    from tollkeeper.edge.relay import Relay
    from tollkeeper.edge.target import TargetConnection
    from tollkeeper.gateway.held import Held

_ANSWER_SECONDS: Final = DEFAULT_LIMITS.response_seconds
_MEMORY_SIZE_BYTES: Final = DEFAULT_LIMITS.memory_size_bytes
_NO_PARTS: Final[list[Part]] = []
_TOGETHER_MAX: Final = 64  # for so many one look at the kept connections is trusted: a millisecond or two

log = structlog.get_logger("tollkeeper.gateway.access")


class CallAgain(InboundCall, eq=False, kw_only=True):
    """One request whose head spent a credit before, as its `held` has it. Made by `of`; an `edge.exchange.Exchange`."""

    held: Held
    arrived_ms: int
    left: int = 0  # credits, from the spend on
    rest: LeftCall | None = None  # who goes on with it, once it left the straight way
    _target: TargetConnection | None = None  # while its answer is awaited
    _answer: tuple[ResponseHead, list[Part]] | None = None  # the target's, until it is sent
    _coming: tuple[ResponseHead, list[Part]] | None = None  # while its body comes in parts

    @staticmethod
    def of(connection: Connection, handler: CallHandler, head: RequestHead, body: bytes) -> CallAgain:
        """See `CallHandler.again`."""
        now_ms = clock_ms()
        return CallAgain(
            connection,
            handler,
            head,
            head.method,
            new_request_id_at(now_ms),
            perf_counter_ns(),
            _is_body_complete=True,
            _has_begun=True,  # it is begun as soon as it is made
            _ahead=[body] if body else None,
            held=head.notes.held,
            arrived_ms=now_ms,
        )

    # 1, 2. Slug: is it the very gate that the head was judged for. Rate limit: nothing is counted here, only asked.

    def begin(self) -> None:
        """See `InboundCall`."""
        held = self.held
        shared = held.shared
        try:
            kept_gate = shared.gates.kept  # held as an attribute: called as a method it would be looked up each time
            if kept_gate(held.slug) is not held.opened or (shared.limit.owing and shared.limit.is_over(self)):
                self.rest = LeftCall(shared, self)
                self.rest.arrive()
            else:
                shared.purchases.ledger.spend_held(self, self.arrived_ms)
        except Exception as fault:  # noqa: BLE001 - whatever it was, this caller must not wait for ever
            self.fail(fault)

    # 4. Spend. Waits for the ledger's commit, which is one for many calls. 6. Forward. Waits for the target.

    @staticmethod
    def spent_together(calls: Sequence[CallAgain], lefts: Sequence[int]) -> None:
        """See `ledger.HeldCall`. All of these share one `shared`; so many are forwarded as of one moment."""
        shared = calls[0].held.shared
        if shared.is_stopping:
            for call, left in zip(calls, lefts, strict=True):
                call.spent_otherwise(left)
            return
        forwarder = shared.forwarder
        for at in range(0, len(calls), _TOGETHER_MAX):
            some = calls[at : at + _TOGETHER_MAX]
            try:
                look = forwarder.look()
                due_seconds = look.now_seconds + _ANSWER_SECONDS
                forwarder.deadlines.look_by(due_seconds, forwarder.loop)
            except Exception as fault:  # noqa: BLE001 - as above
                for call, left in zip(some, lefts[at:], strict=False):
                    call.left = left
                    if call.rest is not None:  # its caller has left
                        call.spent_otherwise(left)
                    else:
                        call.break_off(fault, is_charged=True)
            else:
                CallAgain._forwarded_together(some, lefts[at:], look, due_seconds)

    @staticmethod
    def _forwarded_together(calls: Sequence[CallAgain], lefts: Sequence[int], look: Look, due_seconds: float) -> None:
        """A credit of each was taken, and so many are left. One method, for each call of one would cost too much."""
        shared = calls[0].held.shared
        forwarder, good = shared.forwarder, shared.limit.good
        due, kept_on = forwarder.deadlines.due, forwarder.kept_on
        requests: list[tuple[CallAgain, Callable[[bytes], None], bytes]] = []
        for call, left in zip(calls, lefts, strict=False):
            try:
                call.left = left
                if call.rest is not None:
                    call.rest.spent_again(left)
                    continue
                held = call.held
                if held.mark not in good:
                    shared.limit.was_good(held.mark)
                request = call._target_head()  # noqa: SLF001 - its own, as below
                target = kept_on(held.way, look)
                if target is None:
                    call._goes_on().forward_again(request, left)  # noqa: SLF001 - its own
                    continue
                call._target = target  # noqa: SLF001 - its own
                due[call] = due_seconds
                if (body := call._ahead) is not None:  # noqa: SLF001 - its own
                    request += body[0]
                requests.append((call, target.sends(call, call.method), request))
            except Exception as fault:  # noqa: BLE001 - as above, and the others must go on
                call.break_off(fault, is_charged=True)
        for call, write, request in requests:
            try:
                write(request)
            except Exception as fault:  # noqa: BLE001 - as above
                call.break_off(fault, is_charged=True)

    def break_off(self, fault: Exception, *, is_charged: bool) -> None:
        """Answer a fault of ours, or close; what was charged has its end in the books."""
        try:
            self.held.shared.forwarder.deadlines.clear(self)
            self._take_parts()
            if self._target is not None:
                self._target.abort()
            rest = self._goes_on()
            if is_charged and rest.stage is Stage.SPENDING:
                rest.dispatched(self.left)
            rest.broken(fault)
        except Exception:
            log.exception("call_not_broken", request_id=self.request_id)
            self.abort()

    def spent_otherwise(self, result: int | SpendResult | ApiError) -> None:
        """See `ledger.HeldCall`."""
        try:
            if isinstance(result, int):
                self.left = result
            self._goes_on().spent_again(result)
        except Exception as fault:  # noqa: BLE001 - as above
            self.break_off(fault, is_charged=isinstance(result, int))

    def _target_head(self) -> bytes:
        """The head of the request to the target (contract 4.7)."""
        held = self.held
        end = held.head_end
        if (peer := self._connection.peer) is not held.peer:
            client = held.shared.limit.clients.of(peer, self.head.headers)
            end = target_head_end(self, client, self.head.content_length)
        return b"".join((held.head_start, self.request_id.encode(), end))

    # And the answer, with the receipt.

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """See `exchange.Exchange`."""
        if head.is_joinable or _fits_in_memory(head):
            self._answer_with(head, [body])
        else:
            self._relayed().on_whole(head, body)

    def wanted_bytes(self) -> int:
        """See `exchange.Exchange`. All of a body, unless others take much of the memory."""
        room = self.held.shared.forwarder.room
        return _MEMORY_SIZE_BYTES if room.in_use_bytes < room.memory_bytes // 2 else BATCH_SIZE_BYTES

    def on_head(self, head: ResponseHead) -> None:
        """See `exchange.Exchange`. A body that may stay in memory is waited for here."""
        if _fits_in_memory(head):
            self._coming = head, []
        else:
            self._relayed().on_head(head)

    def on_body(self, data: bytes | memoryview) -> None:
        """See `exchange.Exchange`."""
        if self._coming is None:
            self._relayed().on_body(data)
            return
        add_part(self._coming[1], data)
        room = self.held.shared.forwarder.room
        room.in_use_bytes += len(data)
        if room.in_use_bytes > room.memory_bytes:
            self._relayed()

    def on_end(self) -> None:
        """See `exchange.Exchange`."""
        if (whole := self._take_parts()) is None:
            self._relayed().on_end()
        else:
            self._answer_with(*whole)

    def _take_parts(self) -> tuple[ResponseHead, list[Part]] | None:
        """What came of an answer whose body comes in parts; it is waited for here no more."""
        coming, self._coming = self._coming, None
        if coming is not None:
            self.held.shared.forwarder.room.in_use_bytes -= sum(map(len, coming[1]))
        return coming

    def _answer_with(self, head: ResponseHead, body: list[Part]) -> None:
        """A short answer waits for what else this turn of the loop brings."""
        shared = self.held.shared
        shared.forwarder.deadlines.due.pop(self, None)
        self._target = None
        self._answer = head, body
        if head.is_joinable:
            shared.answered.add(self)
        else:  # while its bytes are at hand
            self.answered_together((self,))

    @staticmethod
    def answered_together(calls: Sequence[CallAgain]) -> None:
        """See `turns.Together`. All is written first: whatever begins behind an answer would hold up the others."""
        answers = CallAgain._answers_of(calls)
        for call, written, behind in answers:
            try:
                transport = call._connection.transport  # noqa: SLF001 - its own
                if behind:
                    transport.writelines((written, *behind))
                else:
                    transport.write(written)
            except Exception as fault:  # noqa: BLE001 - as above
                call._cut_off(fault)  # noqa: SLF001 - its own
        if not answers:
            return
        answered = [call for call, _, _ in answers]
        try:
            calls[0].held.shared.traffic.answered_together(answered)
        except Exception:  # it is answered, counted or not
            log.exception("calls_not_counted", count=len(answered))
        calls[0].tell_ended_together(answered)
        for call in answered:
            try:
                connection = call._connection  # noqa: SLF001 - its own
                if not call.keep_alive:
                    connection.end()
                connection.on_response_complete()
            except Exception as fault:  # noqa: BLE001 - as above
                call._cut_off(fault)  # noqa: SLF001 - its own

    @staticmethod
    def _answers_of(calls: Sequence[CallAgain]) -> list[tuple[CallAgain, bytes, list[Part]]]:
        """What is about to be written to those whose callers are there, a long body in its parts behind the rest."""
        answers: list[tuple[CallAgain, bytes, list[Part]]] = []
        for call in calls:
            try:
                answer, call._answer = call._answer, None  # noqa: SLF001 - as above
                if answer is None or call.disconnected:
                    continue
                head, body = answer
                joined, behind = (body, _NO_PARTS) if head.is_joinable else (_NO_PARTS, body)
                held = call.held
                known = head.notes or answer_lines(head)
                start = known.start
                call.duration_us = duration_us = (perf_counter_ns() - call.started_ns) // 1000
                if not known.has_date:
                    start += http_date((call.arrived_ms + duration_us // 1000) // 1000)
                parts = [
                    start,
                    held.receipt_start,
                    b"%d" % call.left,
                    held.receipt_end,
                    call.request_id.encode(),
                    END_OF_HEAD if call.keep_alive else CLOSING_END_OF_HEAD,
                    *joined,
                ]
                answers.append((call, b"".join(parts), behind))
                call.status = head.status
                call.response_started = call.response_complete = True  # from here as `_complete` has it
                call._ahead = None  # noqa: SLF001 - its own
            except Exception as fault:  # noqa: BLE001 - as above
                call.break_off(fault, is_charged=True)
        return answers

    def _cut_off(self, fault: Exception) -> None:
        """Its answer was made, and counts, but cannot be sent whole."""
        try:
            self.fail(fault)
        except Exception:
            log.exception("call_not_broken", request_id=self.request_id)

    # Where it leaves the straight way

    def _goes_on(self) -> LeftCall:
        """The call as `access` has it, at the step where it is."""
        if self.rest is None:
            self.rest = LeftCall.of_held(self, self.held)
        return self.rest

    def _relayed(self) -> Relay:
        """The exchange with the target as `relay` has it; its connection tells that one from now on."""
        target, came = self._target, self._take_parts()
        assert target is not None  # noqa: S101 - the target was sent the request
        relay = self._goes_on().relay_again(self._target_head(), self.left)
        self.held.shared.forwarder.deadlines.hand_over(self, relay)
        relay.take_over(target, self)
        if came is not None:
            try:
                relay.on_head(came[0])
                for part in came[1]:
                    relay.on_body(bytes(part))
            except Exception as fault:  # noqa: BLE001 - as above
                relay.refuse(fault)
        return relay

    def lose(self) -> None:
        """See `InboundCall`."""
        if self.rest is None and not (self.response_complete or self.disconnected):
            rest = self._goes_on()
            rest.is_charged = self._answer is not None  # else the ledger or the relay will say so, which still wait
            if self._target is not None:
                self._tell_relay(lambda _: None)  # there is one from now on, which is closed with the call
        super().lose()

    def on_failure(self, failure: TargetFailure) -> None:
        """See `exchange.Exchange`; of a fault that broke off its way to the relay nobody else would tell its caller."""
        self._tell_relay(lambda relay: relay.on_failure(failure))

    def pause_sending(self) -> None:
        """See `exchange.Exchange`; the request was handed over whole."""

    def resume_sending(self) -> None:
        """See `exchange.Exchange`."""

    def time_out(self) -> None:
        """See `deadlines.Bound`."""
        self._tell_relay(lambda relay: relay.time_out())

    def give_up(self) -> None:
        """See `deadlines.Bound`."""
        self._tell_relay(lambda relay: relay.give_up())

    def _tell_relay(self, tell: Callable[[Relay], None]) -> None:
        try:
            tell(self._relayed())
        except Exception as fault:  # noqa: BLE001 - as above
            self.break_off(fault, is_charged=True)


class LeftCall(PaidCall):
    """What began as a `CallAgain`, from where it left the straight way: at its first step, or from its spend on."""

    held: Held

    @classmethod
    def of_held(cls, call: InboundCall, held: Held) -> LeftCall:
        """The call at its spend, whose head came before as `held` has it."""
        rest = cls(held.shared, call)
        rest.held, rest.opened, rest.purchase = held, held.opened, held.purchase
        call.on_gone = rest._client_gone
        rest.enter(Stage.SPENDING)
        return rest

    def spent_again(self, result: int | SpendResult | ApiError) -> None:
        """The ledger's answer: no credit was taken, or its caller has left by now, or the process stops."""
        presented = self.held.presented
        if isinstance(result, int):
            result = SpendResult(Spend.SPENT, replace(self.held.purchase, remaining=result))
        self.buyer = Buyer(on_left=self.left, wish=self._wish(presented))
        self.guard(self._spent, result, presented, self.buyer)

    def forward_again(self, head: bytes, left: int) -> None:
        """With so many credits left; no connection to its target was to be had at once."""
        self.guard(lambda: self.relay_again(head, left).start())

    def dispatched(self, left: int) -> None:
        """Its credit was taken, and so many are left: however it ends, it is told so (contract 4.6)."""
        self.enter(Stage.FORWARDING)
        self.receipts = receipt_lines(self.held.receipt_start, self.held.purchase, left)

    def relay_again(self, head: bytes, left: int) -> Relay:
        """The exchange with the target, which is sent this head; whoever asks starts it, or did."""
        self.dispatched(left)
        call, target = self.call, self.held.target
        body = body_of(call, self.shared.body_limit_bytes, self._break_off)
        request = RelayRequest(target, call.method, head, body, call.head.content_length)
        self.relay = relay = self.shared.forwarder.relay(request, self)
        return relay


def _fits_in_memory(head: ResponseHead) -> bool:
    """Whether a body of this length may stay in memory."""
    framing = head.framing
    return framing.end is BodyEnd.LENGTH and (framing.declared_bytes or 0) <= _MEMORY_SIZE_BYTES
