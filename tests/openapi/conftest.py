"""Fixtures: a sandbox of these tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop.stack import Stack, ask, sandbox


@dataclass(frozen=True)
class Described:
    """The running program and what its parts say of themselves."""

    stack: Stack
    gateway: dict[str, Any]
    hub: dict[str, Any]

    def url(self, part: str) -> str:
        return {"gateway": self.stack.gateway_url, "hub": self.stack.hub_url}[part]

    def document(self, part: str) -> dict[str, Any]:
        return {"gateway": self.gateway, "hub": self.hub}[part]

    @property
    def operations(self) -> dict[str, dict[str, Any]]:
        return {
            f"{part} {method.upper()} {path}": operation
            for part in ("gateway", "hub")
            for path, item in self.document(part)["paths"].items()
            for method, operation in item.items()
        }


@pytest.fixture(scope="session")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    """The program: gateway, hub and embedded chain."""
    folder = tmp_path_factory.mktemp("openapi")
    with sandbox(folder / "log.txt", "--data-dir", str(folder)) as stack:
        gateway, hub = (ask(f"{url}/openapi.json")[1] for url in (stack.gateway_url, stack.hub_url))
        yield Described(stack, gateway, hub)
