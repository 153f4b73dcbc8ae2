"""`settle-solana`: settles per second on the sandbox's Solana chain, in a process of its own.

16 callers, distinct payments, our hub beside the official Python facilitator, each with a fee payer of its own, each
answering only when it saw the transaction confirmed. The chain executes what it is sent at the next slot's beginning,
every 0.4 s, as a cluster does. A payment is good for 150 slots, so that each turn has payments that were signed just
before.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from bench.load import Load, drive, prepared
from bench.measuring import Result, alternate, cores, cpu_seconds, pinned
from bench.processes import serving
from bench.references.running import official_solana_facilitator
from bench.solana_payments import signed_payments
from tollkeeper.core.solana.base58 import decode_key
from tollkeeper.sandbox.wallets import derive_solana_wallet, derive_solana_wallets

if TYPE_CHECKING:
    from collections import deque

    from bench.load import Visit

CALLERS: Final = 16
ROUNDS: Final = 3
SECONDS: Final = 5.0  # of a turn
OUR_PAYMENTS: Final = 2_000
REFERENCE_PAYMENTS: Final = 500
_FEE_MONEY_LAMPORTS: Final = 10 * 10**9


class _Bench:
    """A chain, our hub and the official facilitator on it; `also` takes what is measured beside the rates."""

    def __init__(self, running: ExitStack) -> None:
        self.also: dict[str, float | str] = {"callers": CALLERS}
        self._server_core, self._load_core = cores()
        # The reference's is none of ours: what it sends is nothing that our hub should find in its books.
        mine, other = derive_solana_wallets().fee_payers[0], derive_solana_wallet("reference")
        self._fee_payers = mine.address, other.address
        self._node = running.enter_context(serving("embedded_solana_node", self._load_core))
        self._hub = running.enter_context(serving("our_hub", self._server_core, self._node.url, "solana"))
        _ask(self._node.url, "requestAirdrop", other.address, _FEE_MONEY_LAMPORTS)
        with pinned(self._server_core):
            official = official_solana_facilitator(self._node.url, other.secret_key)
            self._facilitator = running.enter_context(official)
        self._signed = 0

    def ours(self) -> float:
        """The rate of one turn of our hub."""
        url = self._hub.url + "/settle"
        requests = self._fresh(url, OUR_PAYMENTS, self._fee_payers[0], confirm=True)
        used = cpu_seconds(self._hub.pid)
        load = self._settle(url, requests)
        self.also["p50_ms"], self.also["p99_ms"] = load.wait_ms(0.5), load.wait_ms(0.99)
        self.also["cpu_ms"] = (cpu_seconds(self._hub.pid) - used) * 1000 / load.answers
        return load.rate

    def theirs(self) -> float:
        """The rate of one turn of the official facilitator."""
        url = self._facilitator.url + "/settle"
        requests = self._fresh(url, REFERENCE_PAYMENTS, self._fee_payers[1])
        used = cpu_seconds(self._facilitator.pid)
        load = self._settle(url, requests)
        self.also["reference_p50_ms"] = load.wait_ms(0.5)
        self.also["reference_cpu_ms"] = (cpu_seconds(self._facilitator.pid) - used) * 1000 / load.answers
        return load.rate

    def _fresh(self, url: str, count: int, fee_payer: str, **options: bool) -> deque[Visit]:
        self._signed += count
        payments = signed_payments(count, _blockhash(self._node.url), self._signed, fee_payer, **options)
        return prepared(url, [one.body for one in payments], b'"success":true')

    def _settle(self, url: str, visits: deque[Visit]) -> Load:
        with pinned(self._load_core):
            return drive(url, visits, callers=CALLERS, seconds=SECONDS)


def measure() -> Result:
    """Our hub beside the official Python facilitator."""
    with ExitStack() as running:
        bench = _Bench(running)
        return alternate("settle-solana", "settles/s", ROUNDS, bench.ours, bench.theirs, also=bench.also)


def _blockhash(rpc_url: str) -> bytes:
    return decode_key(_ask(rpc_url, "getLatestBlockhash")["value"]["blockhash"])


def _ask(rpc_url: str, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(rpc_url, call, {"Content-Type": "application/json"})  # noqa: S310 - http, ours
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)["result"]
