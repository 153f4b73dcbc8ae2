"""Offers of a 402 to a buyer, and how a payment that takes an offer is sent, in both versions (contract 4.1, 10.1).

Version 2's offers come first: they are in the header `PAYMENT-REQUIRED`, version 1's in the body. The signer decides
whether an offer is acceptable.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.networks import CAIP2_NAMES, NETWORKS
from tollkeeper.core.x402.version1 import X402_VERSION, Payment, encode_header, encode_payment_header
from tollkeeper.core.x402.version2 import PAYMENT_HEADER, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.x402.version1 import EvmPayload, SolanaPayload

# How a seller of version 2 may have the payment made and carried out, of what is signed here.
_FLOWS: Final = (None, "authorization", "upfront")
_METHODS: Final = (None, "eip3009")


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to pay. `requirements` are spelled as version 1 does; `accepted` is version 2's entry, to be repeated.

    Both are as the seller sent them: nothing in them was checked. `resource`: what version 2 says is sold.
    """

    requirements: JsonObject
    accepted: JsonMapping | None = None
    resource: JsonMapping | None = None

    def shown(self, payload: EvmPayload | SolanaPayload) -> dict[str, str]:
        """Return the header of a payment that takes this offer."""
        if self.accepted is None:
            asked = self.requirements
            payment = Payment(X402_VERSION, asked["scheme"], asked["network"], payload)
            return {"X-Payment": encode_payment_header(payment)}
        body: JsonObject = {"x402Version": VERSION, "payload": payload.body(), "accepted": self.accepted}
        if self.resource is not None:
            body["resource"] = self.resource
        return {PAYMENT_HEADER: encode_header(body)}


def offers_of(headers: Mapping[str, str], body: bytes) -> list[Offer]:
    """The offers of a 402 that could be read; `headers` by their names in lower case."""
    try:
        shown = base64.b64decode(headers.get("payment-required", ""), validate=True)
    except ValueError:
        shown = b""
    required, former = read_object(shown), read_object(body)
    offers: list[Offer] = []
    if required.get("x402Version") == VERSION:
        offers.extend(_of_version_2(required))
    if former.get("x402Version") == X402_VERSION:
        offers.extend(Offer(entry) for entry in _entries(former))
    return offers


def _of_version_2(required: JsonMapping) -> Iterator[Offer]:
    resource = required.get("resource")
    for entry in _entries(required):
        network, extra = entry.get("network"), entry.get("extra")
        name = CAIP2_NAMES.get(network) if isinstance(network, str) else None
        extra = extra if isinstance(extra, dict) else {}
        if name is None or extra.get("paymentFlow") not in _FLOWS or extra.get("assetTransferMethod") not in _METHODS:
            continue
        said = {**entry, "network": NETWORKS[name].v1_name, "maxAmountRequired": entry.get("amount")}
        yield Offer(said, entry, resource if isinstance(resource, dict) else None)


def _entries(said: JsonMapping) -> Iterator[JsonObject]:
    offered = said.get("accepts")
    if isinstance(offered, list):
        yield from (entry for entry in offered if isinstance(entry, dict))


def read_object(data: bytes) -> JsonObject:
    """The JSON object in these bytes; empty where there is none."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
