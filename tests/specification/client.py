"""A client written from the specification alone: HTTP, JSON, base64, and eth-account for wallet signatures.

Nothing of the program's own reading or signing is used here, so that a mistake in it cannot hide itself.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data

Json = dict[str, Any]

# Specification 2.3: what an EVM payer signs.
TRANSFER_WITH_AUTHORIZATION: Final = (
    ("from", "address"),
    ("to", "address"),
    ("value", "uint256"),
    ("validAfter", "uint256"),
    ("validBefore", "uint256"),
    ("nonce", "bytes32"),
)
_DOMAIN_TYPES: Final = (
    ("name", "string"),
    ("version", "string"),
    ("chainId", "uint256"),
    ("verifyingContract", "address"),
)
BASE_SEPOLIA_CHAIN_ID: Final = 84532


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Json:
        """The JSON object."""
        parsed: Json = json.loads(self.content)
        assert isinstance(parsed, dict)
        return parsed

    @property
    def error(self) -> Json:
        """The `error` object of section 7."""
        error: Json = self.body["error"]
        assert isinstance(error, dict), error
        return error

    @property
    def refusal(self) -> tuple[int, str, str]:
        """Status, code and type of a refusal."""
        return self.status, self.error["code"], self.error["type"]

    @property
    def confirmation(self) -> Json:
        """What `X-Payment-Response` says."""
        said: Json = json.loads(base64.b64decode(self.headers["x-payment-response"], validate=True))
        return said


@dataclass(frozen=True, slots=True)
class Wallet:
    """A key. `address` has EIP-55 spelling."""

    key: str = field(default_factory=lambda: "0x" + os.urandom(32).hex(), repr=False)

    @property
    def address(self) -> str:
        """Of the key."""
        address: str = Account.from_key(self.key).address
        return address

    def sign_text(self, text: str) -> str:
        """personal_sign, as a wallet signs a login message."""
        return _hex(Account.sign_message(encode_defunct(text=text), self.key).signature)

    def sign_typed(self, typed_data: Json) -> str:
        """EIP-712."""
        return _hex(Account.sign_message(encode_typed_data(full_message=typed_data), self.key).signature)


def _hex(signature: bytes) -> str:
    return "0x" + bytes(signature).hex()


@dataclass(frozen=True, slots=True)
class Chain:
    """The elements of the EIP-712 domain that the network decides."""

    token: str
    network: str = "base-sepolia"
    chain_id: int = BASE_SEPOLIA_CHAIN_ID


def authorization(payer: str, recipient: str, value: int) -> Json:
    """An authorization of specification 2.3 that is valid now."""
    return {
        "from": payer,
        "to": recipient,
        "value": str(value),
        "validAfter": "0",
        "validBefore": str(int(time.time()) + 300),
        "nonce": "0x" + os.urandom(32).hex(),
    }


def typed_data(wanted: Json, chain: Chain, **domain: object) -> Json:
    """The EIP-712 table of specification 2.3; `domain` changes elements of the domain."""
    message = {
        name: int(wanted[name]) if kind == "uint256" else wanted[name] for name, kind in TRANSFER_WITH_AUTHORIZATION
    }
    return {
        "types": {
            "EIP712Domain": members(_DOMAIN_TYPES),
            "TransferWithAuthorization": members(TRANSFER_WITH_AUTHORIZATION),
        },
        "primaryType": "TransferWithAuthorization",
        "domain": {
            "name": "USD Coin",
            "version": "2",
            "chainId": chain.chain_id,
            "verifyingContract": chain.token,
            **domain,
        },
        "message": message,
    }


def members(fields: tuple[tuple[str, str], ...]) -> list[Json]:
    """Members of an EIP-712 struct type."""
    return [{"name": name, "type": kind} for name, kind in fields]


def payment(wanted: Json, signature: str, network: str = "base-sepolia") -> Json:
    """The payment payload of specification 2.3."""
    return {
        "x402Version": 1,
        "scheme": "exact",
        "network": network,
        "payload": {"signature": signature, "authorization": wanted},
    }


def header(payload: object) -> str:
    """The `X-Payment` value: base64-encoded JSON."""
    return base64.b64encode(json.dumps(payload).encode()).decode()


@dataclass(frozen=True, slots=True)
class Http:
    """Raw HTTP."""

    session: aiohttp.ClientSession

    async def send(self, method: str, url: str, **options: Any) -> Answer:
        """One request; no redirect is followed."""
        async with self.session.request(method, url, allow_redirects=False, **options) as answer:
            return Answer(
                answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()
            )
