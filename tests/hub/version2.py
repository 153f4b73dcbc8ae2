"""The requests of tests in x402 version 2, as today's official servers write them."""

from __future__ import annotations

from typing import Any, Final

NAMES: Final = {
    "base-sepolia": "eip155:84532",
    "solana-devnet": "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1",
    "solana": "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1",
}


def in_version_2(body: dict[str, Any]) -> dict[str, Any]:
    """The same payment and requirements, with what else the body has; nulls as pydantic writes them."""
    payment, required = body["paymentPayload"], body["paymentRequirements"]
    offer = {
        "scheme": required["scheme"],
        "network": NAMES[required["network"]],
        "amount": required["maxAmountRequired"],
        "asset": required["asset"],
        "payTo": required["payTo"],
        "maxTimeoutSeconds": 300,
        "extra": {**required["extra"], "paymentFlow": "upfront"},
    }
    resource = {"url": required["resource"], "description": None, "mimeType": None, "serviceName": None, "tags": None}
    return {
        **body,
        "x402Version": 2,
        "paymentPayload": {
            "x402Version": 2,
            "payload": payment["payload"],
            "accepted": offer,
            "resource": resource,
            "extensions": None,
        },
        "paymentRequirements": offer,
    }


def with_offer(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The request about another offer, which its payment says to take."""
    offer = {**body["paymentRequirements"], **changes}
    return {
        **body,
        "paymentPayload": {**body["paymentPayload"], "accepted": offer},
        "paymentRequirements": offer,
    }
