"""Fixtures of the gateway's black-box tests: a running sandbox in a process of its own, a target, buyers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.interop.stack import Stack, sandbox
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The program: gateway, hub and embedded chain."""
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
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
