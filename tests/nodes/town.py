"""Gateways and hubs as programs on hosts of their own, on one PostgreSQL, behind nginx as deploy/ configures it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import aiohttp

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import clean_environment, command, finished
from tests.cli.program import PAYEE, Site
from tests.deploy.proxies import DEPLOY, nginx_with_sites, replaced
from tests.described_answers import has_no_description
from tests.engines import said_to
from tests.forked import start
from tests.nodes.network import Host, Network, listening, network, passing_on
from tests.nodes.postgresql import Server
from tollkeeper.core.evm.encoding import Authorization
from tollkeeper.sandbox.buyer import Answer, Buyer

START_SECONDS: Final = 120
STOP_SECONDS: Final = 60
CHECK_SECONDS: Final = 1_200  # of a million calls
PORT: Final = 8402
_WORDS_BYTES: Final = 3_000


@dataclass(slots=True)
class Target:
    """What is sold: the path that was asked for. `calls` counts the requests with each id that came."""

    url: str = ""
    calls: dict[str, int] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a caller's requests, which have no bodies."""
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("head"):
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                continue
            name = head.partition("\r\nx-request-id: ")[2].partition("\r\n")[0]
            self.calls[name] = self.calls.get(name, 0) + 1
            path = head.split(" ", 2)[1]
            told = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(path)}\r\n\r\n{path}"
            writer.write(told.encode())
            await writer.drain()


async def ready(url: str, check: Callable[[], None] = lambda: None) -> None:
    """Wait until whoever is there says that all it needs is there."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(START_SECONDS):
        while True:
            check()
            with suppress(aiohttp.ClientError):
                async with http.get(url + "/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


class Node:
    """One program on a host of its own, to be started as often as a test likes."""

    def __init__(self, role: str, host: Host, site: Site, environ: dict[str, str]) -> None:
        self.role, self.host, self.site, self.environ = role, host, site, environ
        self.process: subprocess.Popen[bytes] | None = None
        self.log: IO[bytes] = tempfile.NamedTemporaryFile("wb")  # noqa: SIM115 - closed by `end`
        self.url = f"http://{host.address}:{PORT}"

    @property
    def wrote(self) -> str:
        """What it logged since the first start."""
        return Path(self.log.name).read_text(errors="replace")

    @property
    def last_words(self) -> str:
        """The end of that, for it may be long."""
        with Path(self.log.name).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _WORDS_BYTES))
            return log.read().decode(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of that event."""
        whole = self.wrote.rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]

    def start(self, **environ: str) -> None:
        """Start it; it listens later."""
        words = [*self.host.under, *command(self.role, "--config", self.site.config)]
        words += ["--host", self.host.address, "--port", str(PORT)]
        environment = clean_environment({**self.site.environ, **self.environ, **environ})
        self.process = start(words, stdout=self.log, stderr=self.log, env=environment)

    async def ready(self) -> None:
        """Wait until it says of itself that it can do its work."""

        def lives() -> None:
            assert self.process is not None
            assert self.process.poll() is None, self.last_words

        await ready(self.url, lives)

    async def restart(self) -> None:
        """End it in order, start it, wait until it is ready."""
        await self.stop()
        self.start()
        await self.ready()

    async def stop(self) -> None:
        """End it in order."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.wait, STOP_SECONDS) == 0, self.last_words

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill it where it lives, and forget its log."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.log.close()


@dataclass
class Town:
    """`url` is that of nginx in front of the gateways, which is their public one."""

    chain: ChainUnderTest
    network: Network
    server: Server
    site: Site
    url: str
    gateways: list[Node]
    hubs: list[Node]
    target: Target
    buyer: Buyer

    async def gate(self, **fields: object) -> dict[str, Any]:
        """A new gate, of 0.01 USDC for one call unless told otherwise."""
        body = {"targetUrl": self.target.url, "price": "0.01", "credits": 1, "paymentAddress": PAYEE, **fields}
        answer = await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json()
        return made

    async def payment(self, gate: dict[str, Any]) -> str:
        """A payment for it, good for an hour."""
        answer = await self.buyer.ask("GET", f"{self.url}/{gate['slug']}")
        assert answer.status == 402, answer.body
        return self.sign(answer)

    def sign(self, unpaid: Answer) -> str:
        """A payment for what this 402 asks for, good for an hour."""
        return self.buyer.sign(unpaid.json(), for_long)

    async def bought(self, gate: dict[str, Any]) -> str:
        """A payment that has bought, by a first call."""
        payment = await self.payment(gate)
        async with asyncio.timeout(START_SECONDS):
            while (answer := await self.buyer.call(f"{self.url}/{gate['slug']}", payment)).status == 503:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.2)
        assert answer.status == 200, answer.body
        return payment

    async def told(self, node: Node, gate: dict[str, Any], payment: str) -> Answer:
        """What that gateway answers."""
        return await self.buyer.call(f"{node.url}/{gate['slug']}", payment)

    async def assert_books_agree(self, since_block: int) -> None:
        """The books of gateways and hubs hold what the chain does since that block, and agree with each other.

        Nothing was sent that was not written before.
        """
        for node in (self.gateways[0], self.hubs[0]):
            words = ("db", "check", "--chain", "--since-block", str(since_block), "--for", node.role)
            environ = self.site.environ | node.environ
            checked = await asyncio.to_thread(
                finished, *words, "--config", self.site.config, environ=environ, is_forked=False, seconds=CHECK_SECONDS
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
        written = {row["hash"] for row in said_to(self.server.url, "SELECT hash FROM raw_transactions")}
        assert await asyncio.to_thread(self._sent, since_block) <= written

    def _sent(self, since_block: int) -> set[str]:
        """The hub's transactions on the chain since that block."""
        ask, signer = self.chain.rpc.call, self.chain.wallets.relayer.address.lower()
        numbers = range(since_block, int(ask("eth_blockNumber"), 16) + 1)
        blocks = (ask("eth_getBlockByNumber", hex(number), True) for number in numbers)
        return {one["hash"] for block in blocks for one in block["transactions"] if one["from"].lower() == signer}


