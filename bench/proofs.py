"""`payer-proof`: processor time of a call by a payer's proof, beside one by credit token on the same purchase.

A stock client of version 2 signs a new payment for every call; where its payer holds credits the gateway spends one by
it and settles nothing. Such a call costs a look at the chain and a signature check besides: `lookup_us` and
`signature_us` are what those two cost alone, `ours` is a call by proof without them. `reference` is a call by token.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from bench.buying import v2_purchase, v2_signer
from bench.gateway import family_cpu_seconds
from bench.load import OK, drive
from bench.measuring import Result, cores, pinned, say
from bench.scene import scene
from bench.variety import request
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.evm.config import EvmConfig
from tollkeeper.core.evm.encoding import recover_address, sign_digest
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.load import Visit

AIM: Final = 1.5
CALLERS: Final = 64
ROUNDS: Final = 5
CALLS: Final = 1_500  # of each side in a round
ALONE: Final = 3_000  # look-ups, and signature checks, that are measured alone
_numbers = itertools.count()


def measure() -> Result:
    """Both kinds of call in turns, after one unmeasured turn each."""
    with ExitStack() as stack:
        running = stack.enter_context(scene())
        node = stack.enter_context(running.chain())
        own = stack.enter_context(running.serve(node))
        gate = own.gate(running.target + "/small", allowSubpaths=True)
        token = asyncio.run(_token(gate, v2_signer(gate)()))
        own.rest()
        sign = v2_signer(gate)

        def turn(made: Callable[[], bytes]) -> float:
            visits: deque[Visit] = deque([(made(), OK)] for _ in range(CALLS))
            before = family_cpu_seconds(own.pid)
            with pinned(cores()[1]):
                load = drive(gate, visits, callers=CALLERS, seconds=120)
            return 1e6 * (family_cpu_seconds(own.pid) - before) / load.answers

        proofs_us, tokens_us = [], []
        for number in range(ROUNDS + 1):
            proofs_us.append(turn(lambda: v2_purchase(gate, sign())))
            tokens_us.append(turn(lambda: request(gate, next(_numbers), also=f"X-Credit-Token: {token}")))
            say(f"payer-proof {number}/{ROUNDS}: by proof {proofs_us[-1]:.0f}, by token {tokens_us[-1]:.0f} us")
        with pinned(cores()[0]):
            lookup_us = asyncio.run(_lookup_us(node))
            signature_us = _signature_us()
    whole_us, by_token_us = statistics.median(proofs_us[1:]), statistics.median(tokens_us[1:])
    by_proof_us = whole_us - lookup_us - signature_us
    also: dict[str, float | str] = {
        "proof_us": whole_us,
        "lookup_us": lookup_us,
        "signature_us": signature_us,
        "times_token": by_proof_us / by_token_us,
        "aim_times_token": AIM,
    }
    return Result("payer-proof", by_proof_us, by_token_us, by_token_us / by_proof_us, "us/call", ROUNDS, also)


async def _token(gate: str, payment: str) -> str:
    """The credit token of a purchase that this payment makes."""
    async with Buyer(derive_wallets().buyer) as buyer:
        answer = await buyer.ask("GET", gate, headers={"PAYMENT-SIGNATURE": payment})
    assert answer.status == 200, answer.body
    return answer.headers["x-credit-token"]


async def _lookup_us(node_url: str) -> float:
    """Processor time of one look at the chain, of so many at a time as calls come in."""
    chain = EvmChain(EvmConfig(NETWORKS["base-sepolia"], (node_url,)))
    await chain.open()
    nonces = ["0x" + f"{number:064x}" for number in range(ALONE)]
    payer = derive_wallets().buyer.address
    try:
        before = time.process_time()
        for number in range(0, ALONE, CALLERS):
            some = nonces[number : number + CALLERS]
            await asyncio.gather(*(chain.authorizations.unused(payer, nonce) for nonce in some))
        return 1e6 * (time.process_time() - before) / ALONE
    finally:
        await chain.close()


def _signature_us() -> float:
    """Processor time of one signature check."""
    key = derive_wallets().buyer.private_key
    digests = [number.to_bytes(32, "big") for number in range(1, ALONE)]
    signed = [(digest, sign_digest(digest, key)) for digest in digests]
    before = time.process_time()
    for digest, signature in signed:
        recover_address(digest, signature)
    return 1e6 * (time.process_time() - before) / len(signed)
