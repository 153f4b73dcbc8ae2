"""What is remembered of payment headers that were checked before (contract 4.2; bounded memory)."""

from __future__ import annotations

import os
import time

import pytest

from tollkeeper.client.payments import authorization_for, payment_for
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.verification import EvmAsset
from tollkeeper.gateway.call import payment_header
from tollkeeper.gateway.call.payment_header import PaymentReader
from tollkeeper.sandbox.wallets import derive_wallets

ASSET = EvmAsset(NETWORKS["base-sepolia"], NETWORKS["base-sepolia"].usdc.address, "USD Coin", "2")


def header() -> bytes:
    buyer, owner = derive_wallets().buyer, derive_wallets().owner
    requirements = {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "10000",
        "asset": ASSET.address,
        "payTo": owner.address,
        "maxTimeoutSeconds": 60,
        "extra": {"name": ASSET.name, "version": ASSET.version},
    }
    wanted = authorization_for(requirements, buyer.address, os.urandom(32), int(time.time()))
    return payment_for(requirements, wanted, buyer.private_key).encode()


def kept_of(read: PaymentReader, headers: list[bytes]) -> int:
    """How many of the last headers are still known, counted from the newest."""
    first = {one: read.read({b"x-payment": one}) for one in headers}
    kept = 0
    for one in reversed(headers):
        if read.read({b"x-payment": one}) is not first[one]:
            break
        kept += 1
    return kept


def test_as_many_headers_are_remembered_as_the_bytes_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = [header() for _ in range(8)]
    monkeypatch.setattr(payment_header, "VERIFIED_SIZE_BYTES", sum(map(len, headers[-3:])))
    assert kept_of(PaymentReader(lambda: {"base-sepolia": ASSET}), headers) == 3


def test_no_more_headers_are_remembered_than_their_number_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payment_header, "VERIFIED_HEADERS_MAX", 5)
    assert kept_of(PaymentReader(lambda: {"base-sepolia": ASSET}), [header() for _ in range(8)]) == 5
