"""`verify-http`: verifications per second of one core through POST /verify, without a question to a node.

Ours: a hub process on one core, whose chain answers inside the process (`servers/answered_hub.py`); callers on the
other core keep their connections open and send distinct payments, one at a time each. The rate is answers per second of
the hub's processor time, kernel included, so that other users of the machine do not count. Reference: only the
recovery of a public key by libsecp256k1, on the hub's core while the hub is idle, in processor time likewise.
"""

from __future__ import annotations

import time
from typing import Final

import coincurve

from bench.load import drive, prepared
from bench.measuring import Result, alternate, cores, cpu_seconds, pinned
from bench.payments import sandbox_asset, signed_payments
from bench.processes import serving

PAYMENTS: Final = 8_000
ROUNDS: Final = 7
ROUND_SECONDS: Final = 2.0
CALLERS: Final = 32
RECOVERIES: Final = 10_000


def measure() -> Result:
    """Both sides in turns on one core."""
    server_core, load_core = cores()
    payments = signed_payments(PAYMENTS, sandbox_asset())
    inputs = [(one.signature[:64] + bytes([one.signature[64] - 27]), one.digest) for one in payments]
    also: dict[str, float | str] = {"callers": CALLERS}

    with serving("answered_hub", server_core) as hub:
        url = hub.url + "/verify"
        requests = prepared(url, [payment.body for payment in payments])

        def ours() -> float:
            before = cpu_seconds(hub.pid)
            with pinned(load_core):
                load = drive(
                    url,
                    requests,
                    callers=CALLERS,
                    seconds=ROUND_SECONDS,
                    expected=b'"isValid":true',
                    repeat=True,
                )
            spent = cpu_seconds(hub.pid) - before
            also.update(per_second_of_wall_time=load.rate, core_busy=spent / load.seconds, p50_ms=load.wait_ms(0.5))
            return load.answers / spent

        def reference() -> float:
            recover = coincurve.PublicKey.from_signature_and_message
            with pinned(server_core):
                started = time.process_time()
                for signature, digest in inputs[:RECOVERIES]:
                    recover(signature, digest, hasher=None)
                return len(inputs[:RECOVERIES]) / (time.process_time() - started)

        return alternate("verify-http", "verifies/s/core", ROUNDS, ours, reference, also=also)
