"""First purchases per second at 64 connections, each with a payment of its own, beside the official FastAPI middleware.

`first_purchase`: everything that a purchase needs, on one core: ours is `tollkeeper serve`, gateway and hub in one
process, the reference is the middleware with the official Python facilitator. Both settle on the embedded chain, which
has the other core with the callers, and answer only when the transaction is mined. nginx, which forwards to the target
and knows of no payment, takes its turn beside them. No two requests are alike (`variety`).
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import statistics
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from bench.gateway import family_cpu_seconds
from bench.load import OK, drive
from bench.measuring import Result, alternate, cores, pinned
from bench.references.running import official_facilitator, official_paid_server
from bench.scene import scene
from bench.variety import request
from tollkeeper.client.payments import authorization_for, payment_for
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.evm.node import TOKEN_NAME
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.load import Visit

CALLERS: Final = 64
ROUNDS: Final = 4
ROUND_SECONDS: Final = 2.0
FIRST_GUESS: Final = 3_000  # payments for the unmeasured turn
MARGIN: Final = 2.0  # payments prepared per payment that the last turn took
PAYMENT_BYTES: Final = 700  # about what an `X-Payment` has
FASTAPI: Final = "PyPI x402 2.25.0, FastAPI"
_numbers = itertools.count()


def first_purchase() -> Result:
    """Whole purchases on the embedded chain."""
    wallets = derive_wallets()
    with ExitStack() as stack:
        running = stack.enter_context(scene())
        node = stack.enter_context(running.chain())
        own = stack.enter_context(running.serve(node))
        with pinned(cores()[0]):
            settler = stack.enter_context(official_facilitator(node, wallets.faucet.private_key_hex))
            payee = checksum_address(wallets.faucet.address)
            peer = stack.enter_context(official_paid_server(settler.url, payee, TOKEN_NAME))
        url, pid = stack.enter_context(running.reference())
        gate = own.gate(running.target + "/small", credits=1)
        pay_ours, pay_theirs = v1_signer(gate), v2_signer(peer.url + "/data")
        also: dict[str, float | str] = {"callers": float(CALLERS), "peer": FASTAPI}
        taken: dict[str, int] = {}
        used_us: dict[str, list[float]] = {"ours": [], "reference": [], "nginx": []}

        def turn(side: str, to: str, process: int, made: Callable[[], bytes]) -> float:
            wanted = int(MARGIN * taken.get(side, FIRST_GUESS / MARGIN)) + CALLERS
            visits: deque[Visit] = deque([(made(), OK)] for _ in range(wanted))
            before = family_cpu_seconds(process)
            with pinned(cores()[1]):
                load = drive(to, visits, callers=CALLERS, seconds=ROUND_SECONDS)
            used_us[side].append(1e6 * (family_cpu_seconds(process) - before) / load.answers)
            taken[side] = load.answers
            also[f"{side}_p50_ms"], also[f"{side}_p99_ms"] = load.wait_ms(0.5), load.wait_ms(0.99)
            return load.rate

        def ours() -> float:
            turn("nginx", url, pid, lambda: purchase(url + "/small", "x" * PAYMENT_BYTES))
            return turn("ours", gate, own.pid, lambda: purchase(gate, pay_ours()))

        def theirs() -> float:
            place = peer.url + "/data"
            return turn("reference", place, peer.pid, lambda: v2_purchase(place, pay_theirs()))

        result = alternate("first-purchase", "purchases/s", ROUNDS, ours, theirs, also=also)
    also |= {f"{side}_cpu_us": statistics.median(its[1:]) for side, its in used_us.items()}
    also["nginx_cpu_ratio"] = float(also["nginx_cpu_us"]) / float(also["ours_cpu_us"])
    return result


def purchase(url: str, payment: str) -> bytes:
    """A call that buys, unlike any other."""
    number = next(_numbers)
    return request(url, number, payment, path=f"?page={number}")


def v2_purchase(url: str, payment: str) -> bytes:
    """The same of protocol version 2."""
    number = next(_numbers)
    return request(url, number, path=f"?page={number}", also=f"PAYMENT-SIGNATURE: {payment}")


def v1_signer(gate: str) -> Callable[[], str]:
    """Return what signs payments that our gate takes."""
    _, body = _unpaid(gate)
    requirements = json.loads(body)["accepts"][0]
    return lambda: _signed(requirements)


def v2_signer(url: str) -> Callable[[], str]:
    """Return what signs payments that an official server of protocol version 2 takes."""
    headers, _ = _unpaid(url)
    required = json.loads(base64.b64decode(headers["payment-required"]))
    accepted = required["accepts"][0]
    as_v1 = {**accepted, "network": "base-sepolia", "maxAmountRequired": accepted["amount"]}

    def sign() -> str:
        payload = json.loads(base64.b64decode(_signed(as_v1)))["payload"]
        paid = {"x402Version": 2, "payload": payload, "accepted": accepted, "resource": required.get("resource")}
        return base64.b64encode(json.dumps(paid).encode()).decode()

    return sign


def _signed(requirements: Mapping[str, Any]) -> str:
    buyer = derive_wallets().buyer
    wanted = authorization_for(requirements, buyer.address, os.urandom(32), int(time.time()))
    return payment_for(requirements, wanted, buyer.private_key)


def _unpaid(url: str) -> tuple[dict[str, str], bytes]:
    """Headers (names in lower case) and body of the 402."""
    try:
        urllib.request.urlopen(url, timeout=30).close()  # noqa: S310 - own addresses
    except urllib.error.HTTPError as refused:
        with refused:
            if refused.code == 402:
                return {name.lower(): value for name, value in refused.headers.items()}, refused.read()
    raise RuntimeError(f"{url} did not ask for a payment")
