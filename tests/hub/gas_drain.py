"""Settle requests of somebody who wants the hub's gas money gone: two dozen kinds that must cost nothing (A-24)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.hub_under_test import NETWORK, settle_body
from tollkeeper.core.evm.encoding import (
    SECP256K1_ORDER,
    Authorization,
    authorization_digest,
    domain_separator,
    sign_digest,
)
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet, derive_wallet

PRICE: Final = 10_000
_OTHER_TOKEN: Final = "0x" + "6a5" * 13 + "6"


@dataclass(frozen=True)
class Request:
    """One request of the attack; `told` is what it must be told: a status, and the reason or code."""

    kind: str
    path: str
    body: bytes
    told: tuple[int, str]


@dataclass
class Attacker:
    """Signs without asking the chain anything. `used`: a payment that was settled before."""

    chain: ChainUnderTest
    used: dict[str, Any]
    now: int = 0
    _kinds: dict[str, Callable[[], tuple[object, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = self.chain.now()
        self.poor = derive_wallet("somebody who holds nothing")
        buyer = self.chain.wallets.buyer.address
        self._kinds = {
            "wrong signature": lambda: (
                self.asking(signer=self.poor, payer=buyer),
                "invalid_exact_evm_payload_signature",
            ),
            "no signature": lambda: (self.asking(signature=bytes(65)), "invalid_exact_evm_payload_signature"),
            "high s": lambda: (self.asking(change=_other_half), "invalid_exact_evm_payload_signature"),
            "wrong domain": lambda: (self.asking(name="Another Coin"), "invalid_exact_evm_payload_signature"),
            "wrong chain": lambda: (self.asking(chain_id=8453), "invalid_exact_evm_payload_signature"),
            "a wallet to be deployed": lambda: (self.asking(change=_wrapped), "eip6492_factory_not_allowed"),
            "expired": lambda: (
                self.asking(valid_before=self.now - 10),
                "invalid_exact_evm_payload_authorization_valid_before",
            ),
            "not yet valid": lambda: (
                self.asking(valid_after=self.now + 3000),
                "invalid_exact_evm_payload_authorization_valid_after",
            ),
            "no funds": lambda: (self.asking(signer=self.poor), "insufficient_funds"),
            "more than it has": lambda: (self.asking(value=10**15), "insufficient_funds"),
            "used before": lambda: (self.used, "duplicate_settlement"),
            "too little": lambda: (
                self.asking(value=PRICE - 1),
                "invalid_exact_evm_payload_authorization_value",
            ),
            "another recipient": lambda: (
                self.asking(pay_to=self.poor.address),
                "invalid_exact_evm_payload_recipient_mismatch",
            ),
            "another token": lambda: (
                _requiring(self.asking(), asset=_OTHER_TOKEN),
                "invalid_payment_requirements",
            ),
            "another scheme": lambda: (_requiring(self.asking(), scheme="upto"), "unsupported_scheme"),
            "no known network": lambda: (_on(self.asking(), "eip155:1"), "invalid_network"),
            "a network that is not open": lambda: (_on(self.asking(), "base"), "invalid_network"),
            "no signature member": lambda: (_without(self.asking(), "signature"), "MISSING_PARAMETER"),
            "no authorization": lambda: (_without(self.asking(), "authorization"), "MISSING_PARAMETER"),
            "a negative value": lambda: (_authorizing(self.asking(), value="-1"), "INVALID_AMOUNT"),
            "a value beyond uint256": lambda: (_authorizing(self.asking(), value=str(2**256)), "INVALID_AMOUNT"),
            "no payer": lambda: (_authorizing(self.asking(), **{"from": "0x12"}), "INVALID_ADDRESS"),
            "no JSON": lambda: (b'{"x402Version": 1,', "INVALID_PARAMETER"),
            "a list": lambda: ([], "INVALID_PARAMETER"),
        }

    def requests(self, count: int) -> Iterator[Request]:
        """So many, of every kind in turn."""
        kinds = list(self._kinds)
        for number in range(count):
            kind = kinds[number % len(kinds)]
            asked, told = self._kinds[kind]()
            body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
            yield Request(kind, "/settle", body, (400 if told.isupper() else 200, told))

    def asking(
        self,
        *,
        signer: TestWallet | None = None,
        signature: bytes | None = None,
        change: Callable[[bytes], bytes] = bytes,
        name: str = "",
        chain_id: int = BASE_SEPOLIA_CHAIN_ID,
        **changes: Any,
    ) -> dict[str, Any]:
        """A settle request; everything that is not given is as in a good one."""
        signer = signer or self.chain.wallets.buyer
        authorization = self.authorization(**{"payer": signer.address, **changes})
        if signature is None:
            separator = domain_separator(name or self.chain.token_name, "2", chain_id, USDC_ADDRESS)
            digest = authorization_digest(separator, authorization)
            signature = change(sign_digest(digest, signer.private_key))
        return settle_body(self.chain, authorization, signature) | {"confirm": True}

    def authorization(self, **changes: Any) -> Authorization:
        """Of the price to the owner, good for an hour."""
        fields: dict[str, Any] = {
            "pay_to": self.chain.wallets.owner.address,
            "value": PRICE,
            "valid_after": self.now - 600,
            "valid_before": self.now + 3600,
            "nonce": "0x" + secrets.token_hex(32),
        }
        return Authorization(**{**fields, **changes})

    def to_itself(self, thief: TestWallet) -> dict[str, Any]:
        """A good payment of dust to the payer itself: nobody but the hub pays for it."""
        asked = self.asking(signer=thief, pay_to=thief.address, value=1)
        return _requiring(asked, payTo=thief.address, maxAmountRequired="1")


def _other_half(signature: bytes) -> bytes:
    s = SECP256K1_ORDER - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


def _wrapped(signature: bytes) -> bytes:
    words = [bytes(12) + bytes.fromhex(USDC_ADDRESS[2:]), (96).to_bytes(32, "big"), (128).to_bytes(32, "big")]
    inner = len(signature).to_bytes(32, "big") + signature.ljust(96, b"\0")
    return b"".join(words) + bytes(32) + inner + bytes.fromhex("6492" * 16)


def _requiring(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    changed = {**body, "paymentRequirements": body["paymentRequirements"] | fields}
    if "scheme" in fields:
        changed["paymentPayload"] = body["paymentPayload"] | {"scheme": fields["scheme"]}
    return changed


def _on(body: dict[str, Any], network: str) -> dict[str, Any]:
    named = {"network": network}
    assert body["paymentPayload"]["network"] == NETWORK
    return {
        **body,
        "paymentPayload": body["paymentPayload"] | named,
        "paymentRequirements": body["paymentRequirements"] | named,
    }


def _payload(body: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    return {**body, "paymentPayload": body["paymentPayload"] | {"payload": payload}}


def _without(body: dict[str, Any], member: str) -> dict[str, Any]:
    payload = body["paymentPayload"]["payload"]
    return _payload(body, {name: value for name, value in payload.items() if name != member})


def _authorizing(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    payload = body["paymentPayload"]["payload"]
    return _payload(body, payload | {"authorization": payload["authorization"] | fields})
