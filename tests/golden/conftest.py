"""Fixtures: a sandbox of these tests' own, and what stands for its addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.conftest import target as target  # noqa: PLC0414 - the fixture, for this package too
from tests.gateway.recording_target import RecordingTarget
from tests.interop.stack import Stack, sandbox
from tests.specification.client import Http
from tests.specification.conftest import http as http  # noqa: PLC0414 - the fixture, for this package too
from tests.specification.solana_world import SolanaWorld
from tests.specification.world import World, of_stack


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program keeps its log and its database."""
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="session")
def stack(folder: Path) -> Iterator[Stack]:
    """The program: gateway, hub and embedded chains."""
    with sandbox(folder / "log.txt", "--data-dir", str(folder)) as running:
        yield running


@pytest.fixture
def world(stack: Stack, target: RecordingTarget, http: Http, folder: Path) -> World:
    """The running program, a target and a buyer with funds."""
    return of_stack(stack, target, http, folder / "log.txt", folder / "sandbox.db")


@pytest.fixture
def solana(world: World, stack: Stack) -> SolanaWorld:
    """The same program on Solana."""
    return SolanaWorld(world, stack.solana)
