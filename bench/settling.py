"""What both settle benchmarks do: 16 callers settle distinct payments, through our hub and the official facilitator.

Both settle on the same chain in the same run, each with an account of its own, each answering only when the transaction
is mined and its receipt was seen (ours is asked to `confirm`; the official one never does otherwise). Ours commits each
settlement durably before it is sent; the official one keeps nothing. Whoever is measured has one core to itself, with
the other side idle; chain and callers share the other core.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from bench.load import Load, drive, prepared
from bench.measuring import Result, alternate, cores, pinned
from bench.payments import sandbox_asset, signed_payments
from bench.processes import serving
from bench.references.running import official_facilitator
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections import deque

CALLERS: Final = 16
ROUNDS: Final = 5
OUR_SECONDS: Final = 2.0
REFERENCE_SECONDS: Final = 4.0
OUR_PAYMENTS: Final = 20_000
REFERENCE_PAYMENTS: Final = 3_000
EXPECTED: Final = b'"success":true'


def measure_settling(name: str, rpc_url: str, token_name: str) -> Result:
    """Settles per second of both sides on the chain at `rpc_url`."""
    server_core, load_core = cores()
    asset = sandbox_asset(token_name)
    also: dict[str, float | str] = {"callers": CALLERS}

    with ExitStack() as running:
        hub = running.enter_context(serving("our_hub", server_core, rpc_url))
        with pinned(server_core):
            faucet = derive_wallets().faucet
            facilitator = running.enter_context(official_facilitator(rpc_url, faucet.private_key_hex))
        our_url, reference_url = hub.url + "/settle", facilitator + "/settle"
        ours = prepared(our_url, [one.body for one in signed_payments(OUR_PAYMENTS, asset, confirm=True)])
        theirs = prepared(reference_url, [one.body for one in signed_payments(REFERENCE_PAYMENTS, asset)])

        def settle_ours() -> float:
            load = settle(our_url, ours, OUR_SECONDS)
            also["p50_ms"], also["p99_ms"] = load.wait_ms(0.5), load.wait_ms(0.99)
            return load.rate

        def settle_theirs() -> float:
            load = settle(reference_url, theirs, REFERENCE_SECONDS)
            also["reference_p50_ms"] = load.wait_ms(0.5)
            return load.rate

        def settle(url: str, requests: deque[bytes], seconds: float) -> Load:
            with pinned(load_core):
                return drive(url, requests, callers=CALLERS, seconds=seconds, expected=EXPECTED)

        return alternate(name, "settles/s", ROUNDS, settle_ours, settle_theirs, also=also)
