"""The program that runs in the namespace: a gateway, every vector at it, and what was seen, as JSON in a file.

The gateway is the one of production: no private targets, the C library's resolver. Every address is this machine's
own and a canary listens at each, so that whatever the gateway lets through arrives, and is seen as a packet besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import aiohttp

from tests.gateway.composed import settings_for
from tests.ssrf import name_server
from tests.ssrf.name_server import NameServer
from tests.ssrf.namespace import Packet, Watch, ask_only, let_be_elsewhere, own_every_address
from tests.ssrf.vectors import (
    ALTERNATING,
    FORBIDDEN_V4,
    FORBIDDEN_V6,
    OWN,
    PUBLIC,
    PUBLIC_NAME,
    TURNING,
    corpus,
)
from tollkeeper.core.configuration import PublicUrl
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.edge.target.addresses import CACHE_SECONDS
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.composition import compose
from tollkeeper.serving.http.server import HttpServer, listen

BUYER_ADDRESS: Final = "127.0.0.9"  # so that nobody else's connection to the gateway looks like the buyer's
CANARY_PORTS: Final = (80, 443, 6379)
ALTERNATIONS: Final = 3
_CREDITS: Final = 1000
_SEVERAL: Final = 8


class LocalBuyer(Buyer):
    """A buyer whose connections come from an address of its own."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=90),
            connector=aiohttp.TCPConnector(local_addr=(BUYER_ADDRESS, 0)),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self


@dataclass(slots=True)
class Canaries:
    """Servers at every address: the public one is the target, the others must never be asked."""

    hit: list[str] = field(default_factory=list)
    served: int = 0
    location: str | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port, *_ = writer.get_extra_info("sockname")
        if (address, port) != (PUBLIC, 80):
            self.hit.append(address)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.served += 1
                if self.location is None:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npublic")
                else:
                    location = self.location.encode()
                    writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % location)
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Until the block ends they listen."""
        async with contextlib.AsyncExitStack() as servers:
            for port in CANARY_PORTS:
                for host in ("0.0.0.0", "::"):  # noqa: S104 - every address
                    await servers.enter_async_context(await asyncio.start_server(self._serve, host, port))
            yield


@dataclass(slots=True)
class Trial:
    """The gateway under trial, and what is written down of it."""

    url: str
    database: Path
    buyer: Buyer
    watch: Watch
    canaries: Canaries
    names: NameServer
    found: dict[str, Any] = field(default_factory=dict)

    async def gate(self, target: str, calls: int = 1) -> Answer:
        """The answer to the creation of a gate."""
        body = {"targetUrl": target, "price": "0.01", "credits": calls}
        return await self.buyer.ask("POST", f"{self.url}/api/v1/paygates", body=body)

    async def bought(self, target: str, calls: int = _CREDITS) -> tuple[dict[str, Any], str]:
        """A gate and the payment that bought its credits; none is used."""
        created = await self.gate(target, calls)
        assert created.status == 201, (target, created.body)
        gate = created.json()
        challenge = await self.buyer.ask("GET", self.reached(gate))
        return gate, self.buyer.sign(challenge.json())

    def reached(self, gate: dict[str, Any]) -> str:
        """The gate's URL; the buyer need not resolve anything."""
        return f"{self.url}/{gate['slug']}"

    async def every_vector(self, urls: list[str]) -> None:
        """Create, update and call with each; the call's gate is as if an older program had let it in."""
        gate, payment = await self.bought(f"http://{PUBLIC}/")
        first = await self.buyer.call(self.reached(gate), payment)
        assert first.status == 200, first.body
        outcomes = self.found["vectors"] = []
        waiting = asyncio.Semaphore(_SEVERAL)

        async def managed(url: str) -> None:
            async with waiting:
                created = await self.gate(url)
                path = f"{self.url}/api/v1/paygates/{gate['id']}"
                changed = await self.buyer.ask("PUT", path, body={"targetUrl": url})
                outcomes.extend(
                    {"stage": stage, "url": url, "status": answer.status, "code": answer.error_code}
                    for stage, answer in (("create", created), ("update", changed))
                )

        self.watch.during = "create or update"
        await asyncio.gather(*(managed(url) for url in urls))
        with contextlib.closing(sqlite3.connect(self.database, timeout=30, isolation_level=None)) as rows:
            for url in urls:
                self.watch.during = f"call {url!r}"
                changed = rows.execute(
                    "UPDATE paygates SET target_url = ?, version = version + 1 WHERE slug = ?", (url, gate["slug"])
                ).rowcount
                assert changed == 1
                answer = await self.buyer.call(self.reached(gate), payment)
                outcomes.append({"stage": "call", "url": url, "status": answer.status, "code": answer.error_code})

    async def names_that_turn(self) -> None:
        """Gates that were made while their name was public, called after it turned; and one that alternates."""
        gates = [await self.bought(f"http://{name}/") for name in TURNING]
        before = [(await self.buyer.call(self.reached(gate), payment)).status for gate, payment in gates]
        while True:
            gate_or_refusal = await self.gate(f"http://{ALTERNATING}/", _CREDITS)
            if gate_or_refusal.status == 201:
                break
        alternating = gate_or_refusal.json()
        challenge = await self.buyer.ask("GET", self.reached(alternating))
        payment = self.buyer.sign(challenge.json())
        self.names.has_turned = True
        alternated = []
        for _ in range(ALTERNATIONS):
            self.watch.during = "a name that alternates"
            alternated.append(await self._outcome(alternating, payment))
            await asyncio.sleep(CACHE_SECONDS + 0.2)
        self.watch.during = "a name that turned"
        after = [await self._outcome(gate, payment) for gate, payment in gates]
        self.found["turned"] = {"before": before, "after": after, "alternated": alternated}

    async def _outcome(self, gate: dict[str, Any], payment: str) -> str:
        answer = await self.buyer.call(self.reached(gate), payment)
        return answer.body.decode() if answer.status == 200 else str(answer.error_code)

    async def redirects(self) -> None:
        """A public target that sends its callers inside."""
        gate, payment = await self.bought(f"http://{PUBLIC_NAME}/")
        passed = self.found["redirects"] = []
        for address in (*FORBIDDEN_V4, *(f"[{address}]" for address in FORBIDDEN_V6)):
            self.canaries.location = f"http://{address}/"
            self.watch.during = f"redirect to {address}"
            answer = await self.buyer.call(self.reached(gate), payment)
            passed.append([self.canaries.location, answer.status, answer.headers.get("location")])
        self.canaries.location = None

    async def settled(self) -> None:
        """Wait until everything that was sent must have been seen."""
        await asyncio.sleep(1)

    async def sense(self) -> None:
        """Knock at every forbidden address that can be connected to at all: the canaries and the watch must tell."""
        knocked = self.found["knocked"] = []
        for address in (*FORBIDDEN_V4, *FORBIDDEN_V6):
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as knocking,
            ):
                knocking.setblocking(False)
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(knocking, (address, 80)), 2)
                knocked.append(address)
        await self.settled()
        self.found["sensed_by_canaries"] = len(self.canaries.hit)
        self.found["sensed_by_watch"] = len(self.watch.seen)
        self.canaries.hit.clear()
        self.watch.seen.clear()


