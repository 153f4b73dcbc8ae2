"""The program with several workers, what surrounds it, and how its processes are found, killed and told apart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, configured, running
from tests.gateway.recording_target import RecordingTarget, recording_target
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PAYEE = "0x" + "77" * 20
WAIT_SECONDS = 60
START_SECONDS = 120  # four interpreters, one after the other, on a machine that has other work


class Site:
    """A configured program that is not running."""

    def __init__(self, home: Path, chain: ChainUnderTest) -> None:
        self.home = home
        self.config = configured(home, chain.url, payment_address=PAYEE)
        self.key = derive_wallets().relayer.private_key_hex
        (home / "keys" / "signer.key").write_text(self.key + "\n")
        self.environ = {
            "TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true",
            "TOLLKEEPER_ANONYMOUS_PAYGATES": "manage",
            "TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": chain.token_name,
            "TOLLKEEPER_LOG_FORMAT": "json",
        }

    @property
    def database(self) -> Path:
        return next(self.home.glob("data/*.db"))

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """What the database has committed."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def serving(self, workers: int = 2, port: int = 0, under: tuple[str, ...] = ()) -> Iterator[Program]:
        arguments = ("serve", "--config", self.config, "--port", str(port), "--workers", str(workers))
        with running(*arguments, environ=self.environ, under=under) as process:
            try:
                said = process.wait_for_event("serving", START_SECONDS)
                yield Program(self, process, said["url"], said.get("processes", {}))
            finally:
                if process.process.poll() is None:  # let it take its children with it
                    process.process.terminate()
                    with contextlib.suppress(Exception):
                        process.exit_code()


@dataclass
class Program:
    """The running one. `processes`: process ids by name, as they were at the start."""

    site: Site
    process: Running
    url: str
    processes: dict[str, int]

    @property
    def parent(self) -> int:
        return self.process.process.pid

    def children(self) -> dict[str, int]:
        """The living processes by what they are: ledger, hub, worker 1, ...; none twice."""
        started = {line["process"]: line["pid"] for line in self.process.lines() if line["event"] == "process_started"}
        return {name: pid for name, pid in started.items() if is_alive(pid)}

    def kill(self, name: str) -> None:
        pid = self.children().get(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Does a process with this id run, and is it no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Scene:
    """A program, a target, a buyer with funds."""

    site: Site
    program: Program
    target: RecordingTarget
    buyer: Buyer
    chain: ChainUnderTest

    async def gate(self, **fields: object) -> dict[str, Any]:
        """A new gate at the target: 0.01 USDC for one GET, unless told otherwise."""
        body = {"targetUrl": self.target.url, "price": "0.01", "credits": 1, **fields}
        answer = await self.buyer.ask("POST", self.program.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        return {**answer.json(), "url": f"{self.program.url}/{answer.json()['slug']}"}

    async def change(self, gate: dict[str, Any], **fields: object) -> None:
        answer = await self.buyer.ask("PUT", f"{self.program.url}/api/v1/paygates/{gate['id']}", body=fields)
        assert answer.status == 200, answer.body

    async def buy(self, gate: dict[str, Any]) -> tuple[str, Answer]:
        """A payment, and the answer to the call that bought with it."""
        payment = self.buyer.sign((await self.buyer.ask("GET", gate["url"])).json())
        return payment, await self.buyer.call(gate["url"], payment)

    async def until(self, is_so: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self.program.process.wrote
            await asyncio.sleep(0.05)


@asynccontextmanager
async def scene(home: Path, chain: ChainUnderTest, workers: int = 2) -> AsyncIterator[Scene]:
    site = await asyncio.to_thread(Site, home, chain)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving(workers) as program:
            yield Scene(site, program, target, buyer, chain)


def mark_of(answer: Answer) -> str:
    """Which process answered."""
    return answer.headers["x-request-id"][12:20]


@dataclass
class Line:
    """One kept connection, so one worker."""

    session: aiohttp.ClientSession
    marks: set[str] = field(default_factory=set)

    async def get(self, url: str, **headers: str) -> Answer:
        """A GET, which the client sends again by itself where a kept connection breaks."""
        return await self._ask("GET", url, headers)

    async def post(self, url: str, **headers: str) -> Answer:
        """A POST, which is sent once."""
        return await self._ask("POST", url, headers)

    async def _ask(self, method: str, url: str, headers: dict[str, str]) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, url, headers=named) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            answer = Answer(response.status, found, await response.read())
        self.marks.add(mark_of(answer))
        return answer


@asynccontextmanager
async def lines_to_all(url: str, workers: int, count: int = 8) -> AsyncIterator[list[Line]]:
    """At least `count` connections, among them one to each of the workers."""
    async with contextlib.AsyncExitStack() as opened:
        lines: list[Line] = []
        marks: set[str] = set()
        while len(lines) < count or len(marks) < workers:
            assert len(lines) < 200, marks
            connector = aiohttp.TCPConnector(limit=1)
            line = Line(await opened.enter_async_context(aiohttp.ClientSession(connector=connector)))
            await line.get(url)
            marks |= line.marks
            lines.append(line)
        yield lines


def price_in(answer: Answer) -> str:
    """The price that a 402 shows."""
    price: str = json.loads(answer.body)["paymentRequired"]["amount"]
    return price
