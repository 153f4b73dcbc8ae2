from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import ChaosNode, run_chaos
from tests.hub.gateway_requests import TRUSTED
from tests.hub.hub_under_test import HubUnderTest, run_hub
from tollkeeper.core.settlement.states import Depths
from tollkeeper.hub.evm import batch


@pytest_asyncio.fixture
async def hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """On the embedded chain."""
    async with run_hub(tmp_path, embedded_chain) as running:
        yield running


@pytest_asyncio.fixture
async def trusting_hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """A hub that trusts gateways, whose requests `test_purchase_data` signs."""
    async with run_hub(tmp_path, embedded_chain, trusted_keys=TRUSTED) as running:
        yield running


@pytest_asyncio.fixture
async def hub_on_chain(tmp_path: Path, chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """On every combination of node and token in turn."""
    async with run_hub(tmp_path, chain) as running:
        yield running


@pytest_asyncio.fixture
async def chaos(embedded_chain: ChainUnderTest) -> AsyncIterator[ChaosNode]:
    """What stands between hub and node, for faults."""
    async with run_chaos(embedded_chain.url) as node:
        yield node


@pytest_asyncio.fixture
async def chaos_hub(tmp_path: Path, embedded_chain: ChainUnderTest, chaos: ChaosNode) -> AsyncIterator[HubUnderTest]:
    """A hub that reaches its node through `chaos`."""
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url) as running:
        yield running


@pytest_asyncio.fixture
async def hub_on_anvil(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """On anvil with Circle's token."""
    async with run_hub(tmp_path, anvil_fiat_token) as running:
        yield running


@pytest_asyncio.fixture
async def deep_hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Success needs three confirmations."""
    async with run_hub(tmp_path, embedded_chain, config={"depths": Depths(3)}) as running:
        yield running


@pytest_asyncio.fixture
async def hub_with_low_cap(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Pays at most one wei per gas."""
    async with run_hub(tmp_path, embedded_chain, config={"max_fee_per_gas_wei": 1}) as running:
        yield running


@pytest_asyncio.fixture
async def nodes(embedded_chain: ChainUnderTest) -> AsyncIterator[list[ChaosNode]]:
    """Three ways to the same chain."""
    async with AsyncExitStack() as running:
        yield [await running.enter_async_context(run_chaos(embedded_chain.url)) for _ in range(3)]


@pytest_asyncio.fixture
async def hub_of_three(
    tmp_path: Path, embedded_chain: ChainUnderTest, nodes: list[ChaosNode]
) -> AsyncIterator[HubUnderTest]:
    urls = tuple(node.url for node in nodes)
    async with run_hub(tmp_path, embedded_chain, config={"rpc_urls": urls, "timeout_seconds": 2.0}) as running:
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for company waits until the batch is full: on a busy machine not all come within the usual moment."""
    monkeypatch.setattr(batch, "WAIT_SECONDS", 5.0)
