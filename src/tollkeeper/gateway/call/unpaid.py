"""A plain request without a payment, which is most of what strangers send: its 402, made of nothing but its facts.

It needs no coroutine and no credit: `challenged` asks what steps 1 to 3 of `flow` ask, in their order, by the same
rules, and leaves whatever is not plain to `flow`, which finds the same again and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.api import clock_ms, iso
from tollkeeper.core.api.errors import ApiError
from tollkeeper.edge.server.call import JSON_LINE
from tollkeeper.gateway.call import headers as heads
from tollkeeper.gateway.call import request_facts
from tollkeeper.gateway.call.headers import CORS
from tollkeeper.gateway.pages import is_for_person

if TYPE_CHECKING:
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.call.context import GatewayContext
    from tollkeeper.gateway.call.request_facts import RequestFacts
    from tollkeeper.gateway.open_gate import OpenGate


def challenged(context: GatewayContext, http: InboundCall, facts: RequestFacts) -> bool:
    """Answer 402 if the request, which shows nothing, is plain, and its gate in memory sells to whoever pays."""
    gate = context.gates.kept(facts.slug)
    if (
        gate is None
        or context.is_stopping
        or gate.gate.require_auth
        or not gate.sells
        or b"authorization" in http.head.header
        or http.method == "OPTIONS"
    ):
        return False
    try:
        request_facts.check_request(context, http, facts, gate)
        challenge(context, http, gate)
    except ApiError:
        return False
    return True


def challenge(context: GatewayContext, http: InboundCall, gate: OpenGate) -> None:
    """Answer 402. Raises: INVALID_NETWORK, UNAVAILABLE."""
    header = http.head.header
    shown = request_facts.challenge_on(gate, http) if b"x-payment-network" in header else gate.challenge
    context.traffic.challenged(gate.gate.id, http)
    standing, accept = context.limit.challenged(http), header.get(b"accept", b"")
    lines = b"".join((CORS, standing, heads.required_line(shown.header)))
    if b"text/html" in accept and is_for_person(http):
        page = context.pages.at(gate, http)
        http.answer(402, page.lines + lines, page.body)
    else:
        profile = context.profile if b"=" not in accept else request_facts.profile_on(http, context.profile)
        http.answer(402, JSON_LINE + lines, shown.body(profile, iso(clock_ms())))
