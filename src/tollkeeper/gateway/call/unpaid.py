"""A plain request without a payment, which is most of what strangers send: its 402, made of nothing but its head.

It needs no call and no coroutine: `UnpaidRequests.told` asks what steps 1 to 3 of `flow` ask, in their order, by the
same rules, and leaves whatever is not plain to `flow`, which finds the same again and says why.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tollkeeper.api import clock_ms, iso, new_request_id_at
from tollkeeper.core.http.forwarding import is_plain_subpath
from tollkeeper.core.http.heads import RequestHead
from tollkeeper.edge.server.call import END_OF_HEAD, JSON_LINE, LAST_LINES, http_date
from tollkeeper.gateway.call import headers as heads
from tollkeeper.gateway.call.headers import CORS, PAYMENT_REQUIRED_STATUS
from tollkeeper.gateway.call.request_facts import SLUGS

if TYPE_CHECKING:
    from tollkeeper.core.paygates.challenge import Profile
    from tollkeeper.gateway.call.context import GatewayContext
    from tollkeeper.gateway.open_gate import OpenGate, ReadyChallenge

_WITH_BODY = frozenset({"HEAD", "OPTIONS"})  # and a preflight: their answers are others


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


class UnpaidRequests:
    """The answers to plain requests without a payment."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    def told(self, head: RequestHead, peer: str) -> UnpaidRequest | None:
        """Make the 402 if the request shows nothing and is plain, and its gate in memory sells to whoever pays."""
        context, header = self._context, head.header
        if head.shape.has_proof or context.is_stopping:
            return None
        started_ns = time.perf_counter_ns()
        path, _, query = head.target.partition(b"?")
        end = path.find(b"/", 1)
        slug = SLUGS[path[1:] if end < 0 else path[1:end]]
        if slug is None:
            return None
        gate = context.gates.kept(slug)
        if gate is None:
            return None
        now_ms, ready = clock_ms(), gate.ready
        if ready.made_ms != now_ms:
            _make(ready, gate, context.profile, now_ms)
        if (
            head.method not in ready.methods
            or (end > 0 and not (gate.gate.allow_subpaths and gate.target is not None and is_plain_subpath(path[end:])))
            or (query and gate.wire.own_parameters)
            or b"upgrade" in header
            or b"=" in (accept := header.get(b"accept", b""))  # one form of the 402 (`core.paygates.challenge`)
            or b"text/html" in accept  # a page (`gateway.pages`)
        ):
            return None
        standing = context.limit.unpaid(peer, header)
        if standing is None:
            return None
        request_id = new_request_id_at(now_ms)
        answer = b"".join((ready.start, standing, ready.middle, request_id.encode(), ready.end))
        return UnpaidRequest(answer, head, head.method, request_id, started_ns, gate.gate.id)


def _make(ready: ReadyChallenge, gate: OpenGate, profile: Profile, now_ms: int) -> None:
    """Make a gate's 402 for this millisecond; nobody gets it where a bearer is asked for first, or nothing is sold."""
    ready.made_ms = now_ms
    if gate.gate.require_auth or not gate.sells:
        return
    shown = gate.challenge
    body = shown.body(profile, iso(now_ms))
    ready.methods = frozenset(gate.gate.methods) - _WITH_BODY
    ready.start = STATUS_LINE[PAYMENT_REQUIRED_STATUS] + JSON_LINE + CORS
    length = b"content-length: %d\r\n" % len(body)
    ready.middle = b"".join((heads.required_line(shown.header), length, http_date(now_ms // 1000), LAST_LINES))
    ready.end = END_OF_HEAD + body
