"""Fixtures: running chains, as new for each test.

`chain` is every combination of node and token, and all must agree; the others are one each.

What a fixture needs and does not find is an error, never a skip; `tests/chains/setup` installs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.chains.anvil import FIAT_TOKEN_NAME, deploy_fiat_token, fund_wallets, plant_test_token, run_anvil
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcClient
from tests.node_thread import run_in_thread
from tollkeeper.sandbox.evm.engine import EngineName
from tollkeeper.sandbox.evm.node import TOKEN_NAME, EvmNode
from tollkeeper.sandbox.wallets import TestWallets, derive_wallets

_OTHER_NAME = "Dollar of Another Name"


@pytest.fixture(scope="session")
def wallets() -> TestWallets:
    """The public test wallets."""
    return derive_wallets()


@contextlib.contextmanager
def run_anvil_with_fiat_token(wallets: TestWallets) -> Iterator[ChainUnderTest]:
    """A fresh anvil with Circle's token, under the name that it has on base-sepolia."""
    with run_anvil() as url, contextlib.closing(RpcClient(url)) as rpc:
        fund_wallets(rpc, wallets)
        deploy_fiat_token(rpc, wallets)
        yield ChainUnderTest("anvil-fiat-token", rpc, wallets, FIAT_TOKEN_NAME)


@contextlib.contextmanager
def run_anvil_with_test_token(wallets: TestWallets, *, name: str = _OTHER_NAME) -> Iterator[ChainUnderTest]:
    """A fresh anvil with our own token, unless told otherwise under a name that neither network uses."""
    with run_anvil() as url, contextlib.closing(RpcClient(url)) as rpc:
        fund_wallets(rpc, wallets)
        plant_test_token(rpc, wallets, name=name)
        yield ChainUnderTest("anvil-test-token", rpc, wallets, name)


@pytest.fixture(scope="session")
def embedded_nodes(wallets: TestWallets) -> Iterator[dict[EngineName, ChainUnderTest]]:
    """One embedded chain per engine for the whole run. Use `embedded_chain`, which takes changes back."""
    with contextlib.ExitStack() as running:
        chains = {}
        for engine in EngineName:
            node = running.enter_context(run_in_thread(EvmNode(engine=engine, wallets=wallets)))
            rpc = running.enter_context(contextlib.closing(RpcClient(node.url)))
            chains[engine] = ChainUnderTest(f"embedded-{engine}", rpc, wallets, TOKEN_NAME)
        yield chains


@contextlib.contextmanager
def taken_back(chain: ChainUnderTest) -> Iterator[ChainUnderTest]:
    """The chain, as it was before once the block ends."""
    before = chain.rpc.call("evm_snapshot")
    yield chain
    assert chain.rpc.call("evm_revert", before)


@pytest.fixture
def anvil_fiat_token(wallets: TestWallets) -> Iterator[ChainUnderTest]:
    """Circle's FiatTokenV2_2, named USDC, on anvil."""
    with run_anvil_with_fiat_token(wallets) as chain:
        yield chain


@pytest.fixture
def anvil_test_token(wallets: TestWallets) -> Iterator[ChainUnderTest]:
    """Our own token on anvil."""
    with run_anvil_with_test_token(wallets) as chain:
        yield chain


@pytest.fixture
def anvil_same_token(wallets: TestWallets) -> Iterator[ChainUnderTest]:
    """Our own token on anvil under the name that it has in the sandbox: what is signed for one holds on the other."""
    with run_anvil_with_test_token(wallets, name=TOKEN_NAME) as chain:
        yield chain


@pytest.fixture
def embedded_chain(embedded_nodes: dict[EngineName, ChainUnderTest]) -> Iterator[ChainUnderTest]:
    """The sandbox's chain on its native engine."""
    with taken_back(embedded_nodes[EngineName.REVM]) as chain:
        yield chain


@pytest.fixture(params=["embedded-revm", "embedded-pyevm", "anvil-fiat-token", "anvil-test-token"])
def chain(
    request: pytest.FixtureRequest, wallets: TestWallets, embedded_nodes: dict[EngineName, ChainUnderTest]
) -> Iterator[ChainUnderTest]:
    """Every combination of node and token in turn."""
    running = {
        "embedded-revm": lambda: taken_back(embedded_nodes[EngineName.REVM]),
        "embedded-pyevm": lambda: taken_back(embedded_nodes[EngineName.PYEVM]),
        "anvil-fiat-token": lambda: run_anvil_with_fiat_token(wallets),
        "anvil-test-token": lambda: run_anvil_with_test_token(wallets),
    }[request.param]()
    with running as chain:
        yield chain
