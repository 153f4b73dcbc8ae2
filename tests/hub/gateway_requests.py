"""Gateways that the hub under test trusts, and what they and others sign (RFC 9421)."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment
from tollkeeper.core.http.signatures import Algorithm, Parameters, SigningKey, content_digest, sign

KEY = SigningKey("gateway-1", Algorithm.ED25519, bytes(range(32)))
STRANGER = SigningKey("gateway-2", Algorithm.ED25519, bytes(range(1, 33)))
OTHER = SigningKey("gateway-3", Algorithm.ED25519, bytes(range(2, 34)))
OTHER_URL = "https://other.example"
IMPOSTOR = SigningKey("gateway-1", Algorithm.ED25519, bytes(range(1, 33)))
COVERED = ("@method", "@authority", "@path", "content-digest", "idempotency-key")
AUTHORITY = "hub.example"
DATA = {
    "gateway": "https://gate.example",
    "paygateId": 7,
    "slug": "abc",
    "title": "",
    "price": "0.01",
    "credits": 10,
    "purchaseId": "p-1",
}
TRUSTED = {
    "https://gate.example": {KEY.key_id: KEY.verifying_key().material},
    OTHER_URL: {OTHER.key_id: OTHER.verifying_key().material},
}


def signed(
    body: bytes,
    *,
    key: SigningKey = KEY,
    path: str = "/settle",
    covered: tuple[str, ...] = COVERED,
    created: int | None = None,
    lifetime_seconds: int = 60,
    idempotency_key: str = "claim.1",
    authority: str = AUTHORITY,
) -> dict[str, str]:
    created = int(time.time()) if created is None else created
    digest = content_digest(body)
    components = {
        "@method": "POST",
        "@authority": authority,
        "@path": path,
        "content-digest": digest,
        "idempotency-key": idempotency_key,
    }
    parameters = Parameters(
        covered, created=created, expires=created + lifetime_seconds, key_id=key.key_id, algorithm=key.algorithm.value
    )
    headers = sign(components, key, label="tollkeeper", parameters=parameters)
    return {"Content-Digest": digest, "Idempotency-Key": idempotency_key, **headers}


async def settle_for_gateway(
    hub: HubUnderTest, body: dict[str, Any], key: str, path: str = "/settle", created: int | None = None
) -> Answer:
    """What a gateway is told that the hub trusts."""
    data = json.dumps(body).encode()
    return await post(hub, data, signed(data, path=path, idempotency_key=key, created=created), path)


def request_of(payment: TestPayment) -> bytes:
    return json.dumps(payment.asking(confirm=True, purchaseData=DATA)).encode()


async def post(hub: HubUnderTest, body: bytes, headers: dict[str, str], path: str = "/settle") -> Answer:
    return await hub.send("POST", path, data=body, headers=headers)
