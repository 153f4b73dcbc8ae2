"""Whole payment verifications per second of one core, without any input or output: `verify-core`, `verify-solana`.

Ours: the JSON body of a verify request, as bytes, is read strictly and judged by every rule that needs no node: form,
requirements, times, on Solana the transaction and each instruction in it, and the payer's signature. Reference: only
the work on the same signatures by the fastest library that is installed, from inputs prepared beforehand: recovery of a
public key by libsecp256k1 through coincurve, ed25519 by dalek through solders. Each payment is a different one.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Final

import coincurve
from solders.pubkey import Pubkey
from solders.signature import Signature

from bench import payments, solana_payments
from bench.measuring import Result, alternate, cores, pinned
from tollkeeper.api import parse_json_object
from tollkeeper.core.solana.rules import FeePolicy, SolanaAsset, read_transfer, transaction_checks
from tollkeeper.core.solana.rules import requirement_checks as solana_requirement_checks
from tollkeeper.core.x402.verification import form_checks, require, requirement_checks, signature_check, time_checks
from tollkeeper.core.x402.version1 import EvmPayload, SolanaPayload
from tollkeeper.hub.api.requests import parse_asked, read_plain
from tollkeeper.sandbox.wallets import derive_solana_wallets
from tollkeeper.serving.run import leave_to_the_collector_what_comes

if TYPE_CHECKING:
    from collections.abc import Callable

PAYMENTS: Final = 4_000
ROUNDS: Final = 11


def on_evm() -> Result:
    """Verifications on base-sepolia."""
    asset = payments.sandbox_asset()
    assets = {payments.NETWORK.name: asset}
    signed = payments.signed_payments(PAYMENTS, asset)
    inputs = [(one.signature[:64] + bytes([one.signature[64] - 27]), one.digest) for one in signed]
    now_seconds = int(time.time())

    def verify(body: bytes) -> None:
        asked = read_plain(body) or parse_asked(parse_json_object(body))
        payload = asked.payment.payload
        require(form_checks(asked.payment, assets))
        assert isinstance(payload, EvmPayload)
        wanted = requirement_checks(asked.payment, asked.requirements, asset)
        require(chain(wanted, time_checks(payload, now_seconds), (signature_check(payload, asset),)))

    def recover() -> None:
        for signature, digest in inputs:
            coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)

    return _measured("verify-core", verify, [one.body for one in signed], recover)


def on_solana() -> Result:
    """Verifications on solana-devnet."""
    network = solana_payments.NETWORK
    asset = SolanaAsset(network, network.usdc.address)
    fee_payers = [one.address for one in derive_solana_wallets().fee_payers]
    policy = FeePolicy(tuple(fee_payers))
    signed = solana_payments.signed_payments(PAYMENTS, bytes(range(32)))
    inputs = [(Signature(one.signature), Pubkey(one.key), one.message) for one in signed]

    def verify(body: bytes) -> None:
        asked = read_plain(body) or parse_asked(parse_json_object(body))
        payload = asked.payment.payload
        require(form_checks(asked.payment, {network.name: asset}))
        assert isinstance(payload, SolanaPayload)
        require(transaction_checks(payload, asset, policy))
        require(solana_requirement_checks(read_transfer(payload), asked.requirements, asset, fee_payers))

    def check() -> None:
        for signature, key, message in inputs:
            signature.verify(key, message)

    return _measured("verify-solana", verify, [one.body for one in signed], check)


def _measured(name: str, verify: Callable[[bytes], None], bodies: list[bytes], reference: Callable[[], None]) -> Result:
    """Both sides on one core; the clock is the processor time of this process, which collects as a server does."""

    def ours() -> None:
        for body in bodies:
            verify(body)

    leave_to_the_collector_what_comes()
    with pinned(cores()[0]):
        return alternate(name, "verifies/s/core", ROUNDS, _rate_of(ours), _rate_of(reference))


def _rate_of(work: Callable[[], None]) -> Callable[[], float]:
    def once() -> float:
        started = time.process_time()
        work()
        return PAYMENTS / (time.process_time() - started)

    return once
