"""Fixtures of the gateway's black-box tests: a running sandbox in a process of its own, a target, buyers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.books import assert_books_agree
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.interop.stack import Stack, sandbox
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.fixture(scope="session")
def sandbox_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sandbox keeps its database and its log."""
    return tmp_path_factory.mktemp("sandbox")


@pytest.fixture(scope="session")
def stack(sandbox_home: Path) -> Iterator[Stack]:
    """The program: gateway, hub and embedded chain."""
    with sandbox(sandbox_home / "log.txt", "--data-dir", str(sandbox_home)) as running:
        yield running


@pytest.fixture(autouse=True)
def books_agree(tmp_path: Path, sandbox_home: Path) -> Iterator[None]:
    """After each test every invariant holds, in the databases of its own and in the running sandbox's."""
    yield
    assert_books_agree(tmp_path)
    assert_books_agree(sandbox_home)


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
