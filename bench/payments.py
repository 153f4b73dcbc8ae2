"""Signed payments that differ in their nonce, and the requests that verify or settle them."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.evm.encoding import (
    Authorization,
    address_of_key,
    authorization_digest,
    checksum_address,
    sign_digest,
)
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.verification import EvmAsset
from tollkeeper.core.x402.version1 import EvmPayload, Payment, Requirements, payment_body, requirements_body
from tollkeeper.sandbox.evm.node import TOKEN_NAME
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.sandbox.wallets import TestWallets

NETWORK: Final = NETWORKS["base-sepolia"]
PRICE_MICRO: Final = 100
LIFETIME_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Signed:
    """One payment: what was signed, and the JSON body that carries it."""

    digest: bytes
    signature: bytes
    body: bytes


def sandbox_asset(name: str = TOKEN_NAME) -> EvmAsset:
    """USDC of base-sepolia under the EIP-712 name that the chain's token has."""
    return EvmAsset(NETWORK, NETWORK.usdc.address, name, "2")


def signed_payments(count: int, asset: EvmAsset, payer_keys: Sequence[bytes] = (), **options: bool) -> list[Signed]:
    """Distinct payments to the sandbox's owner, of these payers in turn, else of its buyer.

    `options` are further members of each body.
    """
    wallets = derive_wallets()
    now_seconds = int(time.time())
    keys = itertools.cycle(payer_keys or (wallets.buyer.private_key,))
    return [_signed(asset, wallets, next(keys), now_seconds, options) for _ in range(count)]


def _signed(
    asset: EvmAsset, wallets: TestWallets, payer_key: bytes, now_seconds: int, options: dict[str, bool]
) -> Signed:
    authorization = Authorization(
        payer=address_of_key(payer_key),
        pay_to=wallets.owner.address,
        value=PRICE_MICRO,
        valid_after=now_seconds - 600,
        valid_before=now_seconds + LIFETIME_SECONDS,
        nonce="0x" + secrets.token_hex(32),
    )
    digest = authorization_digest(asset.separator, authorization)
    signature = sign_digest(digest, payer_key)
    payment = Payment(1, "exact", asset.network.name, EvmPayload(authorization, signature))
    requirements = Requirements(
        scheme="exact",
        network=asset.network.name,
        amount=PRICE_MICRO,
        asset=asset.address,
        pay_to=wallets.owner.address,
        resource="https://gateway.example/weather",
        description="A made-up forecast for a city",
        mime_type="application/json",
        extra={"name": asset.name, "version": asset.version},
    )
    body: dict[str, Any] = {
        "x402Version": 1,
        "paymentPayload": payment_body(payment),
        "paymentRequirements": requirements_body(requirements),
        **options,
    }
    # As official clients write them, and as the official facilitator must have them.
    for place, names in (
        (body["paymentPayload"]["payload"]["authorization"], ("from", "to")),
        (body["paymentRequirements"], ("asset", "payTo")),
    ):
        place.update({name: checksum_address(place[name]) for name in names})
    return Signed(digest, signature, json.dumps(body, separators=(",", ":")).encode())
