"""A payer that takes an authorization back before it was used."""

from __future__ import annotations

from tests.chains.abi import encode_call
from tests.chains.chain_under_test import ChainUnderTest
from tollkeeper.sandbox.wallets import TestWallet


def cancellation_calldata(chain: ChainUnderTest, payer: TestWallet, nonce: str) -> bytes:
    """What whoever sends it to the token cancels the authorization with."""
    signature = chain.sign_cancellation(payer, nonce)
    return encode_call(
        "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)",
        payer.address,
        bytes.fromhex(nonce[2:]),
        signature[64],
        signature[:32],
        signature[32:64],
    )
