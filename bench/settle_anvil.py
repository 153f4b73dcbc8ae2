"""`settle-anvil`: settles per second on anvil with Circle's FiatTokenV2_2, mining at once."""

from __future__ import annotations

import contextlib

from bench.measuring import Result, cores, pinned
from bench.settling import measure_settling
from tests.chains.anvil import FIAT_TOKEN_NAME, deploy_fiat_token, fund_wallets, run_anvil
from tests.chains.rpc_client import RpcClient
from tollkeeper.sandbox.wallets import derive_wallets


def measure() -> Result:
    """Our hub beside the official Python facilitator."""
    wallets = derive_wallets()
    with contextlib.ExitStack() as running:
        with pinned(cores()[1]):
            url = running.enter_context(run_anvil())
        with contextlib.closing(RpcClient(url)) as rpc:
            fund_wallets(rpc, wallets)
            deploy_fiat_token(rpc, wallets)
        return measure_settling("settle-anvil", url, FIAT_TOKEN_NAME)