def for_long(wanted: Authorization) -> Authorization:
    """Longer than a test takes."""
    return replace(wanted, valid_before=wanted.valid_before + 3000)


def nginx(folder: Path, sites: dict[str, list[str]]) -> subprocess.Popen[bytes]:
    """Run nginx as `deploy/nginx/several.conf` has it, without TLS: what it listens at, and the servers behind that."""
    folder.mkdir()
    for number, (place, servers) in enumerate(sites.items()):
        lines = "\n".join(f"    server {server} fail_timeout=2s;" for server in servers)
        site = replaced(
            (DEPLOY / "nginx" / "several.conf").read_text(),
            {
                r"(?s)    server gateway-1.*?gateway-2[^\n]*": lines,
                r"upstream tollkeeper": f"upstream place{number}",
                r"http://tollkeeper;": f"http://place{number};",
                r"listen 443 ssl;": f"listen {place};",
                r"(?m)^    ssl_certificate.*\n": "",
                r"(?s)server \{\n    listen 80;.*": "",
            },
        )
        (folder / f"{number}.conf").write_text(site)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(nginx_with_sites(folder), stderr=log)


@asynccontextmanager
async def town(
    directory: Path,
    chain: ChainUnderTest,
    gateways: int = 4,
    hubs: int = 2,
    standby: int | None = None,
    *,
    are_apart: bool = True,
) -> AsyncIterator[Town]:
    """All of it, running and ready, until the block ends. `standby`: the port of another server that nodes know of.

    Nodes that are not apart have no network of their own, are never cut off, and start by a fork (`tests.forked`).
    """
    async with AsyncExitStack() as stack:
        net = stack.enter_context(network())
        server = Server(net.address, 5432)
        stack.callback(server.remove)
        await asyncio.to_thread(server.make)
        node_url = await stack.enter_async_context(passing_on(net.address, int(chain.url.rpartition(":")[2])))
        target = Target()
        target.url = await stack.enter_async_context(listening(target.serve, net.address))
        site = Site(directory / "site", replace_url(chain, node_url))
        url, hub_url = f"http://{net.address}:8400", f"http://{net.address}:8401"
        site.environ |= {
            "TOLLKEEPER_DATABASE_URL": server.url if standby is None else server.url_with(standby),
            "TOLLKEEPER_TRUSTED_PROXIES": net.address,
            "TOLLKEEPER_UNPAID_REQUESTS_PER_MINUTE": "0",
            "TOLLKEEPER_API_REQUESTS_PER_MINUTE": "0",
        }
        of_hub = {"TOLLKEEPER_PUBLIC_URL": hub_url, "TOLLKEEPER_TRUSTED_ISSUERS": url}
        of_gateway = {"TOLLKEEPER_PUBLIC_URL": url, "TOLLKEEPER_TRUSTED_ISSUERS": hub_url}
        of_gateway["TOLLKEEPER_HUB_URL"] = hub_url
        nodes = [Node("gateway", net.host(is_apart=are_apart), site, of_gateway) for _ in range(gateways)]
        nodes += [Node("hub", net.host(is_apart=are_apart), site, of_hub) for _ in range(hubs)]
        for node in nodes:
            stack.callback(node.end)
        places = [f"{node.host.address}:{PORT}" for node in nodes]
        sites = {f"{net.address}:8400": places[:gateways], f"{net.address}:8401": places[gateways:]}
        front = nginx(directory / "nginx", sites)
        stack.callback(front.wait)
        stack.callback(front.terminate)
        for described in (url, *(node.url for node in nodes)):
            has_no_description(described)  # it is asked in too many ways
        for node in reversed(nodes):
            node.start()
            await node.ready()
        for front_url in (url, hub_url):  # whom nginx took for dead before it was ready is asked again now
            await ready(front_url)
        buyer = await stack.enter_async_context(Buyer(chain.wallets.buyer))
        yield Town(chain, net, server, site, url, nodes[:gateways], nodes[gateways:], target, buyer)


def replace_url(chain: ChainUnderTest, url: str) -> Any:
    """As much of the chain as a site is made of, at the URL by which hosts reach it."""

    @dataclass(frozen=True)
    class Seen:
        url: str
        token_name: str

    return Seen(url, chain.token_name)


async def until(is_so: Any, seconds: float = START_SECONDS) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
