"""Reading what `/verify` and `/settle` are asked (specification 4.4; contract 5.1, 5.2): syntax, never a judgement.

What is missing or unreadable is a 400; an unsupported version, scheme, network or asset is not, because callers expect
it as a reason. So is a payload of a scheme or network that we do not know: it is not even read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.core.api.errors import invalid, missing
from tollkeeper.core.families import row_of
from tollkeeper.core.http.prefer_header import preferred_wait_seconds
from tollkeeper.core.limits import ACCEPT_WAIT_SECONDS, SETTLE_HOLD_SECONDS, SETTLE_WAIT_SECONDS
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.fast_json import read_plain_request
from tollkeeper.core.x402.version1 import (
    X402_VERSION,
    Requirements,
    member_object,
    parse_payment,
    parse_payment_kind,
    parse_requirements,
    payment_body,
    requirements_body,
)
from tollkeeper.hub.settlement.requests import (
    CallerPresence,
    RequestedPayment,
    SettleOptions,
    WaitingRequest,
    canonical_hash,
)

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.api.gateway_signature import GatewaySignature, Headers
    from tollkeeper.hub.settlement.requests import Asker

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


def parse_versions(body: dict[str, object]) -> tuple[int, int]:
    """Return the request's version and its payment's. Raises: MISSING_PARAMETER, INVALID_PARAMETER."""
    version = _integer(body, "x402Version", "")
    payment = member_object(body, "paymentPayload")
    member_object(body, "paymentRequirements")
    return version, _integer(payment, "x402Version", "paymentPayload.")


def parse_asked(body: dict[str, object]) -> RequestedPayment:
    """Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_NETWORK, INVALID_ADDRESS, INVALID_AMOUNT.

    Of version 2 the requirements are for the payment's network: whoever asks has looked (`parse_kind`).
    """
    _, _, required = parse_kind(body)
    version, shown = _integer(body, "x402Version", ""), member_object(body, "paymentPayload")
    if version == version2.VERSION:
        paid = version2.parse_payment(shown, "paymentPayload.")
        return RequestedPayment(version, paid, replace(required, network=paid.network))
    return RequestedPayment(version, parse_payment(shown, "paymentPayload."), required)


def parse_kind(body: dict[str, object]) -> tuple[str, str, Requirements]:
    """Scheme and network of the payment, and what is required: all that there is to read of a kind that is not ours.

    In version 2 networks are as they were spelled. Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_AMOUNT.
    """
    version, payment = _integer(body, "x402Version", ""), member_object(body, "paymentPayload")
    if version == version2.VERSION:
        scheme, network = version2.parse_payment_kind(payment, "paymentPayload.")
        resource = payment.get("resource")
        return scheme, network, version2.parse_requirements(member_object(body, "paymentRequirements"), resource)
    _, scheme, network = parse_payment_kind(payment, "paymentPayload.")
    return scheme, network, parse_requirements(member_object(body, "paymentRequirements"))


def _integer(body: dict[str, object], name: str, path: str) -> int:
    value = body.get(name)
    if value is None:
        raise missing(path + name)
    if type(value) is not int:
        raise invalid(path + name, f"{path}{name} must be an integer")
    return value


def read_plain(data: bytes) -> RequestedPayment | None:
    """Read a request in plain spelling; None if its body has to be parsed."""
    plain = read_plain_request(data)
    return None if plain is None else RequestedPayment(*plain)


def parse_settle_options(body: dict[str, object], asked: RequestedPayment | None, headers: Headers) -> SettleOptions:
    """`asked` is None for a kind of payment that is not ours. Raises: INVALID_PARAMETER."""
    purchase_data = body.get("purchaseData")
    if purchase_data is not None and not isinstance(purchase_data, dict):
        raise invalid("purchaseData", "purchaseData must be an object")
    about: dict[str, object] = {"purchaseData": purchase_data}
    if asked is not None:
        about |= {"payment": payment_body(asked.payment), "requirements": requirements_body(asked.requirements)}
    version = X402_VERSION if asked is None else asked.x402_version
    return parse_options(body, headers, about, purchase_data, version)


def parse_options(
    body: dict[str, object],
    headers: Headers,
    about: dict[str, object],
    purchase_data: dict[str, object] | None = None,
    version: int = X402_VERSION,
) -> SettleOptions:
    """Read what settle and transfer have in common; `about` is the rest of the request. Raises: INVALID_PARAMETER."""
    confirm = _flag(body, "confirm")
    use_db_id = _flag(body, "useDbId")
    wait_seconds = _wait_seconds(headers, version, confirm=confirm)
    return SettleOptions(
        x402_version=version,
        confirm=confirm,
        use_db_id=use_db_id,
        wait_seconds=wait_seconds,
        patience_seconds=_longest_wait_seconds(version),
        receipt_seconds=wait_seconds if confirm else min(wait_seconds, ACCEPT_WAIT_SECONDS),
        idempotency_key=_idempotency_key(headers),
        fingerprint=canonical_hash({**about, "confirm": confirm, "useDbId": use_db_id}),
        purchase_data=purchase_data,
    )


def _flag(body: dict[str, object], name: str) -> bool:
    value = body.get(name, False)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(name, f"{name} must be true or false")
    return value


def _idempotency_key(headers: Headers) -> str | None:
    value = headers.get(b"idempotency-key")
    if value is None:
        return None
    key = value.decode("latin-1")
    if _KEY.fullmatch(key) is None:
        raise invalid("Idempotency-Key", "Idempotency-Key must be 1 to 255 printable ASCII characters")
    return key


def _wait_seconds(headers: Headers, version: int, *, confirm: bool) -> int:
    """Return how long to wait for an outcome (contract 5.2, 10.2); `Prefer: wait=N` only shortens it (RFC 7240)."""
    is_long = confirm or version == version2.VERSION
    longest = _longest_wait_seconds(version) if is_long else ACCEPT_WAIT_SECONDS
    preferred = preferred_wait_seconds(headers.get(b"prefer", b"").decode("latin-1"))
    return longest if preferred is None else min(longest, preferred)


def _longest_wait_seconds(version: int) -> int:
    return SETTLE_HOLD_SECONDS if version == version2.VERSION else SETTLE_WAIT_SECONDS


# Does anybody wait for a settlement (contract 5.2; security 5: abandoned, never sent)? A server that settles serves
# only what it is told of. So for who has left nothing is begun, nor for who could be told of no outcome any more: the
# buyer would pay, and get nothing. What is signed goes its way, whoever leaves; its success is then nobody's yet, and
# goes to who asks again. Who named its request (`Idempotency-Key`) may leave: it asks again and is told the same. A
# trusted gateway's signature says itself until when its request may be begun.


class Arrival(NamedTuple):
    """Moment in which a request came: by the event loop's clock, and Unix time."""

    loop_seconds: float
    unix_ms: int


