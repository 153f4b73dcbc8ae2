"""The program as a process of its own, and what surrounds it: configuration, target, buyer with funds."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, configured, running
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PAYEE = "0x" + "77" * 20
WAIT_SECONDS = 60
START_SECONDS = 120  # an interpreter that starts on a machine that has other work


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
    def serving(self, port: int = 0, under: tuple[str, ...] = ()) -> Iterator[Program]:
        port = port or free_port()
        environ = {"TOLLKEEPER_PUBLIC_URL": f"http://127.0.0.1:{port}", **self.environ}  # our clients log in there only
        arguments = ("serve", "--config", self.config, "--port", str(port))
        with running(*arguments, environ=environ, under=under) as process:
            try:
                said = process.wait_for_event("serving", START_SECONDS)
                yield Program(self, process, said["url"])
            finally:
                if process.process.poll() is None:
                    process.process.terminate()
                    with contextlib.suppress(Exception):
                        process.exit_code()


@dataclass
class Program:
    """The running one."""

    site: Site
    process: Running
    url: str

    @property
    def pid(self) -> int:
        return self.process.process.pid


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
async def scene(home: Path, chain: ChainUnderTest) -> AsyncIterator[Scene]:
    async with opened(await asyncio.to_thread(Site, home, chain), chain) as town:
        yield town


@asynccontextmanager
async def opened(site: Site, chain: ChainUnderTest) -> AsyncIterator[Scene]:
    """A program of this configuration, and what surrounds it."""
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            yield Scene(site, program, target, buyer, chain)
