"""The header lines that the gateway writes: to the caller and to the target.

Contract 4.1 (CORS), 4.6 (receipt) and 4.7 (what a target is told). Whatever is the same for every call of a gate or
of a purchase is encoded once. Decides nothing about payments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http import heads
from tollkeeper.core.http.forwarding import header_lines
from tollkeeper.core.paygates.locations import LOCATION_NAMES
from tollkeeper.core.paygates.target_signing import (
    NONCE_SIZE_BYTES,
    SignedCall,
    signature_lines,
)
from tollkeeper.core.wallets import shown_address
from tollkeeper.core.x402.version1 import encode_header
from tollkeeper.core.x402.version2 import SETTLEMENT_PENDING, receipt_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.http.heads import ResponseHead
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.call.request_facts import RequestFacts
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.storage.ledger.purchase_rows import Purchase

_EXPOSED: Final = (
    b"X-Payment-Response, X-Credits-Remaining, X-Credits-Total, X-Purchase-Id, X-Credit-Token, X-Request-Id, "
    b"X402-Version, Retry-After, RateLimit, RateLimit-Policy, PAYMENT-REQUIRED, PAYMENT-RESPONSE"
)
_PREFLIGHT_SECONDS: Final = 600
PAYMENT_REQUIRED_STATUS: Final = 402
_BODY_EXPECTED: Final = frozenset({"PATCH", "POST", "PUT"})

# Any page may call a PayGate: it is public, and no cookie of ours exists.
_ANY_PAGE: Final = b"access-control-allow-origin: *\r\n"
_EXPOSE: Final = b"access-control-expose-headers: " + _EXPOSED
_EXPOSED_NAMES: Final = frozenset(_EXPOSED.lower().split(b", "))


def _exposed(names: tuple[bytes, ...]) -> bytes:
    """Return the lines by which a page may read an answer whose headers have these names, and what is always there."""
    also = [name for name in dict.fromkeys(names) if name not in _EXPOSED_NAMES]
    return b"%b%b\r\n" % (_ANY_PAGE + _EXPOSE, b"".join([b", " + name for name in also]))


_remembered_exposed = lru_cache(maxsize=1024)(_exposed)


# On every answer of the gateway's own. A target's answer has `private, no-store` already.
CORS: Final = _ANY_PAGE + _EXPOSE + b"\r\ncache-control: no-store\r\n"


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


def target_head(
    call: InboundCall,
    opened: OpenGate,
    asked: RequestFacts,
    purchase: Purchase,
    client: str,
    length: int | None,
    *,
    signature: bytes = b"",
) -> bytes:
    """The head of the request to the target (contract 4.7).

    `client` is the caller's address, `length` the body's, None where nobody knows it.
    """
    head, shape = call.head, call.head.shape
    connection = b"" if shape.is_plain else head.header.get(b"connection", b"")
    if length is None:
        framing = b"transfer-encoding: chunked\r\n"
    elif length or call.method in _BODY_EXPECTED:
        framing = b"content-length: %d\r\n" % length
    else:
        framing = b""
    return b"".join(
        (
            call.method.encode(),
            b" ",
            asked.target_path(opened),
            b" HTTP/1.1\r\n",
            opened.wire.lines,
            heads.passed_on(shape, head.values, connection, opened.wire.withheld)[0],
            _buyer_lines(purchase.id, purchase.payer),
            b"x-request-id: ",
            call.request_id.encode(),
            b"\r\nx-forwarded-for: ",
            client.encode(),
            b"\r\n",
            signature,
            framing,
            b"\r\n",
        )
    )


def signature_of(
    call: InboundCall,
    opened: OpenGate,
    asked: RequestFacts,
    purchase: Purchase,
    body: bytes | None,
    random_bytes: Callable[[int], bytes],
) -> bytes:
    """The header lines that sign the request to the target of a gate that wants it."""
    target = opened.target
    assert target is not None  # noqa: S101 - a file PayGate signs nothing
    signed = SignedCall(
        method=call.method,
        target_uri=f"{target.scheme}://{target.authority}{asked.target_path(opened).decode('ascii')}",
        body=body,
        payer=shown_address(purchase.payer),
        purchase_id=purchase.id,
        slug=opened.gate.slug,
    )
    return signature_lines(signed, opened.wire.secrets, clock_ms(), random_bytes(NONCE_SIZE_BYTES))


_PURCHASES_MAX: Final = 10_000  # 1.5 KB each, for both caches together


@lru_cache(maxsize=_PURCHASES_MAX)
def _buyer_lines(purchase_id: str, payer: str) -> bytes:
    return header_lines([(b"x-payer", shown_address(payer).encode()), (b"x-purchase-id", purchase_id.encode())])


def answer_lines(call: InboundCall, opened: OpenGate, asked: RequestFacts, head: ResponseHead) -> tuple[bytes, bool]:
    """Return what a target's head gives to its caller's, and whether a `Date` is among it.

    A page may read all of it, whatever the target thinks of pages. Raises: UPSTREAM_INVALID for a target's own 402, by
    which a client would pay once more, and for a location that cannot be told (`core.paygates.locations`).
    """
    if head.status == PAYMENT_REQUIRED_STATUS:
        raise ApiError(
            Code.UPSTREAM_INVALID,
            "the target itself asks for payment (402), which its PayGate cannot pass on",
            details={"reason": "target_asks_for_payment"},
        )
    values, locations = head.values, opened.wire.locations
    if locations is not None and not LOCATION_NAMES.isdisjoint(head.header):
        told = locations.told(head.headers, call.method, head.status, asked.target_path(opened))
        values = [value for _, value in told]
    lines, names = heads.answer_lines(head, values)
    return lines + (_remembered_exposed if head.shape.is_kept else _exposed)(names), b"date" in names


@lru_cache(maxsize=1024)  # the gates that are asked most
def required_line(header: str) -> bytes:
    """Return the line of a 402 that clients of x402 version 2 read (contract 10.1)."""
    return b"payment-required: %b\r\n" % header.encode()


def receipt_line(presented: PresentedPayment | None, purchase: Purchase) -> bytes:
    """Return the receipt of a payment of version 2 (contract 10.1), and nothing for any other proof.

    Where another payment bought the credit, its transaction is named, and that nothing was paid now.
    """
    if presented is None or presented.payment.accepted is None:
        return b""
    has_bought = presented.key.nonce == purchase.nonce
    transaction, payer = purchase.transaction_hash or "", shown_address(purchase.payer)
    receipt = receipt_of(purchase.network, payer, transaction, amount="" if has_bought else "0")
    return b"payment-response: %b\r\n" % encode_header(receipt).encode()


def pending_line(presented: PresentedPayment | None, transaction: str) -> bytes:
    """Return the same while nobody knows yet what became of the payment."""
    if presented is None or presented.accepted is None:
        return b""
    key = presented.key
    receipt = receipt_of(key.network, shown_address(key.payer), transaction, error_reason=SETTLEMENT_PENDING)
    return b"payment-response: %b\r\n" % encode_header(receipt).encode()


def receipt_lines(purchase: Purchase, remaining: int) -> bytes:
    """Return the receipt of contract 4.6, which stands on every answer after payment, also on a 502."""
    start = _receipt(
        purchase.id, purchase.transaction_hash or "", purchase.network, purchase.payer, purchase.value_micro
    )
    return b"%b%d\r\nx-credits-total: %d\r\n" % (start, remaining, purchase.granted)


@lru_cache(maxsize=_PURCHASES_MAX)
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
    lines = header_lines([(b"x-payment-response", encoded), (b"x-purchase-id", purchase_id.encode())])
    return lines + b"x-credits-remaining: "