def waiting_request(
    scope: HTTPScope,
    options: SettleOptions,
    signature: GatewaySignature,
    payment: Payment,
    asker: Asker,
    arrival: Arrival,
) -> WaitingRequest:
    """Name the owner of the request's idempotency key, so that nobody can take another's, and its caller.

    Our own listener knows whether the caller has left; within the program nobody does. A caller that may have left is
    taken for one that did: it is told that nothing was started, and asks again if it is there all the same. Reverse
    proxies speak HTTP/1.0, and close their connection when their own caller leaves (contract 5.2).
    """
    until_ms = None if signature.is_trusted else arrival.unix_ms + options.patience_seconds * 1000
    has_left = scope["state"].get("may_have_left") if options.idempotency_key is None else None
    gateway, payer = signature.owner_of(options.purchase_data), row_of(payment).payer_of(payment) or ""
    return WaitingRequest(
        options=options,
        key_owner=gateway or payer,
        key_other=_gateway_named(options) if gateway is None else payer,
        is_gateway_s=gateway is not None,
        deadline=arrival.loop_seconds + options.wait_seconds,
        receipt_deadline=arrival.loop_seconds + options.receipt_seconds,
        expires_seconds=signature.expires_seconds,
        caller=CallerPresence(until_ms, has_left),
        asker=asker,
    )


def _gateway_named(options: SettleOptions) -> str:
    """Return the gateway that the request says it is of, as a name of a key's owner may be; "" where it is none."""
    named = (options.purchase_data or {}).get("gateway")
    is_name = isinstance(named, str) and named.isascii() and named.isprintable() and " " not in named
    return str(named) if is_name else ""
