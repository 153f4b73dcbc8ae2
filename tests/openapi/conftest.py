"""Fixtures: a sandbox of these tests' own, in which something was bought."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop.stack import Stack, ask, sandbox
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


@dataclass(frozen=True)
class Described:
    """The running program and what its parts say of themselves; `paid` is a payment that the hub knows."""

    stack: Stack
    gateway: dict[str, Any]
    hub: dict[str, Any]
    paid: dict[str, Any]

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
        yield Described(stack, gateway, hub, asyncio.run(_bought(stack)))


async def _bought(stack: Stack) -> dict[str, Any]:
    gate = stack.create_gate(price="0.01", targetUrl=stack.target_url)
    async with Buyer(derive_wallets().buyer) as buyer:
        answer = await buyer.call(gate["accessUrl"], buyer.sign(stack.challenge(gate)))
        assert answer.status == 200
        token = await buyer.login(stack.hub_url)
        listed = await buyer.ask(
            "GET", f"{stack.hub_url}/api/v1/history?limit=1", headers={"Authorization": f"Bearer {token}"}
        )
    data: dict[str, Any] = listed.json()["history"][0]["x402Data"]
    return data
