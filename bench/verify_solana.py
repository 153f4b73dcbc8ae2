"""`verify-solana`: whole verifications of Solana payments per second of one core, without any input or output.

Ours: the JSON body of a verify request, as bytes, is read strictly and judged by every rule that needs no node: form,
the transaction and each instruction in it, requirements, and the payer's signature. Reference: only the verification of
the same signatures over the same messages, by the fastest library that is installed, from inputs prepared beforehand.
Each payment is a different one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from solders.pubkey import Pubkey
from solders.signature import Signature

from bench.measuring import Result, alternate, cores, pinned
from bench.solana_payments import NETWORK, signed_payments
from bench.verify_core import PAYMENTS, rate_of
from tollkeeper.api import parse_json_object
from tollkeeper.core.solana import FeePolicy, SolanaAsset, read_transfer, requirement_checks, transaction_checks
from tollkeeper.core.verification import form_checks, require
from tollkeeper.core.wire import SolanaPayload
from tollkeeper.hub.requests import parse_asked, read_plain
from tollkeeper.sandbox.wallets import derive_solana_wallets
from tollkeeper.serving.process import leave_to_the_collector_what_comes

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS: Final = 11


def measure() -> Result:
    """Both sides on one core; the clock is the processor time of this process, which collects as a server does."""
    asset = SolanaAsset(NETWORK, NETWORK.usdc.address)
    assets = {NETWORK.name: asset}
    fee_payers = [one.address for one in derive_solana_wallets().fee_payers]
    policy = FeePolicy(tuple(fee_payers))
    payments = signed_payments(PAYMENTS, bytes(range(32)))
    bodies = [payment.body for payment in payments]
    inputs = [(Signature(one.signature), Pubkey(one.key), one.message) for one in payments]

    def ours() -> None:
        for body in bodies:
            _verify(body, assets, policy, fee_payers)

    def reference() -> None:
        for signature, key, message in inputs:
            signature.verify(key, message)

    leave_to_the_collector_what_comes()
    with pinned(cores()[0]):
        return alternate("verify-solana", "verifies/s/core", ROUNDS, rate_of(ours), rate_of(reference))


def _verify(body: bytes, assets: dict[str, SolanaAsset], policy: FeePolicy, fee_payers: Sequence[str]) -> None:
    asked = read_plain(body) or parse_asked(parse_json_object(body))
    payload, asset = asked.payment.payload, assets[NETWORK.name]
    require(form_checks(asked.payment, assets))
    assert isinstance(payload, SolanaPayload)
    require(transaction_checks(payload, asset, policy))
    require(requirement_checks(read_transfer(payload), asked.requirements, asset, fee_payers))
