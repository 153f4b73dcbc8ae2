"""What each official client does with the bodies that a gate answers (contract 4.1 and 4.5), at a gate set down here.

The gate of this file checks the payment by itself, so these facts hold whatever our own code does. They are why the
default 402 body is what it is.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.interop.local_server import Reply, Request, serving
from tests.interop.official import BOTH_VERSIONS, PAYING_CLIENTS, VERSION_1

BUYER_KEY: Final = "0x" + "5b" * 32
BUYER: Final = Account.from_key(BUYER_KEY).address
PAY_TO: Final = Account.from_key("0x" + "5c" * 32).address
TOKEN: Final = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
TRANSACTION: Final = "0x" + "ab" * 32
ENVELOPE: Final = {"apiVersion": "v1", "timestamp": "2026-01-01T00:00:00.000Z"}
AUTHORIZATION: Final = [
    {"name": "from", "type": "address"},
    {"name": "to", "type": "address"},
    {"name": "value", "type": "uint256"},
    {"name": "validAfter", "type": "uint256"},
    {"name": "validBefore", "type": "uint256"},
    {"name": "nonce", "type": "bytes32"},
]


def terms(url: str) -> dict[str, Any]:
    """The parts of the 402 body that shapes A and B and the x402 v1 clients read."""
    requirements = {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "10000",
        "resource": url,
        "description": "",
        "mimeType": "application/json",
        "payTo": PAY_TO,
        "maxTimeoutSeconds": 60,
        "asset": TOKEN,
        "extra": {"name": "USD Coin", "version": "2"},
    }
    return {
        "x402Version": 1,
        "accepts": [requirements],
        "paymentRequired": {"amount": "0.01", "currency": "USDC", "network": "base-sepolia"},
        "x402": {"token": "USDC", "amount": "0.01", "address": PAY_TO},
    }


def challenge(url: str) -> Reply:
    """The default 402 of contract 4.1."""
    resource = {"title": "", "description": "", "credits": 10, "onFailure": "consume"}
    body = {"error": "Payment required", **terms(url), "resource": resource, **ENVELOPE}
    return Reply(402, body, {"X402-Version": "1", "Cache-Control": "no-store"})


def refusal(url: str) -> Reply:
    """The 402 of contract 4.5 for a payment that was sent and refused: `error` is an object there."""
    error = {"type": "payment", "code": "PAYMENT_EXPIRED", "message": "too late", "details": {"check": "validBefore"}}
    return Reply(402, {"error": error, **terms(url), **ENVELOPE}, {"X402-Version": "1"})


def pending() -> Reply:
    """The 503 of contract 4.5 for a settlement whose outcome is unknown."""
    error = {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "ask again", "details": {}}
    return Reply(503, {"error": error, **ENVELOPE}, {"Retry-After": "2"})


def receipt() -> dict[str, Any]:
    """The receipt of contract 4.6."""
    settled = {"success": True, "transaction": TRANSACTION, "network": "base-sepolia", "payer": BUYER}
    return {**settled, "amount": "10000", "purchaseId": "1"}


def signer_of(payment: dict[str, Any]) -> str:
    """The address whose key signed the payment's authorization, by eth-account."""
    authorization = payment["payload"]["authorization"]
    numbers = {name: int(authorization[name]) for name in ("value", "validAfter", "validBefore")}
    domain = {"name": "USD Coin", "version": "2", "chainId": 84532, "verifyingContract": TOKEN}
    message = encode_typed_data(domain, {"TransferWithAuthorization": AUTHORIZATION}, {**authorization, **numbers})
    recovered: str = Account.recover_message(message, signature=payment["payload"]["signature"])
    return recovered


@pytest.mark.parametrize("client", [*VERSION_1, *BOTH_VERSIONS])
def test_official_client_pays_the_default_challenge(client: str) -> None:
    def answer(request: Request) -> Reply:
        if "x-payment" not in request.headers:
            return challenge(f"http://{request.headers['host']}/gate")
        encoded = base64.b64encode(json.dumps(receipt()).encode()).decode()
        return Reply(200, {"said": "served"}, {"X-Payment-Response": encoded})

    with serving(answer) as gate:
        bought = PAYING_CLIENTS[client].run({"url": f"{gate.url}/gate", "privateKey": BUYER_KEY})

    assert (bought["error"], bought["status"]) == (None, 200)
    assert json.loads(bought["body"]) == {"said": "served"}
    assert {name: bought["receipt"][name] for name in ("success", "transaction", "network", "payer")} == {
        name: receipt()[name] for name in ("success", "transaction", "network", "payer")
    }
    _, paying = gate.received
    payment = json.loads(base64.b64decode(paying.headers["x-payment"], validate=True))
    assert (payment["x402Version"], payment["scheme"], payment["network"]) == (1, "exact", "base-sepolia")
    authorization = payment["payload"]["authorization"]
    assert all(isinstance(value, str) for value in authorization.values())
    assert (authorization["to"], authorization["value"]) == (PAY_TO, "10000")
    assert signer_of(payment) == authorization["from"] == BUYER


@pytest.mark.parametrize("refused_with", [402, 503])
@pytest.mark.parametrize("client", [*VERSION_1, *BOTH_VERSIONS])
def test_official_client_hands_over_the_refusal_and_pays_no_second_time(client: str, refused_with: int) -> None:
    def answer(request: Request) -> Reply:
        url = f"http://{request.headers['host']}/gate"
        if "x-payment" not in request.headers:
            return challenge(url)
        return refusal(url) if refused_with == 402 else pending()

    with serving(answer) as gate:
        bought = PAYING_CLIENTS[client].run({"url": f"{gate.url}/gate", "privateKey": BUYER_KEY})

    assert (bought["error"], bought["status"]) == (None, refused_with)
    assert json.loads(bought["body"])["error"]["type"] == "payment"
    assert [("x-payment" in request.headers) for request in gate.received] == [False, True]
