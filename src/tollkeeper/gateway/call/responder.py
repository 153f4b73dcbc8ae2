"""The answers of one call at a PayGate, written and counted (contract 4.1, 4.5, 4.6, 4.7). Knows no rules.

Which answer it is decides `flow`; what becomes of a credit, `credit`. An answer in one piece never waits: the transport
holds what its caller does not take, and he gets no next answer made. What is on disk, or streamed, waits for him: as
long as `edge.server.timeouts` has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import clock_ms, envelope, error_envelope, iso
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.heads import BodyEnd
from tollkeeper.core.paygates.challenge import exhausted_body
from tollkeeper.core.purchases import credit_token
from tollkeeper.edge.server.call import FAULT, JSON_LINE
from tollkeeper.gateway.call import credit_refusals, headers, request_facts
from tollkeeper.gateway.call.headers import CORS
from tollkeeper.gateway.pages import is_for_person, page_of_refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tollkeeper.core.http.heads import ResponseHead
    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.edge.target.spool import SpooledBody
    from tollkeeper.gateway.call.credit_refusals import ExhaustedError
    from tollkeeper.gateway.call.state import PaidCall
    from tollkeeper.gateway.open_gate import OpenGate

_UNPAID_LINES: Final = JSON_LINE + CORS
_LOG = structlog.get_logger("tollkeeper.gateway.call.flow")

# Unpaid


def preflight(call: PaidCall, gate: OpenGate) -> None:
    """Tell a browser what it may send."""
    call.http.answer(204, headers.preflight_lines(gate.gate, call.http), length_bytes=None)


def challenge(call: PaidCall, gate: OpenGate) -> None:
    """Answer 402. Raises: INVALID_NETWORK, UNAVAILABLE."""
    http, context = call.http, call.context
    shown = request_facts.challenge_on(gate, http)
    context.traffic.challenged(gate.gate.id, http)
    lines = CORS + context.limit.challenged(http) + headers.required_line(shown.header)
    if is_for_person(http):
        page = context.pages.at(gate, http)
        http.answer(402, page.lines + lines, page.body)
    else:
        profile = request_facts.profile_on(http, context.profile)
        http.answer(402, JSON_LINE + lines, shown.body(profile, iso(clock_ms())))


def exhausted(call: PaidCall, gate: OpenGate, spent: ExhaustedError) -> None:
    """Answer 402 as if unpaid, so that an official client can pay again at once. Raises: UNAVAILABLE."""
    http, context = call.http, call.context
    detail = credit_refusals.exhausted(spent).body()
    profile = request_facts.profile_on(http, context.profile)
    shown = request_facts.challenge_beside(gate, http)
    body = exhausted_body(shown, detail, profile, iso(clock_ms()))
    context.traffic.challenged(gate.gate.id, http)
    standing = context.limit.challenged(http)
    http.answer(402, _UNPAID_LINES + standing + headers.required_line(shown.header), body)


def refuse(call: PaidCall, gate: OpenGate | None, error: ApiError, lines: bytes) -> None:
    """Answer a refusal as it is; a person sees a page. Of an unknown slug there is no gate."""
    http, context = call.http, call.context
    if gate is not None:
        context.traffic.refused(gate.gate.id, http, error)
    if error.code is Code.SETTLEMENT_PENDING:
        lines += headers.pending_line(call.presented, (error.details or {}).get("transaction", ""))
    if is_for_person(http):
        page = page_of_refusal(context.pages, gate, error, http)
        http.refuse(error, CORS + lines, page.body, page.lines)
    else:
        http.refuse(error, CORS + lines)


def refuse_payment(call: PaidCall, gate: OpenGate, error: ApiError, lines: bytes) -> None:
    """Answer 402 to a refused payment, with the requirements beside it. Raises: UNAVAILABLE."""
    http = call.http
    shown = request_facts.challenge_beside(gate, http)
    body = error_envelope(error, http.request_id, shown.siblings)
    call.context.traffic.refused(gate.gate.id, http, error)
    http.refuse(error, CORS + lines + headers.required_line(shown.header_beside(error)), body)


def token_line(call: PaidCall, purchase_id: str | None) -> bytes:
    """Return the line of a claim's credit token; nothing for no claim."""
    if purchase_id is None:
        return b""
    return b"x-credit-token: %b\r\n" % credit_token(call.context.token_keys[0], purchase_id).encode()


# Paid


def receipt(call: PaidCall, left: int | None = None) -> bytes:
    """Return the lines of the receipt; the call that bought is told its credit token (contract 4.6)."""
    purchase = call.purchase
    assert purchase is not None  # noqa: S101 - it is paid for
    lines = headers.receipt_lines(purchase, purchase.remaining if left is None else left)
    lines += headers.receipt_line(call.presented, purchase)
    return lines + token_line(call, purchase.id) if call.has_bought else lines


def link(call: PaidCall, told: JsonMapping) -> None:
    """Answer with the link to a file."""
    call.http.answer(200, JSON_LINE + receipt(call) + CORS, envelope(told))


def relay(call: PaidCall, head: ResponseHead, lines: bytes, body: list[bytes], length: int, *, has_date: bool) -> None:
    """Pass an answer on that is in memory; `length` is its body's."""
    http, status = call.http, head.status
    if head.framing.end is BodyEnd.NONE:  # to HEAD the target's own word; 204 and 304 state none
        declared_bytes = None if status in (204, 304) else head.framing.declared_bytes
        http.answer(status, lines, length_bytes=declared_bytes, has_date=has_date)
    else:
        http.answer_parts(status, lines, body, length, has_date=has_date)


async def relay_slowly(
    call: PaidCall,
    status: int,
    lines: bytes,
    parts: SpooledBody | AsyncIterator[bytes],
    length_bytes: int | None,
    *,
    has_date: bool,
) -> None:
    """Pass an answer on as fast as the client takes it, but for its end. Raises: UPSTREAM_* of a stream."""
    call.http.start(status, lines, length_bytes, has_date=has_date)
    async for data in parts:
        await call.http.write(data)


def failed(call: PaidCall, error: ApiError, lines: bytes) -> None:
    """Answer our own failure of a call that was paid for."""
    call.http.refuse(error, lines + CORS)


# Cut or broken


def refusal_of(call: PaidCall, fault: BaseException) -> ApiError:
    """Return the refusal that a caller is told; log a fault of ours."""
    if isinstance(fault, ApiError):
        return fault
    _LOG.error("unhandled", exc_info=fault, request_id=call.http.request_id)
    return ApiError(Code.INTERNAL_ERROR, FAULT)


def stopped(call: PaidCall, error: ApiError, lines: bytes) -> None:
    """Tell the client that the process stops, and close."""
    call.http.keep_alive = False
    call.http.guard(call.http.refuse, error, CORS + lines)
