"""`verify-node`: verifications per second through POST /verify with every read of the node, 64 callers, 512 payers.

The node is anvil with Circle's FiatTokenV2_2. Both sides read it for each payment: what the payer is, holds and has
used up, and whether the transfer would pass. Reference: the official Python facilitator, default install. Whoever is
measured has one core to itself; the node and the callers share the other. `core_busy` near 1 says that the hub was the
limit, below it the node was.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Final

from bench.load import Load, drive, prepared
from bench.measuring import Result, alternate, cores, cpu_seconds, pinned
from bench.payments import sandbox_asset, signed_payments
from bench.processes import serving
from bench.references.running import official_facilitator
from tests.chains.anvil import FIAT_TOKEN_NAME, deploy_fiat_token, fund_wallets, run_anvil
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcClient
from tollkeeper.core.evm.encoding import address_of_key
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections import deque

    from bench.load import Visit

CALLERS: Final = 64
PAYERS: Final = 512
PAYMENTS: Final = 4_096
ROUNDS: Final = 5
OUR_SECONDS: Final = 3.0
REFERENCE_SECONDS: Final = 5.0


def measure() -> Result:
    """Our hub beside the official Python facilitator, on one node."""
    server_core, load_core = cores()
    wallets = derive_wallets()
    also: dict[str, float | str] = {"callers": CALLERS}
    with contextlib.ExitStack() as running:
        with pinned(load_core):
            rpc_url = running.enter_context(run_anvil())
        with contextlib.closing(RpcClient(rpc_url)) as rpc:
            fund_wallets(rpc, wallets)
            deploy_fiat_token(rpc, wallets)
            chain = ChainUnderTest("anvil", rpc, wallets, FIAT_TOKEN_NAME)
            payer_keys = [secrets.token_bytes(32) for _ in range(PAYERS)]
            for key in payer_keys:
                chain.mint(address_of_key(key), 1_000_000)
        hub = running.enter_context(serving("our_hub", server_core, rpc_url))
        with pinned(server_core):
            facilitator = running.enter_context(official_facilitator(rpc_url, wallets.faucet.private_key_hex))
        bodies = [one.body for one in signed_payments(PAYMENTS, sandbox_asset(FIAT_TOKEN_NAME), payer_keys)]
        our_url, reference_url = hub.url + "/verify", facilitator.url + "/verify"
        ours, theirs = (prepared(url, bodies, b'"isValid":true') for url in (our_url, reference_url))

        def verify(url: str, visits: deque[Visit], seconds: float) -> Load:
            with pinned(load_core):
                return drive(url, visits, callers=CALLERS, seconds=seconds, repeat=True)

        def verify_ours() -> float:
            before = cpu_seconds(hub.pid)
            load = verify(our_url, ours, OUR_SECONDS)
            spent = cpu_seconds(hub.pid) - before
            also.update(core_busy=spent / load.seconds, cpu_ms=1000 * spent / load.answers)
            also.update(p50_ms=load.wait_ms(0.5), p99_ms=load.wait_ms(0.99))
            return load.rate

        def verify_theirs() -> float:
            load = verify(reference_url, theirs, REFERENCE_SECONDS)
            also["reference_p50_ms"] = load.wait_ms(0.5)
            return load.rate

        return alternate("verify-node", "verifies/s", ROUNDS, verify_ours, verify_theirs, also=also)
