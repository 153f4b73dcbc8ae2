"""A hub whose kernel kills it, or refuses it, at the n-th write or sync of its database (security F1 to F3, F13, F14).

Wherever that is, in its start or in a settlement: the same payment, presented to the next process, is settled once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.client import assert_settled_once, pay, present
from tests.faults.counts import came, rounds
from tests.faults.syscalls import failing
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import TestPayment, new_payment

KILL: Final = "signal=KILL"
FAULTS: Final = [KILL, "error=EIO", "error=ENOSPC"]
TOGETHER: Final = 4
CALLS: Final = ["fdatasync", "pwrite64"]


async def settle_through(
    directory: Path, chain: ChainUnderTest, call: str, fault: str, numbers: Iterable[int]
) -> list[int]:
    """Payments for each number, to a process that fails there and then to one that does not; where it died.

    Calls are counted by thread, and threads take turns at the database: so several payments for each.
    """
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments: list[TestPayment] = []
    died: list[int] = []
    for number in numbers:
        some = {f"key.{number}.{place}": new_payment(chain) for place in range(TOGETHER)}
        payments += some.values()
        under = failing(call, number, fault)
        with await asyncio.to_thread(HubProcess, directory, chain.url, under=under) as hub:
            answer = None
            if hub.url:
                async with aiohttp.ClientSession() as http:
                    for key, payment in some.items():
                        answer = await present(http, hub.url, payment, key=key)
            if answer is None and fault == KILL:
                assert await asyncio.to_thread(hub.process.wait, 30) == -signal.SIGKILL
                died.append(number)
        came(f"{call}: {fault}")
        with await asyncio.to_thread(HubProcess, directory, chain.url) as hub:
            for key, payment in some.items():
                assert (await pay(hub.url, payment, key=key))["success"] is True, key
    with await asyncio.to_thread(HubProcess, directory, chain.url) as hub:
        await assert_settled_once(hub.url, directory, chain, payments, before)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(payments)
    return died


async def test_a_hub_killed_at_any_of_its_syncs_settles_once(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    died = await settle_through(tmp_path, embedded_chain, "fdatasync", KILL, range(1, 5))
    assert len(died) >= 2


async def test_a_hub_refused_any_of_its_syncs_settles_once(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    await settle_through(tmp_path, embedded_chain, "fdatasync", "error=EIO", range(1, 5))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_hub_that_fails_at_any_write_or_sync_settles_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, call: str, fault: str
) -> None:
    numbers = (number + 1 for number in rounds(24, seconds=60))
    await settle_through(tmp_path, embedded_chain, call, fault, numbers)
