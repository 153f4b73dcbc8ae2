"""`settle-load`: settles at 1, 16 and 64 callers on anvil with Circle's FiatTokenV2_2, which mines every second.

Each caller waits for its answer, which both sides give once the transaction is mined. The ratio is that of settles per
second at 64 callers, who begin right after a block: otherwise chance decides whether the first block of a run of six
comes too early for all of them, and that is a seventh of the rate. One core is the measured side's; chain and callers
share the other.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from bench.load import Load, drive, prepared
from bench.measuring import Result, cores, pinned, say
from bench.payments import sandbox_asset, signed_payments
from bench.processes import serving
from bench.references.running import official_facilitator
from tests.chains.anvil import FIAT_TOKEN_NAME, deploy_fiat_token, fund_wallets, run_anvil
from tests.chains.rpc_client import RpcClient
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections import deque

    from bench.load import Visit

CALLERS: Final = (1, 16, 64)
SECONDS: Final = 6.0
# The official facilitator needs about a second for each: one request of each caller is all there is time for.
REFERENCE_SECONDS: Final = 1.0
OUR_PAYMENTS: Final = 4_000
REFERENCE_PAYMENTS: Final = 400
EXPECTED: Final = b'"success":true'
NAME: Final = "settle-load"


def wait_for_block(rpc: RpcClient) -> None:
    """Until there is another block than now."""
    before = rpc.call("eth_blockNumber")
    while rpc.call("eth_blockNumber") == before:
        time.sleep(0.005)


def measure() -> Result:
    """Our hub beside the official Python facilitator."""
    wallets = derive_wallets()
    server_core, load_core = cores()
    asset = sandbox_asset(FIAT_TOKEN_NAME)
    with contextlib.ExitStack() as running:
        with pinned(load_core):
            node = running.enter_context(run_anvil())
        rpc = running.enter_context(contextlib.closing(RpcClient(node)))
        fund_wallets(rpc, wallets)
        deploy_fiat_token(rpc, wallets)
        hub = running.enter_context(serving("our_hub", server_core, node))
        with pinned(server_core):
            key = wallets.faucet.private_key_hex
            reference = running.enter_context(official_facilitator(node, key)).url + "/settle"
        ours = hub.url + "/settle"
        bodies = [one.body for one in signed_payments(OUR_PAYMENTS, asset, confirm=True)]
        our_visits = prepared(ours, bodies, EXPECTED)
        their_visits = prepared(reference, [one.body for one in signed_payments(REFERENCE_PAYMENTS, asset)], EXPECTED)

        def settle(url: str, visits: deque[Visit], callers: int, seconds: float) -> Load:
            with pinned(load_core):
                return drive(url, visits, callers=callers, seconds=seconds)

        also: dict[str, float | str] = {}
        settle(ours, our_visits, 16, 1.0)
        settle(reference, their_visits, 16, 1.0)
        rpc.call("evm_setIntervalMining", 1)
        for callers in CALLERS:
            wait_for_block(rpc)
            load = settle(ours, our_visits, callers, SECONDS)
            said = {"rate": load.rate, "p50_ms": load.wait_ms(0.5), "p99_ms": load.wait_ms(0.99)}
            also |= {f"at_{callers}_{what}": value for what, value in said.items()}
            say(f"{NAME}, {callers} callers: {load.rate:.1f}/s, p99 {said['p99_ms']:.0f} ms")
        ours_rate = load.rate
        wait_for_block(rpc)
        theirs = settle(reference, their_visits, CALLERS[-1], REFERENCE_SECONDS)
        also["reference_p99_ms"] = theirs.wait_ms(0.99)
        return Result(NAME, ours_rate, theirs.rate, ours_rate / theirs.rate, "settles/s", 1, also)
