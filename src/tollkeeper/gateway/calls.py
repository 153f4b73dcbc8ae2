"""What the gateway reads of a call, and the header lines that it writes: to the caller and to the target.

Contract 4.1 (CORS), 4.6 (receipt) and 4.7 (what a target is told). Whatever is the same for every call of a gate or
of a purchase is encoded once. Decides nothing about payments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.api import clock_ms
from tollkeeper.core.challenge import profile_of
from tollkeeper.core.errors import ApiError, Code, invalid, payment_error
from tollkeeper.core.forwarding import (
    VIA,
    caller_lines,
    gateway_headers,
    header_lines,
    name_rules,
    request_target,
    response_lines,
)
from tollkeeper.core.networks import normalise
from tollkeeper.core.target_signing import NONCE_SIZE_BYTES, SIGNATURE_NAMES, HmacSecret, SignedCall, signature_lines
from tollkeeper.core.tenders import with_advice
from tollkeeper.core.wallets import shown_address
from tollkeeper.core.wire import encode_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.addresses import TargetUrl
    from tollkeeper.core.challenge import Challenge, Profile
    from tollkeeper.core.paygates import PayGate
    from tollkeeper.edge.call import BodySink, InboundCall
    from tollkeeper.edge.heads import ResponseHead
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.held import Held
    from tollkeeper.gateway.unpaid import Unpaid
    from tollkeeper.storage.purchase_rows import Purchase

_EXPOSED: Final = (
    b"X-Payment-Response, X-Credits-Remaining, X-Credits-Total, X-Purchase-Id, X-Credit-Token, X-Request-Id, "
    b"X402-Version, Retry-After, RateLimit, RateLimit-Policy"
)
_PREFLIGHT_SECONDS: Final = 600
_NOTHING: Final[frozenset[bytes]] = frozenset()
_BODY_EXPECTED: Final = frozenset({"PATCH", "POST", "PUT"})

# Any page may call a PayGate: it is public, and no cookie of ours exists.
OPEN_TO_PAGES: Final = header_lines(
    [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
)
# On every answer of the gateway's own. A target's answer has `private, no-store` already.
CORS: Final = OPEN_TO_PAGES + b"cache-control: no-store\r\n"


@dataclass(frozen=True, slots=True)
class GateWire:
    """`path` (with the target's own query) and `lines` of the head that a gate's target is sent.

    `withheld` are the caller's headers whose names the gateway sets at this gate; `secrets` sign, where there are some.
    """

    path: bytes = b""
    lines: bytes = b""
    withheld: frozenset[bytes] = _NOTHING
    secrets: tuple[HmacSecret, ...] = field(default=(), repr=False)


def gate_wire(gate: PayGate, target: TargetUrl, public_url: str) -> GateWire:
    """What every call of this gate sends: the target's host, the gateway's own marks."""
    public = urlsplit(public_url)
    own = gateway_headers(
        slug=gate.slug, payer="", purchase_id="", request_id="", client="", scheme=public.scheme, host=public.netloc
    )
    lines = header_lines([(b"host", target.authority.encode("ascii")), *own, (b"via", VIA)])
    path = request_target(target, b"", b"")
    if not gate.secrets and not gate.target_headers:
        return GateWire(path, lines)
    owners = [(name.encode(), value.encode()) for name, value in gate.target_headers]
    withheld = frozenset(name_rules(name).normal for name, _ in owners) | (
        SIGNATURE_NAMES if gate.secrets else _NOTHING
    )
    return GateWire(path, lines + header_lines(owners), withheld, gate.secrets)


def is_preflight(call: InboundCall) -> bool:
    """Is a browser asking whether it may call? Answered by the gateway itself (contract 3.1)."""
    header = call.head.header
    return call.method == "OPTIONS" and b"origin" in header and b"access-control-request-method" in header


def preflight_lines(gate: PayGate, call: InboundCall) -> bytes:
    """The answer to a CORS preflight: the gate's methods, and whatever headers the page wants to send."""
    lines = [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", gate.allow.encode()),
        (b"access-control-max-age", str(_PREFLIGHT_SECONDS).encode()),
        (b"vary", b"Access-Control-Request-Headers"),
    ]
    wanted = call.head.header.get(b"access-control-request-headers", b"")
    if wanted:
        lines.append((b"access-control-allow-headers", wanted))
    return header_lines(lines)


def check_method(gate: PayGate, call: InboundCall) -> None:
    """Raises: METHOD_NOT_ALLOWED."""
    if not gate.allows(call.method):
        raise ApiError(Code.METHOD_NOT_ALLOWED, "this PayGate does not take this method", headers={"Allow": gate.allow})


def check_size(call: InboundCall, limit_bytes: int) -> None:
    """Raises: PAYLOAD_TOO_LARGE for a body that says it is over the limit."""
    if call.head.content_length is not None and call.head.content_length > limit_bytes:
        raise too_large(limit_bytes)


def challenge_on(opened: OpenGate, call: InboundCall) -> Challenge:
    """What a gate asks for on the network that its caller names by `X-Payment-Network`, else on its own.

    Raises: INVALID_NETWORK for a network that it is not paid on.
    """
    named = call.head.header.get(b"x-payment-network")
    if named is None:
        return opened.challenge
    try:
        return opened.offers[normalise(named.decode("latin-1")).name]
    except (ApiError, KeyError):
        details = {"field": "X-Payment-Network", "supported": list(opened.offers)}
        raise ApiError(Code.INVALID_NETWORK, "this PayGate is not paid on that network", details=details) from None


def challenge_beside(opened: OpenGate, call: InboundCall) -> Challenge:
    """What stands beside another refusal: as `challenge_on`, or what the gate asks for on its own network."""
    try:
        return challenge_on(opened, call)
    except ApiError:
        return opened.challenge


def profile_on(call: InboundCall, default: Profile) -> Profile:
    """In which form the caller wants its 402: what `Accept` names, else `default`."""
    accept = call.head.header.get(b"accept", b"")
    return profile_of(accept.decode("latin-1"), default) if b"=" in accept else default


def check_payer(wallet: str | None, payer: str) -> None:
    """The bearer of a payment is its payer. Raises: AUTH_REQUIRED without one, FORBIDDEN for another."""
    if wallet is None:
        raise ApiError(Code.AUTH_REQUIRED, "this PayGate sells to wallets that are logged in: send the payer's bearer")
    if wallet != payer:
        raise ApiError(Code.FORBIDDEN, "the bearer is not the wallet that signed the payment")


def too_large(limit_bytes: int) -> ApiError:
    """The refusal of a body over the limit."""
    return ApiError(Code.PAYLOAD_TOO_LARGE, "the request body is too large", details={"limitBytes": limit_bytes})


@dataclass(slots=True)
class Asked:
    """What the gateway makes of a request's head; kept with the head (`RequestHead.notes`).

    `lines` are the caller's header lines for the target without those `withheld`, None until they were judged.
    `unpaid` is how its requests are answered at once, `held` what is known of those that hold a credit; None while that
    is not known.
    """

    slug: str
    query: bytes
    subpath: bytes
    has_proof: bool
    lines: bytes | None = None
    withheld: frozenset[bytes] = _NOTHING
    unpaid: Unpaid | None = None
    held: Held | None = None


def asked_by(call: InboundCall) -> Asked:
    """Slug, query and what else the head says. Its first path segment is a slug."""
    head = call.head
    asked: Asked | None = head.notes
    if asked is None:
        path, _, query = head.target.partition(b"?")
        slug, slash, below = path[1:].partition(b"/")
        has_proof = b"x-payment" in head.header or bool(head.header.get(b"x-credit-token"))
        asked = head.notes = Asked(slug.decode("ascii"), query, slash + below, has_proof)
    return asked


def check_forwardable(call: InboundCall, asked: Asked, opened: OpenGate) -> None:
    """Raises: what no target could be sent, before a credit is spent for it.

    NOT_FOUND for a path below a slug that has none, INVALID_PARAMETER for one that could be read in two ways and for
    whatever else cannot be sent on; a WebSocket too.
    """
    target, wire = opened.target, opened.wire
    if asked.subpath and (target is None or not opened.gate.allow_subpaths):
        raise ApiError(Code.NOT_FOUND, "this PayGate has no paths below its slug")
    if target is None:
        return
    if asked.lines is None or asked.withheld is not wire.withheld:
        if b"sec-websocket-key" in call.head.header:
            raise invalid("Upgrade", "a PayGate forwards HTTP requests, and no WebSocket connection")
        if asked.query or asked.subpath:
            request_target(target, asked.subpath, asked.query)
        asked.lines = caller_lines(call.head.headers, wire.withheld)
        asked.withheld = wire.withheld


def target_head(
    call: InboundCall,
    opened: OpenGate,
    asked: Asked,
    purchase: Purchase,
    client: str,
    length: int | None,
    *,
    signature: bytes = b"",
) -> bytes:
    """The head of the request to the target (contract 4.7).

    `client` is the caller's address, `length` the body's, None where nobody knows it.
    """
    start, end = target_head_start(call, opened, asked, purchase), target_head_end(call, client, length, signature)
    return b"%b%b%b" % (start, call.request_id.encode(), end)


def target_head_start(call: InboundCall, opened: OpenGate, asked: Asked, purchase: Purchase) -> bytes:
    """Of `target_head`, all before the request id: the same for every call with this head."""
    assert opened.target is not None  # noqa: S101 - a file PayGate sends nothing
    if asked.withheld is not opened.wire.withheld:  # judged for the gate as it was when the call came
        lines = caller_lines(call.head.headers, opened.wire.withheld)
    else:
        lines = asked.lines or b""
    return b"%b %b HTTP/1.1\r\n%b%b%bx-request-id: " % (
        call.method.encode(),
        request_target(opened.target, asked.subpath, asked.query) if asked.query or asked.subpath else opened.wire.path,
        opened.wire.lines,
        lines,
        _buyer_lines(purchase.id, purchase.payer),
    )


def target_head_end(call: InboundCall, client: str, length: int | None, signature: bytes = b"") -> bytes:
    """Of `target_head`, all behind the request id."""
    if length is None:
        framing = b"transfer-encoding: chunked\r\n"
    elif length or call.method in _BODY_EXPECTED:
        framing = b"content-length: %d\r\n" % length
    else:
        framing = b""
    return b"\r\nx-forwarded-for: %b\r\n%b%b\r\n" % (client.encode(), signature, framing)


def signature_of(
    call: InboundCall,
    opened: OpenGate,
    asked: Asked,
    purchase: Purchase,
    body: bytes | None,
    random_bytes: Callable[[int], bytes],
) -> bytes:
    """The header lines that sign the request to the target of a gate that wants it."""
    target = opened.target
    assert target is not None  # noqa: S101 - a file PayGate signs nothing
    path = request_target(target, asked.subpath, asked.query)
    signed = SignedCall(
        method=call.method,
        target_uri=f"{target.scheme}://{target.authority}{path.decode('ascii')}",
        body=body,
        payer=shown_address(purchase.payer),
        purchase_id=purchase.id,
        slug=opened.gate.slug,
    )
    return signature_lines(signed, opened.wire.secrets, clock_ms(), random_bytes(NONCE_SIZE_BYTES))


@lru_cache(maxsize=10_000)
def _buyer_lines(purchase_id: str, payer: str) -> bytes:
    return header_lines([(b"x-payer", shown_address(payer).encode()), (b"x-purchase-id", purchase_id.encode())])


def answer_lines(head: ResponseHead) -> tuple[bytes, bool]:
    """Of a target's answer the lines that its caller gets, and whether a `Date` is among them; kept with the head."""
    lines, has_date = response_lines(head.headers)
    head.notes = answered = lines + OPEN_TO_PAGES, has_date
    return answered


def receipt_lines(start: bytes, purchase: Purchase, remaining: int) -> bytes:
    """The receipt of contract 4.6, on every answer after payment, also on a 502; `start` is `receipt_start`."""
    return b"%bx-credits-remaining: %d\r\nx-credits-total: %d\r\n" % (start, remaining, purchase.granted)


def receipt_start(purchase: Purchase) -> bytes:
    """The lines of a purchase's receipts that are the same for each of its calls."""
    return _receipt(
        purchase.id, purchase.transaction_hash or "", purchase.network, purchase.payer, purchase.value_micro
    )


@lru_cache(maxsize=10_000)
def _receipt(purchase_id: str, transaction: str, network: str, payer: str, value_micro: int) -> bytes:
    receipt = {
        "success": True,
        "transaction": transaction,
        "network": network,
        "payer": shown_address(payer),
        "amount": str(value_micro),
        "purchaseId": purchase_id,
    }
    encoded = encode_header(receipt).encode()
    return header_lines([(b"x-payment-response", encoded), (b"x-purchase-id", purchase_id.encode())])


class BoundedBody:
    """A call's body on its way to the target; `on_excess` is called once where it turns out too large."""

    __slots__ = ("_call", "_left_bytes", "_on_excess", "_sink")

    def __init__(self, call: InboundCall, limit_bytes: int, on_excess: Callable[[], None]) -> None:
        self._call = call
        self._left_bytes = limit_bytes
        self._on_excess = on_excess
        self._sink: BodySink

    def body_to(self, sink: BodySink) -> None:
        """See `call.BodySource`."""
        self._sink = sink
        self._call.body_to(self)

    def pause_body(self) -> None:
        """See `call.BodySource`."""
        self._call.pause_body()

    def resume_body(self) -> None:
        """See `call.BodySource`."""
        self._call.resume_body()

    def on_request_body(self, data: bytes) -> None:
        """See `call.BodySink`."""
        had_room = self._left_bytes >= 0
        self._left_bytes -= len(data)
        if self._left_bytes >= 0:
            self._sink.on_request_body(data)
        elif had_room:
            self._on_excess()

    def on_request_end(self) -> None:
        """See `call.BodySink`."""
        if self._left_bytes >= 0:
            self._sink.on_request_end()


def spent_elsewhere(purchase: Purchase) -> ApiError:
    """The refusal of a payment that was claimed at another PayGate (contract 4.3)."""
    details = {"reason": "duplicate_settlement", "transaction": purchase.transaction_hash or ""}
    message = with_advice("this payment was presented at another PayGate", purchase.payer)
    return payment_error(Code.NONCE_ALREADY_USED, message, details=details)


def exhausted(payer: str) -> ApiError:
    """What is said of a payment whose credits are used up."""
    message = with_advice("the credits of this payment are used up; sign a new payment", payer)
    return ApiError(Code.CREDITS_EXHAUSTED, message)
