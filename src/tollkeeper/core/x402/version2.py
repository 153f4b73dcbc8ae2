"""The x402 version 2 wire: what a 402 offers, how a payment is shown, what a facilitator is asked (contract 10).

Version 2 says the same in other words: networks by their CAIP-2 names, `amount` for `maxAmountRequired`, and a payment
repeats the offer that it takes (`accepted`). It is read into the types of `version1`, under our names of networks, so
that one authorization shown in both versions is one payment with one identity. Nulls are members that are not there:
clients built on pydantic send them.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.core.api.errors import ApiError, Code, failed_check, invalid, payment_error
from tollkeeper.core.api.strict_json import parse_json, parse_json_around
from tollkeeper.core.json_types import JsonMapping, JsonObject
from tollkeeper.core.limits import CHALLENGE_TIMEOUT_SECONDS
from tollkeeper.core.networks import CAIP2_NAMES, normalise
from tollkeeper.core.x402 import version1
from tollkeeper.core.x402.version1 import X402_VERSION, Payment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.x402.version1 import Requirements

VERSION: Final = 2
PAYMENT_REQUIRED_HEADER: Final = "PAYMENT-REQUIRED"
PAYMENT_HEADER: Final = "PAYMENT-SIGNATURE"
# The headers that a payment of either version may come in, with their names in messages. The first one counts.
PAYMENT_HEADERS: Final = {b"payment-signature": PAYMENT_HEADER, b"x-payment": "X-Payment"}
RECEIPT_HEADER: Final = "PAYMENT-RESPONSE"
SETTLEMENT_PENDING: Final = "settlement_pending"
# nginx reads a whole head into 4 kilobytes, unless told otherwise; clients of the field stop at 8,190 for one header.
HEADER_LENGTH_MAX: Final = 2600
# Facilitators that keep catalogues refuse a description of more (somewhere between 480 and 523).
DESCRIPTION_LENGTH_MAX: Final = 480
_ERROR_LENGTH_MAX: Final = 200
NOTHING_PAID: Final = "Payment required"
# Of a payment that takes no offer of ours, in the reference server's words.
NO_OFFER: Final = "No matching payment requirements"
# A seller that is paid before it serves says so; clients that know no other flow than theirs do not pay it.
_UPFRONT: Final = {"paymentFlow": "upfront"}


@dataclass(frozen=True, slots=True)
class Resource:
    """The thing sold, as a 402 names it: an absolute URL, and what is at it."""

    url: str
    description: str = ""
    mime_type: str = ""


def offer_of(requirements: Requirements) -> JsonObject:
    """Write requirements as an entry of `accepts`: the same in every 402, because a payment must repeat it."""
    return {
        "scheme": requirements.scheme,
        "network": normalise(requirements.network).caip2,
        "amount": str(requirements.amount),
        "asset": requirements.asset,
        "payTo": requirements.pay_to,
        "maxTimeoutSeconds": requirements.max_timeout_seconds,
        "extra": {**requirements.extra, **_UPFRONT},
    }


def is_accepted(offer: JsonMapping, accepted: JsonMapping) -> bool:
    """Tell whether a payment takes this offer, by the reference server's rule.

    Every member is equal, to the letter; `extra` may have more than the offer has.
    """
    said = {name: value for name, value in accepted.items() if value is not None}
    extra = said.pop("extra", {})
    if said != {name: value for name, value in offer.items() if name != "extra"} or not isinstance(extra, dict):
        return False
    return all(extra.get(name) == value for name, value in offer["extra"].items())


class TakenOffer(NamedTuple):
    """The offer of a seller as it stands, and what a payment says to take."""

    offer: JsonMapping
    accepted: JsonMapping

    def is_at(self, amount: int) -> bool:
        """Tell whether the payment takes this offer, or one that was as it is but for its amount."""
        return is_accepted({**self.offer, "amount": str(amount)}, self.accepted)

    def refusal(self) -> ApiError:
        """Refuse a payment that takes no offer of ours."""
        details = failed_check(NO_OFFER, "accepted", self.offer, self.accepted)
        return payment_error(Code.PAYMENT_INVALID, "the payment takes an offer that is none of ours", details=details)


def payment_required(resource: Resource, accepts: Sequence[JsonMapping], error: str) -> str:
    """Encode the `PAYMENT-REQUIRED` header of a 402, within HEADER_LENGTH_MAX.

    The description gives way: what is sold and for how much stands in the rest.
    """

    def encoded(description: str) -> str:
        described = {"description": description, "mimeType": resource.mime_type}
        body = {
            "x402Version": VERSION,
            "error": _cut(error, _ERROR_LENGTH_MAX),
            "resource": {"url": resource.url, **{name: text for name, text in described.items() if text}},
            "accepts": accepts,
        }
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        return base64.b64encode(text.encode()).decode()

    length = min(len(resource.description), DESCRIPTION_LENGTH_MAX)
    header = encoded(_cut(resource.description, length))
    while length and len(header) > HEADER_LENGTH_MAX:
        # A character is at most four bytes, which are five and a third of base64: so many are too many in any case.
        length -= min(length, max(1, (len(header) - HEADER_LENGTH_MAX) // 6))
        header = encoded(_cut(resource.description, length))
    return header


def description_in(header: str) -> str:
    """Return the description that a `PAYMENT-REQUIRED` header of ours shows."""
    description: str = json.loads(base64.b64decode(header))["resource"].get("description", "")
    return description


def error_of(refusal: ApiError) -> str:
    """Name a refusal as the reference server does: a payment that nobody can read is none, others have their reason."""
    details = refusal.details or {}
    reason, field = details.get("reason"), details.get("field")
    if reason == "invalid_x402_version":
        return f"Unsupported x402 version: {details['found']}"
    if reason == "invalid_payload" and field == "x402Version":
        return "Unsupported x402 version: undefined"
    if reason == "invalid_payload" and field in PAYMENT_HEADERS.values():
        return NOTHING_PAID
    return str(reason or refusal.code.value)


def _cut(text: str, length: int) -> str:
    """At most so many characters, the last of which shows that there were more."""
    return text if len(text) <= length else text[: max(0, length - 1)] + "…" * min(length, 1)


def receipt_of(network: str, payer: str, transaction: str, *, error_reason: str = "", amount: str = "") -> JsonObject:
    """Write the receipt of the `PAYMENT-RESPONSE` header: a success unless there is a reason why not."""
    receipt: JsonObject = {
        "success": not error_reason,
        "payer": payer,
        "transaction": transaction,
        "network": normalise(network).caip2,
    }
    if amount:
        receipt["amount"] = amount
    if error_reason:
        receipt["errorReason"] = error_reason
    return receipt


def decode_payment_header(header: bytes, name: str) -> Payment:
    """Read the payment in a header of that name, of the version that it says itself.

    Raises: PAYMENT_INVALID, as `version1.decode_payment_header`.
    """
    return version1.read_payment_header(header, name, _read_of_either_version)


def two_payments() -> ApiError:
    """Refuse a request that shows different payments in the two headers."""
    return invalid("X-Payment", "X-Payment and PAYMENT-SIGNATURE hold different payments: send one of them")


def _read_of_either_version(data: bytes) -> Payment:
    try:
        body = version1.as_object(parse_json(data))
    except ValueError:
        # A payment of version 2 repeats the extensions of a server's 402, which may hold anything.
        body = version1.as_object(parse_json_around(data))
        if body.get("x402Version") != VERSION:
            raise
    return parse_payment(body) if body.get("x402Version") == VERSION else version1.parse_payment(body)


def parse_payment(body: JsonObject, path: str = "") -> Payment:
    """Read a payment payload of version 2. `resource` and `extensions` are not judged.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_NETWORK, INVALID_ADDRESS, INVALID_AMOUNT; an unsupported
    scheme is not an error here.
    """
    scheme, network = parse_payment_kind(body, path)
    name = CAIP2_NAMES.get(network)
    if name is None:
        supported = {"field": f"{path}accepted.network", "supported": sorted(CAIP2_NAMES)}
        raise ApiError(Code.INVALID_NETWORK, "network is not supported", details=supported)
    payload = version1.parse_payload(version1.member_object(body, "payload", path), f"{path}payload.")
    return Payment(VERSION, scheme, name, payload, version1.member_object(body, "accepted", path))


def parse_payment_kind(body: JsonObject, path: str = "") -> tuple[str, str]:
    """Read scheme and network (CAIP-2) of the offer that a payment takes.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER.
    """
    accepted = {**version1.member_object(body, "accepted", path), "x402Version": VERSION}
    _, scheme, network = version1.parse_payment_kind(accepted, f"{path}accepted.")
    return scheme, network


def parse_requirements(body: JsonObject, resource: object) -> Requirements:
    """Read PaymentRequirements of version 2, and the payload's `resource` beside them; `network` as it was spelled.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_AMOUNT.
    """
    timeout = body.get("maxTimeoutSeconds")
    said = {
        **body,
        "maxTimeoutSeconds": CHALLENGE_TIMEOUT_SECONDS if timeout is None else timeout,
        "resource": resource.get("url") if isinstance(resource, dict) else None,
    }
    return version1.parse_requirements(said, "amount")


def facilitator_request(payment: Payment, requirements: Requirements) -> JsonObject:
    """Write what a facilitator of version 2 is asked, of a payment that was shown in either version.

    The offer is named once more as the one that the payer took: what counts is what the payer signed.
    """
    offer = offer_of(requirements)
    shown = {"x402Version": VERSION, "payload": payment.payload.body(), "accepted": offer}
    if requirements.resource:
        shown["resource"] = {"url": requirements.resource}
    return {"x402Version": VERSION, "paymentPayload": shown, "paymentRequirements": offer}


def in_version_1(payment: Payment) -> Payment:
    """Return the payment as version 1 shows it, for whoever is asked in that."""
    if payment.x402_version != VERSION:
        return payment
    return replace(payment, x402_version=X402_VERSION, network=normalise(payment.network).v1_name, accepted=None)


def spoken_version(payment: Payment) -> int:
    """Name the version that a payment's form is judged by: its own, where that is one of ours."""
    return VERSION if payment.x402_version == VERSION else X402_VERSION


def shown_network(payment: Payment) -> str:
    """Spell a payment's network as its sender did."""
    return payment.network if payment.x402_version == X402_VERSION else normalise(payment.network).caip2
