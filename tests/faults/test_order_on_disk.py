"""What the kernel saw: what is promised is on the disk before it leaves (security F2, F10, F15)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.client import assert_settled_once, pay
from tests.faults.counts import came
from tests.faults.shop import Shop, url_of
from tests.faults.syscalls import assert_safe_before_sent, wait_for_end, watched_into
from tests.gateway.recording_target import recording_target
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import new_payment
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CALLERS: Final = 8


def column(database: Path, query: str) -> list[bytes]:
    """What the query finds, as bytes."""
    with closing(sqlite3.connect(database)) as books:
        found = [value for (value,) in books.execute(query)]
    return [value if isinstance(value, bytes) else value.encode() for value in found]


async def settle_under_watch(directory: Path, chain: ChainUnderTest, count: int) -> None:
    """So many payments, eight at a time."""
    before = chain.balance(chain.wallets.owner.address)
    payments = [new_payment(chain) for _ in range(count)]
    trace = directory / "trace"
    with await asyncio.to_thread(HubProcess, directory, chain.url, under=watched_into(trace)) as hub:
        for first in range(0, count, CALLERS):
            answers = await asyncio.gather(*(pay(hub.url, one) for one in payments[first : first + CALLERS]))
            assert all(answer["success"] for answer in answers)
        await assert_settled_once(hub.url, directory, chain, payments, before)
    seen = await asyncio.to_thread(wait_for_end, trace, hub.process.pid)
    raws = column(directory / "hub.db", "SELECT raw FROM raw_transactions")
    assert len(raws) == count
    # In the log as bytes, in a call of the node in hex.
    assert_safe_before_sent(seen, [(raw, raw.hex().encode()) for raw in raws])
    came("settlement whose order on the disk was seen", count)


async def call_under_watch(directory: Path, chain: ChainUnderTest, count: int) -> None:
    """So many paid calls, eight at a time."""
    trace = directory / "trace"
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        shop = await asyncio.to_thread(Shop, directory / "home", chain, chain.url)
        with shop.serving(under=watched_into(trace)) as program:
            url = await asyncio.to_thread(url_of, program)
            body = {"price": "0.01", "targetUrl": target.url, "credits": count}
            slug = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()["slug"]
            payment = buyer.sign((await buyer.ask("GET", f"{url}/{slug}")).json())
            assert (await buyer.call(f"{url}/{slug}", payment)).status == 200
            for first in range(1, count, CALLERS):
                calls = (buyer.call(f"{url}/{slug}", payment) for _ in range(first, min(first + CALLERS, count)))
                assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
        names = [request.header("x-request-id") or "" for request in target.requests]
    seen = await asyncio.to_thread(wait_for_end, trace, program.process.pid)
    assert sorted(name.encode() for name in names) == sorted(column(shop.database, "SELECT id FROM calls"))
    assert len(names) == count
    assert_safe_before_sent(seen, [(name.encode(), name.encode()) for name in names])
    came("paid call whose order on the disk was seen", count)
    await assert_nothing_lost(directory, chain, paid=[authorization_in(payment)], sites=[shop.site])


async def test_a_raw_transaction_is_synced_to_the_disk_before_its_first_byte_leaves_for_the_node(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await settle_under_watch(tmp_path, embedded_chain, 20)


async def test_a_spend_is_synced_to_the_disk_before_its_call_leaves_for_the_target(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await call_under_watch(tmp_path, embedded_chain, 40)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("under_watch", [settle_under_watch, call_under_watch])
async def test_a_thousand_settlements_and_as_many_calls_are_safe_before_they_leave(
    tmp_path: Path, embedded_chain: ChainUnderTest, under_watch: Callable[[Path, ChainUnderTest, int], Awaitable[None]]
) -> None:
    await under_watch(tmp_path, embedded_chain, 1000)
