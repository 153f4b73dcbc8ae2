"""The facts that the gateway reads of a call, and the refusals of one (contract 4.1, 4.2, 4.3, 4.5, 4.7).

Asks nobody and waits for nothing; the header lines that the gateway writes are `headers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.api.errors import ApiError, Code, failed_check, invalid, payment_error
from tollkeeper.core.http.forwarding import request_target
from tollkeeper.core.networks import normalise
from tollkeeper.core.paygates.challenge import profile_of
from tollkeeper.core.paygates.fields import RESERVED_SLUGS, is_slug
from tollkeeper.core.paygates.model import without
from tollkeeper.core.x402.version2 import PAYMENT_HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.http.heads import RequestHead
    from tollkeeper.core.paygates.challenge import Challenge, Profile
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.edge.server.call import BodySink, BodySource, InboundCall
    from tollkeeper.gateway.call.context import GatewayContext
    from tollkeeper.gateway.open_gate import OpenGate


def is_preflight(call: InboundCall) -> bool:
    """Tell whether a browser asks by OPTIONS if it may call: answered by the gateway itself (contract 3.1)."""
    header = call.head.header
    return b"origin" in header and b"access-control-request-method" in header


def shows_payment(call: InboundCall) -> bool:
    """Tell whether the call shows a payment, in whichever header."""
    return not PAYMENT_HEADERS.keys().isdisjoint(call.head.header)


def shows_proof(head: RequestHead) -> bool:
    """Tell whether the head shows a payment or a credit token."""
    if not head.shape.has_proof:
        return False
    header = head.header
    return not PAYMENT_HEADERS.keys().isdisjoint(header) or bool(header.get(b"x-credit-token"))


def check_method(gate: PayGate, call: InboundCall) -> None:
    """Raises: METHOD_NOT_ALLOWED."""
    if not gate.allows(call.method):
        message = f"this PayGate does not take this method, but {gate.allow}"
        raise ApiError(Code.METHOD_NOT_ALLOWED, message, headers={"Allow": gate.allow})


def check_size(call: InboundCall, limit_bytes: int) -> None:
    """Raises: PAYLOAD_TOO_LARGE for a body that says it is over the limit."""
    if call.head.content_length is not None and call.head.content_length > limit_bytes:
        raise too_large(limit_bytes)


def challenge_on(opened: OpenGate, call: InboundCall) -> Challenge:
    """Return the 402 of a gate on the network that its caller names by `X-Payment-Network`, else on its own.

    Raises: INVALID_NETWORK for a network that it is not paid on; UNAVAILABLE where it can be paid on none.
    """
    named = call.head.header.get(b"x-payment-network")
    if named is None or not opened.offers:
        return opened.challenge
    try:
        return opened.offers[normalise(named.decode("latin-1")).name]
    except (ApiError, KeyError):
        details = {"field": "X-Payment-Network", "supported": list(opened.offers)}
        raise ApiError(Code.INVALID_NETWORK, "this PayGate is not paid on that network", details=details) from None


def challenge_beside(opened: OpenGate, call: InboundCall) -> Challenge:
    """Return the 402 that stands beside another refusal: as `challenge_on`, or the gate's own where none is named.

    Raises: UNAVAILABLE where it can be paid on none.
    """
    try:
        return challenge_on(opened, call)
    except ApiError:
        return opened.challenge


def profile_on(call: InboundCall, default: Profile) -> Profile:
    """In which form the caller wants its 402: what `Accept` names, else `default`."""
    accept = call.head.header.get(b"accept", b"")
    return profile_of(accept.decode("latin-1"), default) if b"=" in accept else default


def payers_bearer_required() -> ApiError:
    """The refusal of a payment without a bearer, where only its payer may buy with it."""
    return ApiError(Code.AUTH_REQUIRED, "this PayGate sells to wallets that are logged in: send the payer's bearer")


def check_payer(wallet: str | None, payer: str) -> None:
    """The bearer of a payment is its payer. Raises: AUTH_REQUIRED without one, FORBIDDEN for another."""
    if wallet is None:
        raise payers_bearer_required()
    if wallet != payer:
        raise ApiError(Code.FORBIDDEN, "the bearer is not the wallet that signed the payment")


def not_sold(opened: OpenGate, network: str) -> ApiError | None:
    """Enabled, network: the refusal of a payment at a gate that sells nothing, or not for it; None where it does."""
    if (unsold := opened.unsold()) is not None:
        return unsold
    return None if network in opened.offers else on_other_network(opened, network)


def on_other_network(opened: OpenGate, network: str) -> ApiError:
    """The refusal of a payment on a network that the gate is not paid on."""
    details = failed_check("invalid_network", "network", ", ".join(opened.offers), network)
    return payment_error(Code.INVALID_NETWORK, "the payment is for another network", details=details)


def too_large(limit_bytes: int) -> ApiError:
    """The refusal of a body over the limit."""
    message = "the request body is too large for this gateway (the operator's setting call_body_max_mb)"
    return ApiError(Code.PAYLOAD_TOO_LARGE, message, details={"limitBytes": limit_bytes})


class _Slugs(dict[bytes, "str | None"]):
    """The slug that a path's first segment is, None for none, by the segment as it was sent."""

    def __missing__(self, segment: bytes) -> str | None:
        slug = segment.decode("latin-1")
        known = slug if is_slug(slug) and slug.lower() not in RESERVED_SLUGS else None
        if len(self) >= _SLUGS_MAX:  # callers invent them
            self.clear()
        if len(segment) <= SLUG_MAX:
            self[segment] = known
        return known


