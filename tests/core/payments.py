"""Signed EVM payments for tests: known keys, one canonical authorization, and a payment made of them.

Not a fixture: every function takes what it depends on and returns a value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tollkeeper.core.evm.encoding import Authorization, address_of_key, authorization_digest, keccak256, sign_digest
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.verification import EvmAsset
from tollkeeper.core.x402.version1 import EvmPayload, Payment, Requirements

PAYER_KEY: Final = keccak256(b"a payer, for tests only")
OTHER_KEY: Final = keccak256(b"another wallet, for tests only")
PAYER: Final = address_of_key(PAYER_KEY)
PAY_TO: Final = "0x209693bc6afc0c5328ba36faf03c514ef312287c"
NONCE: Final = "0x" + keccak256(b"one nonce").hex()
NOW_SECONDS: Final = 1_760_000_000

BASE: Final = EvmAsset(NETWORKS["base"], NETWORKS["base"].usdc.address, "USD Coin", "2")
BASE_SEPOLIA: Final = EvmAsset(NETWORKS["base-sepolia"], NETWORKS["base-sepolia"].usdc.address, "USDC", "2")
ASSETS: Final = {asset.network.name: asset for asset in (BASE, BASE_SEPOLIA)}

AUTHORIZATION: Final = Authorization(
    payer=PAYER,
    pay_to=PAY_TO,
    value=10_000,
    valid_after=0,
    valid_before=NOW_SECONDS + 60,
    nonce=NONCE,
)
REQUIREMENTS: Final = Requirements(
    scheme="exact",
    network="base-sepolia",
    amount=10_000,
    asset=BASE_SEPOLIA.address,
    pay_to=PAY_TO,
    resource="https://gateway.example/abc",
    extra={"name": "USDC", "version": "2"},
)


def signed_payload(
    authorization: Authorization = AUTHORIZATION, *, asset: EvmAsset = BASE_SEPOLIA, key: bytes = PAYER_KEY
) -> EvmPayload:
    """`authorization` signed by `key` under the domain of `asset`."""
    return EvmPayload(authorization, sign_digest(authorization_digest(asset.separator, authorization), key))


def signed_payment(
    authorization: Authorization = AUTHORIZATION, *, asset: EvmAsset = BASE_SEPOLIA, key: bytes = PAYER_KEY
) -> Payment:
    """A version 1 payment on the network of `asset`."""
    return Payment(1, "exact", asset.network.name, signed_payload(authorization, asset=asset, key=key))


def with_value(value: int) -> EvmPayload:
    """The canonical authorization over another value, validly signed."""
    return signed_payload(replace(AUTHORIZATION, value=value))