def expected(gateway_port: int, rpc_port: int) -> Any:
    """Whether a packet belongs to the trial itself: to the node, the name server, the target; the buyer's."""

    def is_expected(packet: Packet) -> bool:
        way = (packet.protocol, packet.address, packet.port)
        is_buyers = packet.source == BUYER_ADDRESS and packet.port == gateway_port
        is_answered_name = packet.source == name_server.ADDRESS and packet.protocol == socket.IPPROTO_UDP
        return (
            is_buyers
            or is_answered_name
            or way
            in {
                (socket.IPPROTO_TCP, "127.0.0.1", rpc_port),
                (socket.IPPROTO_TCP, PUBLIC, 80),
                (socket.IPPROTO_UDP, name_server.ADDRESS, name_server.PORT),
            }
        )

    return is_expected


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Trial]:
    """Everything, running."""
    canaries = Canaries()
    async with contextlib.AsyncExitStack() as parts:
        node = await parts.enter_async_context(EvmNode())
        listening = listen("0.0.0.0", 0)  # noqa: S104 - in a namespace of its own
        port = listening.getsockname()[1]
        rpc_port = int(node.url.rstrip("/").rpartition(":")[2])
        watch = parts.enter_context(Watch(expected(port, rpc_port)))
        names = parts.enter_context(NameServer())
        await parts.enter_async_context(canaries.running())
        database = folder / "gateway.db"
        public_url = PublicUrl(f"http://{OWN}:{port}", OWN)
        settings = settings_for(
            node.url,
            database,
            f"http://127.0.0.1:{port}",
            public_url=public_url,
            app_url=None,  # else the loopback host would be the dashboard's alone
            allow_private_targets=False,
            request_limits=RequestLimits(0, 0, 0, 0),
        )
        app = await parts.enter_async_context(compose(settings))
        await parts.enter_async_context(HttpServer(app, listening, drain_seconds=5))
        buyer = await parts.enter_async_context(LocalBuyer(derive_wallets().buyer))
        yield Trial(f"http://127.0.0.1:{port}", database, buyer, watch, canaries, names, {"port": port})


async def run(folder: Path) -> dict[str, Any]:
    """All of it, and what was found."""
    async with opened(folder) as trial:
        await trial.sense()
        await trial.every_vector(corpus(trial.found["port"]))
        await trial.redirects()
        await trial.names_that_turn()
        await trial.settled()
        seen = [[during, packet.address, packet.port] for during, packet in trial.watch.seen]
        return {**trial.found, "hit": trial.canaries.hit, "seen": seen, "lost": trial.watch.lost()}


def main(found: Path) -> None:
    """Write what was found to this file."""
    own_every_address()
    let_be_elsewhere(PUBLIC)
    with TemporaryDirectory() as folder:
        ask_only(name_server.ADDRESS, Path(folder))
        found.write_text(json.dumps(asyncio.run(run(Path(folder)))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
