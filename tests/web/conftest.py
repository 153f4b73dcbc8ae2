"""Fixtures of the pages' tests: a running sandbox, a target, and a browser for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Browser

from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.interop.stack import Stack, sandbox
from tests.web.browsing import EvmWallet, SolanaSigner, browsing
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The program: gateway, hub and embedded chains."""
    home = tmp_path_factory.mktemp("sandbox")
    with sandbox(home / "log.txt", "--data-dir", str(home)) as running:
        yield running


@pytest.fixture
async def target() -> AsyncIterator[RecordingTarget]:
    """Where the gates of a test point."""
    async with recording_target() as running:
        yield running


@pytest.fixture
async def market(stack: Stack, target: RecordingTarget) -> AsyncIterator[Market]:
    """Everything that a test of a purchase needs."""
    async with Buyer(derive_wallets().buyer) as buyer:
        yield Market(stack, target, buyer)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium."""
    async with browsing() as running:
        yield running


@pytest.fixture
def wallet() -> EvmWallet:
    """The test buyer's wallet, on the sandbox's network."""
    return EvmWallet(derive_wallets().buyer)


@pytest.fixture
def solana_wallet() -> SolanaSigner:
    """The test buyer's wallet on Solana."""
    return SolanaSigner(derive_solana_wallets().buyer)
