"""A gateway whose facilitator is a stranger's, on any family, and what becomes of its sales, told from its database."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.engines import beside
from tests.gateway.composed import composed, settings_for
from tests.gateway.foreign_facilitator import Foreign
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import NetworkSettings, Role, Settings

DEAD_NODE = "http://127.0.0.1:1"


@dataclass(slots=True)
class SalesAbroad(ABC):
    """A running gateway's sales; `database` is its file."""

    url: str
    database: Path
    site: Site
    buyer: Buyer

    @property
    def served(self) -> int:
        """How many calls reached the target."""
        return len(self.site.target.requests)

    async def create(self, **fields: object) -> Answer:
        """Asks for a gate that is paid at the site."""
        site = self.site
        body = {"price": "0.01", "targetUrl": site.target.url, "paymentAddress": site.pay_to, **fields}
        return await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)

    async def gate(self, **fields: object) -> dict[str, Any]:
        """The gate."""
        answer = await self.create(**fields)
        assert answer.status == 201, answer.body
        return answer.json()

    async def read(self, gate: dict[str, Any]) -> dict[str, Any]:
        """The gate as its owner reads it now."""
        return (await self.buyer.ask("GET", f"{self.url}/api/v1/paygates/{gate['id']}")).json()

    @abstractmethod
    async def payment(self, gate: dict[str, Any]) -> str:
        """An `X-Payment` value that the gate takes."""

    async def pay(self, gate: dict[str, Any], payment: str) -> Answer:
        """A call with it."""
        return await self.buyer.call(f"{self.url}/{gate['slug']}", payment)

    async def present(self, gate: dict[str, Any], payment: str) -> Answer:
        """The same payment, again and again while the outcome is not known; never told to pay again meanwhile."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.pay(gate, payment)
                if answer.status != 503:
                    return answer
                assert answer.error_code in {"SETTLEMENT_PENDING", "UNAVAILABLE"}
                assert "accepts" not in answer.json()
                await asyncio.sleep(0.2)

    def purchase(self) -> tuple[Any, ...]:
        """State, failure, whether it is confirmed, and remaining credits of the newest purchase."""
        with beside(self.database) as connection:
            row: tuple[Any, ...] = connection.execute(
                "SELECT state, failure, confirmed, remaining FROM holdings ORDER BY claimed_ms DESC"
            ).fetchone()
            return row

    async def until(self, wanted: str | Callable[[tuple[Any, ...]], bool]) -> tuple[Any, ...]:
        """The purchase once it is in this state, or as is wanted."""
        async with asyncio.timeout(30):
            while True:
                found = self.purchase()
                if wanted(found) if callable(wanted) else found[0] == wanted:
                    return found
                await asyncio.sleep(0.05)

    async def until_asked(self, count: int = 1) -> None:
        """Until so many requests to settle have come, and the gateway has looked at the chain since."""
        async with asyncio.timeout(20):
            while len(self.site.foreign.settles) < count:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)


@dataclass(slots=True)
class Site(ABC):
    """A foreign facilitator, its chain, a gateway's database and target. `EXPIRED` is said of what came too late."""

    SALES: ClassVar[type[SalesAbroad]]
    EXPIRED: ClassVar[str]

    foreign: Foreign
    database: Path
    target: RecordingTarget

    @property
    @abstractmethod
    def rpc_url(self) -> str:
        """The chain's node."""

    @property
    @abstractmethod
    def pay_to(self) -> str:
        """Who is paid."""

    @abstractmethod
    def received_micro(self) -> int:
        """What was paid so far."""

    @abstractmethod
    def last_transaction(self) -> str:
        """The name of the one that was carried out last, as the chain shows it."""

    @abstractmethod
    def held(self) -> AbstractAsyncContextManager[None]:
        """Nothing is carried out within the block; all that waits is at its end."""

    @abstractmethod
    def age(self) -> None:
        """Makes every payment so old that it seems to be over, but is not by proof."""

    @abstractmethod
    def expire(self) -> None:
        """Makes every payment too old to be carried out, for everybody to see."""

    @abstractmethod
    def finalise(self) -> None:
        """Lays more blocks on what was carried out, where that matters."""

    def networks(self, *rpc_urls: str) -> dict[str, NetworkSettings]:
        """The one network, with these nodes."""
        name = self.foreign.NETWORK
        return {name: NetworkSettings(NETWORKS[name], rpc_urls)}

    def settings(self) -> Settings:
        """Of a gateway here, as a command reads them."""
        networks = self.networks(self.rpc_url)
        return settings_for("", self.database, role=Role.GATEWAY, networks=networks)

    @asynccontextmanager
    async def gateway(self, **changes: Any) -> AsyncIterator[SalesAbroad]:
        """The program, as `tollkeeper gateway` runs it, with a node of its own."""
        settings: dict[str, Any] = {
            "role": Role.GATEWAY,
            "hub_url": self.foreign.url,
            "networks": self.networks(self.rpc_url),
            "default_network": NETWORKS[self.foreign.NETWORK],
            "default_payment_address": self.pay_to,
            **changes,
        }
        async with composed("", self.database, **settings) as url, Buyer(derive_wallets().buyer) as buyer:
            yield self.SALES(url, self.database, self, buyer)
