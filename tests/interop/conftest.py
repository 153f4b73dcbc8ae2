"""Fixtures of the interop tests: the official environments, a running sandbox for each chain, and a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.interop.local_server import LocalServer, Reply, Request, serving
from tests.interop.official import build_environments
from tests.interop.stack import Stack, sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAINS: Final = {"embedded": ()}  # name -> what `tollkeeper sandbox` is told besides


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """The environments of the official packages are there."""
    build_environments()


@pytest.fixture(scope="session", params=CHAINS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running sandbox on each chain in turn."""
    log = tmp_path_factory.mktemp("sandbox") / "log.txt"
    with sandbox(log, *CHAINS[request.param]) as running:
        yield running


@pytest.fixture
def target() -> Iterator[LocalServer]:
    """A target of the tests' own, which tells what it was asked."""

    def answer(request: Request) -> Reply:
        return Reply(200, {"said": "served", "method": request.method, "path": request.path})

    with serving(answer) as server:
        yield server
