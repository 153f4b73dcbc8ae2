"""Fixtures: a sandbox of these tests' own, whose log and database they may read, and the world around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.gateway.conftest import target as target  # noqa: PLC0414 - the fixture, for this package too
from tests.gateway.recording_target import RecordingTarget
from tests.interop.stack import Stack, sandbox
from tests.specification.client import Http
from tests.specification.other_network import base_world, solana_world_of_its_own
from tests.specification.program import Program, ProgramOfItsOwn
from tests.specification.rows import is_on_solana
from tests.specification.solana_world import SolanaWorld, on_solana
from tests.specification.world import World, of_stack


@pytest.fixture(autouse=True)
def row_id(request: pytest.FixtureRequest) -> str:
    """The row of the specification that a test case is named after; empty for the few that are about no row."""
    return str(getattr(request, "param", ""))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program keeps its log and its database."""
    return tmp_path_factory.mktemp("specification")


@pytest.fixture(scope="session")
def stack(folder: Path) -> Iterator[Stack]:
    """The program: gateway, hub and embedded chain."""
    with sandbox(folder / "log.txt", "--data-dir", str(folder)) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """Raw HTTP."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),  # the tests have their own; one of them waits for ten minutes
    ) as session:
        yield Http(session)


@pytest.fixture
def world(stack: Stack, target: RecordingTarget, http: Http, folder: Path) -> World:
    """The running program, a target and a buyer with funds."""
    return of_stack(stack, target, http, folder / "log.txt", folder / "sandbox.db")


@pytest.fixture
def solana(world: World, stack: Stack) -> SolanaWorld:
    """The same program on Solana."""
    return SolanaWorld(world, stack.solana)


@pytest.fixture
def program(row_id: str, world: World, solana: SolanaWorld) -> Program:
    """The same program as a test asks it that knows no family: of that which its row is of."""
    return on_solana(solana) if is_on_solana(row_id) else world


@pytest.fixture
def of_its_own(row_id: str, tmp_path: Path, target: RecordingTarget, http: Http) -> ProgramOfItsOwn:
    """Another program of the row's family, composed here, under the settings that are given."""
    return partial(solana_world_of_its_own if is_on_solana(row_id) else base_world, tmp_path, target, http)
