"""`verify-core`: whole payment verifications per second of one core, without any input or output.

Ours: the JSON body of a verify request, as bytes, is read strictly and judged by every rule that needs no node: form,
requirements, times, and the signature (EIP-712 digest, recovery, address). Reference: only the recovery of a public key
by libsecp256k1, through coincurve, from inputs prepared beforehand. Each payment is a different one.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Final

import coincurve

from bench.measuring import Result, alternate, cores, pinned
from bench.payments import NETWORK, sandbox_asset, signed_payments
from tollkeeper.api import parse_json_object
from tollkeeper.core.verification import form_checks, require, requirement_checks, signature_check, time_checks
from tollkeeper.core.wire import EvmPayload
from tollkeeper.hub.requests import parse_asked, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable

PAYMENTS: Final = 4_000
ROUNDS: Final = 11


def measure() -> Result:
    """Both sides on one core; the clock is the processor time of this process."""
    asset = sandbox_asset()
    assets = {NETWORK.name: asset}
    payments = signed_payments(PAYMENTS, asset)
    bodies = [payment.body for payment in payments]
    inputs = [(one.signature[:64] + bytes([one.signature[64] - 27]), one.digest) for one in payments]
    now_seconds = int(time.time())

    def ours() -> None:
        for body in bodies:
            asked = read_plain(body) or parse_asked(parse_json_object(body))
            payload = asked.payment.payload
            require(form_checks(asked.payment, assets))
            assert isinstance(payload, EvmPayload)
            require(
                chain(
                    requirement_checks(asked.payment, asked.requirements, asset),
                    time_checks(payload, now_seconds),
                    (signature_check(payload, asset),),
                )
            )

    def reference() -> None:
        recover = coincurve.PublicKey.from_signature_and_message
        for signature, digest in inputs:
            recover(signature, digest, hasher=None)

    with pinned(cores()[0]):
        return alternate("verify-core", "verifies/s/core", ROUNDS, rate_of(ours), rate_of(reference))


def rate_of(work: Callable[[], None]) -> Callable[[], float]:
    """How many payments a second of processor time `work` gets through."""

    def once() -> float:
        started = time.process_time()
        work()
        return PAYMENTS / (time.process_time() - started)

    return once
