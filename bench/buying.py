"""First purchases per second at 64 connections, each with a payment of its own, beside the official FastAPI middleware.

`first_purchase`: everything that a purchase needs, on one core: ours is `tollkeeper serve`, gateway and hub in one
process, the reference is the middleware with the official Python facilitator. Both settle on the embedded chain, which
has the other core with the callers, and answer only when the transaction is mined.

`peers` is in a file of its own and shares the payments and the instant facilitator.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.gateway import gateway
from bench.load import drive
from bench.measuring import Result, alternate, cores, pinned
from bench.nginx import nginx
from bench.processes import serving
from bench.references.running import official_facilitator, official_paid_server
from bench.scene import SMALL_BYTES
from bench.wrk import request
from tests.ports import free_port
from tollkeeper.client.payments import authorization_for, payment_for
from tollkeeper.core.evm import checksum_address
from tollkeeper.sandbox.genesis import TOKEN_NAME
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALLERS: Final = 64
ROUNDS: Final = 4
ROUND_SECONDS: Final = 2.0
FIRST_GUESS: Final = 3_000  # payments for the unmeasured turn
MARGIN: Final = 2.0  # payments prepared per payment that the last turn took
FASTAPI: Final = "PyPI x402 2.25.0, FastAPI"
EXPECTED: Final = b"HTTP/1.1 200"
V2_NETWORK: Final = "eip155:84532"

# $request_id is 32 hexadecimal digits, new for each request.
_FACILITATOR: Final = """\
    default_type application/json;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /small {{ return 200 "{small}"; }}
        location ~ /supported$ {{ return 200 '{supported}'; }}
        location ~ /verify$ {{ return 200 '{{"isValid":true,"payer":"{payer}"}}'; }}
        location ~ ^/v1/settle$ {{ return 200 '{{"success":true,"payer":"{payer}","network":"base-sepolia",\
"transaction":"0x$request_id$request_id"}}'; }}
        location ~ ^/v2/settle$ {{ return 200 '{{"success":true,"payer":"{payer}","network":"eip155:84532",\
"transaction":"0x$request_id$request_id"}}'; }}
    }}
"""


def first_purchase() -> Result:
    """Whole purchases on the embedded chain."""
    server_core, other_core = cores()
    wallets = derive_wallets()
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-bench-")))
        node = running.enter_context(serving("embedded_node", other_core))
        port = free_port()
        running.enter_context(nginx(facilitator(port), port, other_core, directory / "target"))
        own = running.enter_context(gateway(directory / "gateway", node.url, server_core))
        gate = own.gate(f"http://127.0.0.1:{port}/small")
        with pinned(server_core):
            settler = running.enter_context(official_facilitator(node.url, wallets.faucet.private_key_hex))
            peer = running.enter_context(
                official_paid_server(settler, checksum_address(wallets.faucet.address), TOKEN_NAME)
            )
        return _measure("first-purchase", gate, peer.url + "/data")


def facilitator(port: int) -> str:
    """The nginx configuration of a facilitator that answers at once, and of a target."""
    extra = {"name": TOKEN_NAME, "version": "2"}
    kinds = [
        {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "extra": extra},
        {"x402Version": 2, "scheme": "exact", "network": V2_NETWORK},
    ]
    return _FACILITATOR.format(
        port=port,
        small="s" * SMALL_BYTES,
        supported=json.dumps({"kinds": kinds, "extensions": [], "signers": {}}),
        payer=checksum_address(derive_wallets().buyer.address),
    )


def _measure(name: str, gate: str, peer: str) -> Result:
    load_core = cores()[1]
    also: dict[str, float | str] = {"callers": float(CALLERS), "peer": FASTAPI}
    last = {"ours": FIRST_GUESS / MARGIN, "reference": FIRST_GUESS / MARGIN}
    ours, theirs = v1_signer(gate), v2_signer(peer)

    def turn(side: str, url: str, sign: Callable[[], bytes]) -> float:
        prepared = deque(sign() for _ in range(int(MARGIN * last[side]) + CALLERS))
        with pinned(load_core):
            load = drive(url, prepared, callers=CALLERS, seconds=ROUND_SECONDS, expected=EXPECTED)
        last[side] = load.answers
        also[f"{side}_p50_ms"], also[f"{side}_p99_ms"] = load.wait_ms(0.5), load.wait_ms(0.99)
        return load.rate

    return alternate(
        name,
        "purchases/s",
        ROUNDS,
        lambda: turn("ours", gate, ours),
        lambda: turn("reference", peer, theirs),
        also=also,
    )


def v1_signer(gate: str) -> Callable[[], bytes]:
    """What makes requests that buy from our gate."""
    _, body = _unpaid(gate)
    requirements = json.loads(body)["accepts"][0]
    return lambda: request(gate, X_Payment=_signed(requirements))


def v2_signer(url: str) -> Callable[[], bytes]:
    """What makes requests that buy from an official server of protocol version 2."""
    headers, _ = _unpaid(url)
    required = json.loads(base64.b64decode(headers["payment-required"]))
    accepted = required["accepts"][0]
    as_v1 = {**accepted, "network": "base-sepolia", "maxAmountRequired": accepted["amount"]}

    def sign() -> bytes:
        payload = json.loads(base64.b64decode(_signed(as_v1)))["payload"]
        paid = {"x402Version": 2, "payload": payload, "accepted": accepted, "resource": required.get("resource")}
        return request(url, PAYMENT_SIGNATURE=base64.b64encode(json.dumps(paid).encode()).decode())

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