_SLUGS_MAX: Final = 4096
SLUG_MAX: Final = 64
SLUGS: Final = _Slugs()


class RequestFacts(msgspec.Struct):
    """The place of a request at a PayGate: slug, path below it, query, as they were sent."""

    slug: str
    subpath: bytes
    query: bytes
    _opened: OpenGate | None = None
    _target_path: bytes = b""

    @staticmethod
    def of(target: bytes) -> RequestFacts | None:
        """Take a raw path and query apart. None where the first segment, as it was sent, is no slug (security A-18)."""
        path, _, query = target.partition(b"?")
        end = path.find(b"/", 1)
        slug = SLUGS[path[1:] if end < 0 else path[1:end]]
        return None if slug is None else RequestFacts(slug, b"" if end < 0 else path[end:], query)

    def target_path(self, opened: OpenGate) -> bytes:
        """Path and query of the request to this gate's target. Raises: INVALID_PARAMETER."""
        if self._opened is not opened:
            wire, target, query = opened.wire, opened.target, self.query
            if not (query or self.subpath) or target is None:
                self._target_path = wire.path
            else:
                query = without(query, wire.own_parameters) if wire.own_parameters else query
                self._target_path = request_target(target, self.subpath, query)
            self._opened = opened
        return self._target_path


def check_request(context: GatewayContext, call: InboundCall, asked: RequestFacts, opened: OpenGate) -> None:
    """Check what needs neither a login nor a payment, in the order of contract 4.2. Raises: the refusal."""
    if call.method not in opened.gate.methods:
        check_method(opened.gate, call)  # 405
    if context.limit.owing:
        context.limit.check(call)  # 429
    if call.head.content_length != 0:
        check_size(call, context.body_limit_bytes)  # 413
    check_forwardable(call, asked, opened)  # 400, 404


def check_forwardable(call: InboundCall, asked: RequestFacts, opened: OpenGate) -> None:
    """Raises: what no target could be sent, and no file be sold to, before a credit is spent for it.

    NOT_FOUND for a path below a slug that has none, INVALID_PARAMETER for one that could be read in two ways and for
    whatever else cannot be sent on; a WebSocket too.
    """
    if not call.head.shape.is_plain and b"upgrade" in call.head.header:
        _check_upgrade(call)
    if asked.subpath and (opened.target is None or not opened.gate.allow_subpaths):
        raise ApiError(Code.NOT_FOUND, "this PayGate has no paths below its slug")
    asked.target_path(opened)


def _check_upgrade(call: InboundCall) -> None:
    """Any other protocol may be left unanswered (RFC 9110 7.8); who wants a WebSocket cannot use a plain answer."""
    if b"websocket" in call.head.header[b"upgrade"].lower():
        raise invalid("Upgrade", "a PayGate answers HTTP requests; it opens no WebSocket connection")


def body_of(call: InboundCall, limit_bytes: int, break_off: Callable[[Exception], None]) -> bytes | BodySource:
    """The request's body: at once where all of it is there, else as it comes and as far as it may."""
    length_bytes = call.head.content_length
    if length_bytes == 0:
        return b""
    whole = None if length_bytes is None else call.whole_body()
    return BoundedBody(call, limit_bytes, break_off) if whole is None else whole


class BoundedBody:
    """A call's body on its way to the target; `break_off` is told where it turns out too large, or a sink breaks."""

    __slots__ = ("_break_off", "_call", "_left_bytes", "_limit_bytes", "_sink")

    def __init__(self, call: InboundCall, limit_bytes: int, break_off: Callable[[Exception], None]) -> None:
        self._call = call
        self._limit_bytes = self._left_bytes = limit_bytes
        self._break_off = break_off
        self._sink: BodySink

    def body_to(self, sink: BodySink) -> None:
        """Hand the body to `sink`."""
        self._sink = sink
        self._call.body_to(self)

    def pause_body(self) -> None:
        """Pause the reading."""
        self._call.pause_body()

    def resume_body(self) -> None:
        """Resume the reading."""
        self._call.resume_body()

    def on_request_body(self, data: bytes) -> None:
        """Count and hand on a part."""
        had_room = self._left_bytes >= 0
        self._left_bytes -= len(data)
        if self._left_bytes >= 0:
            self._pass_on(self._sink.on_request_body, data)
        elif had_room:
            self._break_off(too_large(self._limit_bytes))

    def on_request_end(self) -> None:
        """Hand on the end."""
        if self._left_bytes >= 0:
            self._pass_on(self._sink.on_request_end)

    def refuse(self, error: Exception) -> None:
        """Hand on the refusal."""
        if self._left_bytes >= 0:
            self._break_off(error)

    def _pass_on(self, give: Callable[..., None], *data: bytes) -> None:
        try:
            give(*data)
        except Exception as fault:  # noqa: BLE001 - the call is paid for, and ends as every other does
            self._break_off(fault)
