"""Does anybody wait for a settlement (contract 5.2; security 5: abandoned, never sent)?

A server that settles serves only what it is told of. So for who has left nothing is begun, nor for who could be told of
no outcome any more: the buyer would pay, and get nothing. What is signed goes its way, whoever leaves; its success
is then nobody's yet, and goes to who asks again. Who named its request (`Idempotency-Key`) may leave: it asks again and
is told the same. A trusted gateway's signature says itself until when its request may be begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.hub.settlement.requests import CallerPresence

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from tollkeeper.hub.api.gateway_signature import GatewaySignature
    from tollkeeper.hub.settlement.requests import SettleOptions


def caller_of(scope: HTTPScope, options: SettleOptions, signature: GatewaySignature, arrived_ms: int) -> CallerPresence:
    """Return who made a request. Our own listener knows whether the caller has left; within the program nobody does.

    A caller that may have left is taken for one that did: it is told that nothing was started, and asks again if it is
    there all the same. Reverse proxies speak HTTP/1.0, and close their connection when their own caller leaves.
    """
    until_ms = None if signature.is_trusted else arrived_ms + options.patience_seconds * 1000
    return CallerPresence(until_ms, scope["state"].get("may_have_left") if options.idempotency_key is None else None)
