"""What schemathesis cannot know: a login of its own, and where targets are. Loaded by the `schemathesis` command."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from typing import Any

import schemathesis
from eth_account import Account
from eth_account.messages import encode_defunct

API = os.environ["OPENAPI_SERVER_URL"] + "/api/v1"
TARGET = os.environ["OPENAPI_TARGET_URL"]
KEY = os.environ["OPENAPI_KEY"]
NETWORKS = {"base", "base-mainnet", "base-sepolia", "solana", "solana-devnet", "solana-mainnet"}
HERE = {
    "targetUrl": TARGET,
    "network": "base-sepolia",
    "paymentAddress": "0x" + "70" * 20,
    "accepts": [],
    "targetHeaders": {"X-Api-Key": "secret"},
    "price": 1.5,
}


def asked(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(API + path, data)) as answer:  # noqa: S310 - our own
        found: dict[str, Any] = json.load(answer)
        return found


def access_token() -> str:
    account = Account.from_key(KEY)
    message = asked(f"/auth/message?walletAddress={account.address}")["message"]
    signature = account.sign_message(encode_defunct(text=message)).signature.hex()
    return str(
        asked("/auth/login", {"message": message, "signature": "0x" + signature.removeprefix("0x")})["accessToken"]
    )


@schemathesis.auth(refresh_interval=300).apply_to(path="/api/v1/auth/logout")
class LeavingCaller:
    """Each logs out of a login that is nobody else's."""

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:  # noqa: ARG002 - the interface
        return access_token()

    def set(self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext) -> None:  # noqa: ARG002
        case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.auth(refresh_interval=300).skip_for(path="/api/v1/auth/logout")
class Caller(LeavingCaller):
    """Everything else is asked by one wallet."""


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """What of a gate is right in its form, and only elsewhere also in its meaning, becomes what it may be here."""
    operation, body = context.operation, _whole(body)
    if operation is None or not operation.path.startswith("/api/v1/paygates") or not isinstance(body, dict):
        return body
    return {name: HERE[name] if name in HERE and _is_formed(name, value) else value for name, value in body.items()}


def _whole(value: Any) -> Any:
    """JSON Schema takes 9.0 for an integer, and has no word for a program that wants it to be written as 9."""
    match value:
        case dict():
            return {name: _whole(one) for name, one in value.items()}
        case list():
            return [_whole(one) for one in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case _:
            return value


def _is_formed(name: str, value: Any) -> bool:
    match name:
        case "targetUrl":
            return isinstance(value, str) and value.startswith("http")
        case "network":
            return value in NETWORKS
        case "paymentAddress":
            return isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{40}", value) is not None
        case "accepts":
            return isinstance(value, list) and all(
                isinstance(one, dict)
                and one.keys() == {"network", "paymentAddress"}
                and all(_is_formed(*pair) for pair in one.items())
                for one in value
            )
        case "targetHeaders":
            return isinstance(value, dict) and all(
                isinstance(text, str) and text.isascii() and text.isprintable() for text in value.values()
            )
        case _:
            return type(value) in {int, float} and 0 < value < 10**12
