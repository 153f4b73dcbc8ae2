"""One call of a PayGate as it came in, and the headers that every answer to one carries (contract 4.1, 4.6)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.evm import checksum_address
from tollkeeper.core.forwarding import request_headers, request_target
from tollkeeper.core.wire import encode_header
from tollkeeper.gateway.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.core.addresses import TargetUrl
    from tollkeeper.core.paygates import PayGate
    from tollkeeper.storage.purchases import Purchase

Headers = list[tuple[bytes, bytes]]

_EXPOSED: Final = (
    b"X-Payment-Response, X-Credits-Remaining, X-Credits-Total, X-Purchase-Id, X-Credit-Token, X-Request-Id, "
    b"X402-Version, Retry-After"
)
_PREFLIGHT_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Call:
    """What the gateway reads of a request. `header` has the single headers it asks for; `headers` is all, raw."""

    method: str
    query: bytes
    headers: list[tuple[bytes, bytes]] = field(repr=False)
    header: dict[str, str] = field(repr=False)
    payment: list[bytes] = field(repr=False)
    credit_token: str = field(repr=False)
    content_length: int | None
    client: str
    request_id: str

    @classmethod
    def of(cls, scope: HTTPScope) -> Call:
        """The call in an ASGI scope."""
        headers = list(scope["headers"])
        header: dict[str, str] = {}
        payment: list[bytes] = []
        for name, value in headers:
            if name == b"x-payment":
                payment.append(value)
            else:
                header.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        length = header.get("content-length", "")
        client = scope.get("client")
        return cls(
            method=scope["method"],
            query=scope["query_string"],
            headers=headers,
            header=header,
            payment=payment,
            credit_token=header.get("x-credit-token", ""),
            content_length=_content_length(header, length),
            client=client[0] if client else "",
            request_id=scope["state"]["request_id"],
        )

    @property
    def accept(self) -> str:
        """The `Accept` header."""
        return self.header.get("accept", "")

    @property
    def is_preflight(self) -> bool:
        """Is a browser asking whether it may call? Answered by the gateway itself (contract 3.1)."""
        return self.method == "OPTIONS" and "origin" in self.header and "access-control-request-method" in self.header

    def check_method(self, gate: PayGate) -> None:
        """Raises: METHOD_NOT_ALLOWED."""
        if not gate.allows(self.method):
            raise ApiError(
                Code.METHOD_NOT_ALLOWED, "this PayGate does not take this method", headers={"Allow": gate.allow}
            )

    def check_size(self, limit_bytes: int) -> None:
        """Raises: PAYLOAD_TOO_LARGE for a body that says it is over the limit."""
        if self.content_length is not None and self.content_length > limit_bytes:
            raise ApiError(Code.PAYLOAD_TOO_LARGE, "the request body is too large", details={"limitBytes": limit_bytes})

    @property
    def has_proof(self) -> bool:
        """Is there a payment or a credit token?"""
        return bool(self.payment or self.credit_token)

    def check_forwardable(self, target: TargetUrl) -> None:
        """Raises: INVALID_PARAMETER for what no target could be sent; before a credit is spent for it."""
        request_target(target, b"", self.query)
        request_headers(self.headers, (), target.authority)

    @asynccontextmanager
    async def reading(self, receive: Receive, limit_bytes: int) -> AsyncIterator[Inbox]:
        """The request's body, read ahead until the call is over."""
        inbox = Inbox(receive, limit_bytes)
        try:
            yield inbox
        finally:
            inbox.close()


def _content_length(header: dict[str, str], length: str) -> int | None:
    if length.isascii() and length.isdigit():
        return int(length)
    return None if "transfer-encoding" in header else 0


def cors() -> Headers:
    """Any page may call a PayGate: it is public, and no cookie of ours exists."""
    return [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-expose-headers", _EXPOSED),
        (b"cache-control", b"no-store"),
    ]


async def preflight(send: Send, gate: PayGate, call: Call) -> None:
    """Answers a CORS preflight: the gate's methods, and whatever headers the page wants to send."""
    wanted = call.header.get("access-control-request-headers", "")
    headers = [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", gate.allow.encode()),
        (b"access-control-max-age", str(_PREFLIGHT_SECONDS).encode()),
        (b"vary", b"Access-Control-Request-Headers"),
    ]
    if wanted:
        headers.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def receipt_headers(purchase: Purchase) -> Headers:
    """The receipt of contract 4.6, on every answer after payment, also on a 502."""
    receipt = {
        "success": True,
        "transaction": purchase.transaction_hash or "",
        "network": purchase.network,
        "payer": checksum_address(purchase.payer),
        "amount": str(purchase.value_micro),
        "purchaseId": purchase.id,
    }
    return [
        (b"x-payment-response", encode_header(receipt).encode()),
        (b"x-credits-remaining", str(purchase.remaining).encode()),
        (b"x-credits-total", str(purchase.granted).encode()),
        (b"x-purchase-id", purchase.id.encode()),
    ]
