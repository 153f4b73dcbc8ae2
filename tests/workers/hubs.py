"""Several hubs on one database, whoever started them: what they send, what they commit, and asking them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import configured
from tests.hub.chaos import run_chaos
from tests.hub.hub_under_test import TestPayment


@dataclass
class Site:
    """A configured hub that is not running."""

    home: Path
    chain: ChainUnderTest
    node_url: str
    sent: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        configured(self.home, self.node_url)
        self.use_key(self.chain.wallets.relayer.private_key_hex)

    def use_key(self, key: str) -> None:
        (self.home / "keys" / "signer.key").write_text(key + "\n")

    @property
    def config(self) -> Path:
        return self.home / "tollkeeper.toml"

    @property
    def environ(self) -> dict[str, str]:
        return {"TOLLKEEPER_LOG_FORMAT": "json", "TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": self.chain.token_name}

    def count(self, call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Between hubs and node: what is sent."""
        if call["method"] == "eth_sendRawTransaction":
            self.sent[call["params"][0]] += 1
        return answer

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What is committed."""
        with closing(sqlite3.connect(f"file:{self.home / 'data' / 'hub.db'}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()

    async def until_confirmed(self, count: int) -> None:
        async with asyncio.timeout(90):
            while self.rows("SELECT state, count(*) FROM settlements GROUP BY state") != [("CONFIRMED", count)]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


@asynccontextmanager
async def run_site(home: Path, chain: ChainUnderTest) -> AsyncIterator[tuple[Site, ExitStack]]:
    """A site whose line to the node counts what is sent; what is entered in the stack ends before its books agree."""
    async with run_chaos(chain.url) as chaos:
        site = await asyncio.to_thread(Site, home, chain, chaos.url)
        chaos.falsify = site.count
        with ExitStack() as stack:
            yield site, stack
            await asyncio.to_thread(stack.close)
    await asyncio.to_thread(assert_books_agree, home)


async def settle(http: aiohttp.ClientSession, url: str, payment: TestPayment, **headers: str) -> tuple[int, Any]:
    """The answer, 0 where whoever had the request was killed."""
    body = payment.asking(confirm=True)
    try:
        async with http.post(url + "/settle", json=body, headers=headers) as answer:
            return answer.status, await answer.json()
    except (aiohttp.ClientError, ConnectionError):
        return 0, {}


async def buy(http: aiohttp.ClientSession, urls: list[str], payment: TestPayment) -> None:
    """Asks one after the other, with the same payment, until one tells what became of it."""
    async with asyncio.timeout(90):
        while True:
            for url in list(urls):
                status, body = await settle(http, url, payment, Prefer="wait=5")
                if status == 200:
                    assert body["success"] or body["errorReason"] == "duplicate_settlement", body
                    return
            await asyncio.sleep(0.2)


async def mine_slowly(chain: ChainUnderTest) -> None:
    """A block every half second, until cancelled."""
    while True:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(chain.rpc.call, "evm_mine")


def new_session() -> aiohttp.ClientSession:
    """Each request on a connection of its own, so that the kernel spreads them over all who listen."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
