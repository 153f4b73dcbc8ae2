"""`settle-batch`: gas per payment of ten in a batch over a single one's, on anvil with Circle's FiatTokenV2_2.

Every payment is of another payer to one payee who holds the token, which is what a busy gate sees. Gas is no question
of the machine: it is counted once.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final

from bench.measuring import Result, cores, pinned, say
from tests.chains.anvil import FIAT_TOKEN_NAME, deploy_fiat_token, fund_wallets, run_anvil
from tests.chains.batching import ADDRESSES, payers, plant, signed
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcClient
from tollkeeper.core.evm.batches import Via, batch_gas, encode_batch
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS: Final = 10
SIZES: Final = (2, 5, ITEMS, 25)


def measure() -> Result:
    """Gas of a batch through our contract over a single's; through Multicall3 beside it."""
    also: dict[str, float | str] = {"items": ITEMS}
    with _anvil() as chain:
        for via in Via:
            plant(chain, via)
        single, gas = _gas(chain)
        also["batcher_10_distinct_payees_ratio"] = _gas_of_distinct_payees(chain) / single
    for (via, size), each in gas.items():
        also[f"{via.name.lower()}_{size}_ratio"] = each / single
        say(f"settle-batch: {size} in a batch through {via.name.lower()}: {each:.0f} gas each, {each / single:.3f}")
    ours = gas[Via.BATCHER, ITEMS]
    return Result("settle-batch", ours, single, ours / single, "gas/payment", 1, also)


@contextlib.contextmanager
def _anvil() -> Iterator[ChainUnderTest]:
    wallets = derive_wallets()
    with contextlib.ExitStack() as running:
        with pinned(cores()[1]):
            url = running.enter_context(run_anvil())
        rpc = running.enter_context(contextlib.closing(RpcClient(url)))
        fund_wallets(rpc, wallets)
        deploy_fiat_token(rpc, wallets)
        yield ChainUnderTest("anvil-fiat-token", rpc, wallets, FIAT_TOKEN_NAME)


def _gas(chain: ChainUnderTest) -> tuple[float, dict[tuple[Via, int], float]]:
    """Of a single settlement, and of each payment in a batch of that way and size."""
    wallets = payers(chain, max(SIZES), seed=secrets.token_hex(8))
    for wallet in wallets:  # so that payee and payers are as warm as they will be
        first = signed(chain, wallet)
        chain.relay(transfer_calldata(first.authorization, first.signature))
    one = signed(chain, wallets[0])
    single = _used(chain.relay(transfer_calldata(one.authorization, one.signature)))
    found: dict[tuple[Via, int], float] = {}
    for via in Via:
        for size in SIZES:
            data = encode_batch(via, USDC_ADDRESS, [signed(chain, wallet) for wallet in wallets[:size]])
            receipt = chain.send_and_wait(chain.wallets.relayer, ADDRESSES[via], data, gas=batch_gas(via, size))
            if len(receipt["logs"]) != 2 * size:
                message = "a batch did not make all of its transfers"
                raise RuntimeError(message)
            found[via, size] = _used(receipt) / size
    return single, found


def _gas_of_distinct_payees(chain: ChainUnderTest) -> float:
    """Of each of ten payments in a batch where every one goes to somebody else, who holds the token."""
    wallets = payers(chain, 2 * ITEMS, seed=secrets.token_hex(8))
    pairs = zip(wallets[:ITEMS], wallets[ITEMS:], strict=True)
    batch = [signed(chain, payer, pay_to=payee.address) for payer, payee in pairs]
    data = encode_batch(Via.BATCHER, USDC_ADDRESS, batch)
    gas = batch_gas(Via.BATCHER, ITEMS)
    return _used(chain.send_and_wait(chain.wallets.relayer, ADDRESSES[Via.BATCHER], data, gas=gas)) / ITEMS


def _used(receipt: dict[str, Any]) -> int:
    return int(receipt["gasUsed"], 16)
