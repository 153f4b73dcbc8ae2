"""Fixtures of the Solana chain's tests: the sandbox's node, whose slots pass by hand, and the chain behind it.

`chain` is every test's EVM chain and `solana` is not it: a fixture here of that name would hide the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.chains.solana_node import WALLETS
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.solana.node import SolanaNode


@pytest.fixture
async def node() -> AsyncIterator[SolanaNode]:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as running:
        yield running


@pytest.fixture
async def solana(node: SolanaNode) -> AsyncIterator[SolanaChain]:
    opened = SolanaChain(SolanaConfig(NETWORKS["solana-devnet"], (node.url,)))
    await opened.open()
    yield opened
    await opened.close()
