"""The program composed in the test's own event loop, for settings and faults that the sandbox does not have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.keys.keyring import Secret
from tollkeeper.sandbox.stack import HOST, sandbox_settings
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving import composition
from tollkeeper.serving.composition import compose
from tollkeeper.serving.http.server import HttpServer, listen
from tollkeeper.settings.model import Settings
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database


def settings_for(rpc_url: str, database: Path, gateway_url: str = "http://127.0.0.1:1", **changes: Any) -> Settings:
    """A sandbox's settings with some of them changed."""
    wallets = derive_wallets()
    relayer = Secret(wallets.relayer.private_key)
    return replace(sandbox_settings(gateway_url, database, rpc_url, relayer, wallets), **changes)


def opened_databases(monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    """Those of the programs that are composed from now on, as they are opened."""
    opened: list[Database] = []
    really_open = open_database

    def noting(*asked: Any) -> Database:
        opened.append(really_open(*asked))
        return opened[-1]

    monkeypatch.setattr(composition, "open_database", noting)
    return opened


@asynccontextmanager
async def composed(
    rpc_url: str,
    database: Path,
    *,
    drain_seconds: int = 5,
    inspection_seconds: float = 60,
    at: int = 0,
    patience: Patience | None = None,
    **changes: Any,
) -> AsyncIterator[str]:
    """The URL of a program with these settings, at that port or any."""
    listening = listen(HOST, at)
    url = f"http://{HOST}:{listening.getsockname()[1]}"
    async with (
        compose(settings_for(rpc_url, database, url, **changes), inspection_seconds) as app,
        HttpServer(app, listening, drain_seconds=drain_seconds, patience=patience or Patience()) as server,
    ):
        yield server.url
