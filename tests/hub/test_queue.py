"""How many settlements are under way at a time, and the share of trusted gateways (contract 5.2; security A-24)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.gateway_requests import TRUSTED
from tests.hub.hub_under_test import (
    NETWORK,
    HubUnderTest,
    hub_config,
    in_the_pool,
    new_hub,
    new_payment,
    run_hub,
    serving,
    start_hub,
)
from tests.hub.test_gas import by_gateway
from tests.storage.plans import plan_of
from tollkeeper.hub.app import create_app
from tollkeeper.storage.engine.database import Statement, load_queries

ROOM = {"settlements_max": 10}


@pytest_asyncio.fixture
async def narrow_hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Ten settlements at a time; half of them are kept for a gateway. No block comes before it is told to."""
    async with run_hub(tmp_path, embedded_chain, trusted_keys=TRUSTED, config=ROOM) as running:
        embedded_chain.rpc.call("evm_setAutomine", False)
        yield running
        embedded_chain.rpc.call("evm_setAutomine", True)
        embedded_chain.rpc.call("evm_mine")


async def strangers(hub: HubUnderTest, chain: ChainUnderTest, count: int) -> Counter[int]:
    answers = await asyncio.gather(
        *(hub.settle(new_payment(chain), confirm=False, prefer="wait=0") for _ in range(count))
    )
    for answer in answers:
        if answer.status != 200:
            assert (answer.code, answer.body["error"]["type"]) == ("UNAVAILABLE", "server")
            assert int(answer.headers["Retry-After"]) > 0
            assert "too many settlements are under way" in answer.body["error"]["message"]
    return Counter(answer.status for answer in answers)


async def rows(hub: HubUnderTest) -> int:
    found = await hub.hub.database.read(Statement("SELECT count(*) AS total FROM settlements"))
    total: int = found[0]["total"]
    return total


async def test_strangers_who_fill_the_queue_leave_half_of_it_to_a_trusted_gateway(
    narrow_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    signed_before = embedded_chain.nonce(embedded_chain.wallets.relayer)
    assert await strangers(narrow_hub, embedded_chain, 30) == {200: 5, 503: 25}
    assert await rows(narrow_hub) == 5  # nothing was claimed for the others
    sales = [asyncio.create_task(by_gateway(narrow_hub, embedded_chain, f"claim-{index}.1")) for index in range(8)]
    for answered in itertools.islice(asyncio.as_completed(sales), 3):
        assert not await answered
    await in_the_pool(embedded_chain, signed_before + 10)
    embedded_chain.rpc.call("evm_mine")  # which the other five wait for
    assert Counter([await sale for sale in sales]) == {True: 5, False: 3}
    assert await rows(narrow_hub) == 10
    embedded_chain.rpc.call("evm_mine")
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == signed_before + 10
    turned_away = narrow_hub.hub.metrics.registry.get_sample_value(
        "tollkeeper_hub_settlements_turned_away_total", {"network": NETWORK}
    )
    assert turned_away == 28


async def test_what_is_mined_makes_room_again(narrow_hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    for _ in range(3):
        assert await strangers(narrow_hub, embedded_chain, 8) == {200: 5, 503: 3}
        assert await strangers(narrow_hub, embedded_chain, 2) == {503: 2}
        embedded_chain.rpc.call("evm_mine")
        await narrow_hub.complete()
    assert await rows(narrow_hub) == 15


async def test_a_payment_that_was_turned_away_is_good_once_there_is_room(
    narrow_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    assert await strangers(narrow_hub, embedded_chain, 5) == {200: 5}
    payment = new_payment(embedded_chain)
    assert (await narrow_hub.settle(payment, key="once", prefer="wait=0")).code == "UNAVAILABLE"
    assert await narrow_hub.status(payment) == "unknown"
    embedded_chain.rpc.call("evm_mine")
    await narrow_hub.complete()
    embedded_chain.rpc.call("evm_setAutomine", True)
    assert (await narrow_hub.settle(payment, key="once")).body["success"] is True


async def test_without_a_trusted_gateway_the_queue_is_everybody_s_and_one_for_all_hubs_of_a_database(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    async with run_hub(tmp_path, chain, config=ROOM, shared_life_seconds=30.0) as first:
        keys, config = (chain.wallets.relayer.private_key,), hub_config(chain.url, **ROOM)
        beside = new_hub(first.database, keys, config, shared_life_seconds=30.0)
        await start_hub(beside)
        try:
            async with serving(create_app(beside)) as url:
                second = replace(first, hub=beside, url=url)
                chain.rpc.call("evm_setAutomine", False)
                counts = await asyncio.gather(*(strangers(hub, chain, 8) for hub in (first, second)))
                assert counts[0] + counts[1] == {200: 10, 503: 6}
                chain.rpc.call("evm_setAutomine", True)
                chain.rpc.call("evm_mine")
        finally:
            await beside.close()


@pytest.mark.sqlite_only("it reads SQLite's plan")
async def test_what_a_key_has_promised_is_added_up_from_what_is_under_way_and_not_from_all_it_ever_signed(
    narrow_hub: HubUnderTest,
) -> None:
    """Each claim asks for it while a key's money is short."""
    query = load_queries("claim_bounds.sql").read_promised(network=NETWORK, signer="0x" + "11" * 20, since_ms=0)
    lines = await plan_of(narrow_hub.hub.database, query)
    assert any("USING INDEX settlements_under_way" in line for line in lines)
    assert any("raw_transactions_by_nonce (network=? AND signer=? AND signer_nonce=?)" in line for line in lines)
    assert not any("settlement_slots_by_nonce" in line or "AUTOMATIC" in line for line in lines), lines
