"""The listener's handler of PayGates' calls (contract 4.2), and how a stop ends them.

A plain request that shows nothing, which is most of what strangers send, needs no call and no coroutine: `at_once` asks
what steps 1 to 3 of `flow` ask, in their order, by the same rules, and makes its 402 of the gate's prepared bytes.
Whatever is not plain it leaves to `flow`, which finds the same again and says why.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tollkeeper.api import clock_ms, iso, new_request_id_at
from tollkeeper.core.http.forwarding import is_plain_subpath
from tollkeeper.core.http.heads import RequestHead
from tollkeeper.edge.server.call import END_OF_HEAD, JSON_LINE, LAST_LINES, http_date
from tollkeeper.gateway.call import headers
from tollkeeper.gateway.call.driver import Cut
from tollkeeper.gateway.call.flow import serve
from tollkeeper.gateway.call.headers import CORS, PAYMENT_REQUIRED_STATUS
from tollkeeper.gateway.call.request_facts import RequestFacts
from tollkeeper.gateway.call.state import PaidCall

if TYPE_CHECKING:
    from tollkeeper.core.paygates.challenge import Profile
    from tollkeeper.edge.server.call import AnsweredRequest, InboundCall
    from tollkeeper.gateway.call.context import GatewayContext
    from tollkeeper.gateway.open_gate import OpenGate, ReadyChallenge

_WITH_OTHER_ANSWERS: Final = frozenset({"HEAD", "OPTIONS"})


class UnpaidRequest(msgspec.Struct):
    """A request that is told to pay (`edge.server.call.AnsweredAtOnce`)."""

    answer: bytes
    head: RequestHead
    method: str
    request_id: str
    started_ns: int
    gate_id: int
    status: int = PAYMENT_REQUIRED_STATUS
    duration_us: int = 0


class PayGateHandler:
    """Handler of calls at PayGates (`edge.server.call.CallHandler`)."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self.place_of = RequestFacts.of

    def at_once(self, head: RequestHead, place: RequestFacts, peer: str) -> UnpaidRequest | None:
        """Make the 402 if the request shows nothing and is plain, and its gate in memory sells to whoever pays."""
        context, shape = self._context, head.shape
        if shape.has_proof or context.is_stopping:
            return None
        started_ns, now_ms = time.perf_counter_ns(), clock_ms()
        gate = context.gates.kept(place.slug)
        if gate is None:
            return None
        ready = gate.ready
        if ready.made_ms != now_ms:
            _make(ready, gate, context.profile, now_ms)
        if (
            head.method not in ready.methods
            or (place.subpath and not (ready.takes_paths and is_plain_subpath(place.subpath)))
            or (place.query and ready.has_own_query)
            or shape.place_of(b"upgrade") >= 0
            or b"=" in (accept := head.value_of(b"accept"))  # one form of the 402 (`core.paygates.challenge`)
            or b"text/html" in accept  # a page (`gateway.pages`)
        ):
            return None
        standing = context.limit.unpaid(peer, head)
        if standing is None:
            return None
        request_id = new_request_id_at(now_ms)
        answer = b"".join((ready.start, standing, ready.middle, request_id.encode(), ready.end))
        return UnpaidRequest(answer, head, head.method, request_id, started_ns, gate.gate.id)

    def begin(self, call: InboundCall) -> None:
        """Answer one request at a slug, by a coroutine."""
        paid = PaidCall(self._context, call)
        call.on_gone = paid.driver.client_left
        paid.driver.begin(serve(paid))

    def ended(self, call: AnsweredRequest) -> None:
        """Count a request that was told to pay at once; a call counts its own end."""
        if isinstance(call, UnpaidRequest):
            self._context.traffic.challenged(call.gate_id, call)

    async def aclose(self) -> None:
        """Cut what still waits: the listener has waited as long as it may. A commit under way is waited for.

        What a call's commit has taken by then is given back. Behind this nothing asks for a credit or a payment.
        """
        self._context.is_stopping = True  # what stands behind a call that is cut begins now
        await self.settled()

    async def settled(self) -> None:
        """Cut the calls that wait in tasks, also those that begin meanwhile, and wait for what takes or gives back."""
        under_way = self._context.under_way
        while True:
            self._cut_tasks()
            await self._context.purchases.ledger.idle()
            self._cut_tasks()
            if not under_way:
                return
            await asyncio.wait(list(under_way))

    def _cut_tasks(self) -> None:
        for driver in list(self._context.under_way.values()):
            driver.cut_short(Cut.STOPPED)


def _make(ready: ReadyChallenge, gate: OpenGate, profile: Profile, now_ms: int) -> None:
    """Make a gate's 402 for this millisecond."""
    if ready.made_ms < 0:
        _prepare(ready, gate, profile)
    ready.made_ms = now_ms
    body = ready.before + iso(now_ms).encode() + ready.after if ready.after else ready.before
    length = b"content-length: %d\r\n" % len(body)
    ready.middle = b"".join((ready.required, length, http_date(now_ms // 1000), LAST_LINES))
    ready.end = END_OF_HEAD + body


def _prepare(ready: ReadyChallenge, gate: OpenGate, profile: Profile) -> None:
    """Gather what is always the same. No method gets it where a bearer is asked for first, or nothing is sold."""
    if not gate.gate.require_auth and gate.sells:
        shown = gate.challenge
        ready.methods = frozenset(gate.gate.methods) - _WITH_OTHER_ANSWERS
        ready.takes_paths = gate.gate.allow_subpaths and gate.target is not None
        ready.has_own_query = bool(gate.wire.own_parameters)
        ready.start = STATUS_LINE[PAYMENT_REQUIRED_STATUS] + JSON_LINE + CORS
        ready.required = headers.required_line(shown.header)
        ready.before, ready.after = shown.bodies[profile]
