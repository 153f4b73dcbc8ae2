"""A hub process and its node with a broken network between them: every payment is settled once (F3-F5, F9, A-15)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.client import assert_settled_once, pay
from tests.faults.counts import came
from tests.faults.tcp_chaos import NODE_TIMEOUT_SECONDS, Fault, TcpChaos, run_tcp_chaos
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import new_payment

PHASES: Final = {
    "simulation": "eth_call",
    "fees": "eth_maxPriorityFeePerGas",
    "nonces": "eth_getTransactionCount",
    "send": "eth_sendRawTransaction",
    "receipt": "eth_getTransactionReceipt",
    "canonical block": "eth_getBlockByNumber",
}
# Fault, and after how many bytes a cut comes.
FAULTS: Final = [
    (Fault.LATENCY, 0),
    (Fault.CUT_REQUEST, 0),
    (Fault.CUT_REQUEST, 40),
    (Fault.CUT_ANSWER, 0),
    (Fault.CUT_ANSWER, 40),
    (Fault.BLACKHOLE, 0),
    (Fault.SILENCE, 0),
    (Fault.TOO_LATE, 0),
    (Fault.TWICE, 0),
]


# What a hub remembers of fees, it has forgotten by then.
FEES_FORGOTTEN_SECONDS: Final = 2.2


async def pay_through(
    chaos: TcpChaos, directory: Path, chain: ChainUnderTest, strikes: list[tuple[Fault, int]], *, callers: int
) -> int:
    """So many payments at once through each fault in each phase; each ends as one success. How many faults came."""
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments = []
    struck = 0
    with await asyncio.to_thread(HubProcess, directory, chaos.url, node_timeout_seconds=NODE_TIMEOUT_SECONDS) as hub:
        for fault, after_bytes in strikes:
            for phase, method in PHASES.items():
                if phase == "fees":
                    await asyncio.sleep(FEES_FORGOTTEN_SECONDS)
                together = [new_payment(chain) for _ in range(callers)]
                payments += together
                chaos.strike(method, fault, after_bytes=after_bytes, times=callers)
                paid = await asyncio.gather(*(pay(hub.url, payment) for payment in together))
                assert [answer["success"] for answer in paid] == [True] * callers, (fault, phase, paid)
                async with asyncio.timeout(30):
                    while chaos.struck == 0:  # noqa: ASYNC110 - until recovery asks for it, too
                        await asyncio.sleep(0.05)
                chaos.calm()
                struck += chaos.struck
                came(f"connection to the node: {fault.name.lower()}", chaos.struck)
        await assert_settled_once(hub.url, directory, chain, payments, before)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(payments)  # and no other transaction was signed
    return struck


@pytest.mark.parametrize(("fault", "after_bytes"), FAULTS, ids=[f"{fault.name}-{size}" for fault, size in FAULTS])
async def test_a_broken_connection_to_the_node_in_any_phase_settles_each_payment_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, fault: Fault, after_bytes: int
) -> None:
    async with run_tcp_chaos(embedded_chain.url) as chaos:
        assert await pay_through(chaos, tmp_path, embedded_chain, [(fault, after_bytes)], callers=1) >= len(PHASES)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
async def test_many_payments_through_cuts_after_any_byte_are_settled_once_each(
    tmp_path: Path, embedded_chain: ChainUnderTest, seed: int
) -> None:
    chosen = random.Random(seed)
    strikes = [(chosen.choice(list(Fault)), chosen.randrange(1500)) for _ in range(8)]
    async with run_tcp_chaos(embedded_chain.url) as chaos:
        assert await pay_through(chaos, tmp_path, embedded_chain, strikes, callers=8) >= len(strikes) * len(PHASES)
