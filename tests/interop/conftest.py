"""Fixtures of the interop tests: the official environments, a running sandbox for each chain, and a target."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.fixtures_chain import run_anvil_with_fiat_token
from tests.interop.local_server import LocalServer, Reply, Request, serving
from tests.interop.official import build_environments
from tests.interop.stack import Stack, sandbox
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

CHAINS: Final = ("embedded", "anvil")


@contextmanager
def on_anvil(log: pathlib.Path) -> Iterator[Stack]:
    """Gateway and hub of a sandbox on anvil with Circle's token, under the name that the token has there."""
    wallets = derive_wallets()
    with (
        run_anvil_with_fiat_token(wallets) as chain,
        sandbox(log, "--rpc-url", chain.url, "--relayer-key", wallets.relayer.private_key_hex) as running,
    ):
        yield running


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """The environments of the official packages are there."""
    build_environments()


@pytest.fixture(scope="session", params=CHAINS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running sandbox on each chain in turn."""
    log = tmp_path_factory.mktemp("sandbox") / "log.txt"
    with on_anvil(log) if request.param == "anvil" else sandbox(log) as running:
        yield running


@contextmanager
def serving_goods() -> Iterator[LocalServer]:
    """Run a target that tells what it was asked."""

    def answer(request: Request) -> Reply:
        return Reply(200, {"said": "served", "method": request.method, "path": request.path})

    with serving(answer) as server:
        yield server


@pytest.fixture
def target() -> Iterator[LocalServer]:
    """A target of the test's own."""
    with serving_goods() as server:
        yield server
