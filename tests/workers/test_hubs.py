"""`tollkeeper hub --workers 2`: two hubs on one database, under load and with kill -9 (contract 5.2; security F20)."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, finished, running
from tests.hub.chaos import ChaosNode, run_chaos
from tests.hub.hub_under_test import TestPayment, new_payment
from tests.workers.program import START_SECONDS, is_alive

SEND = "eth_sendRawTransaction"
WORKERS = 2


@dataclass
class Hubs:
    """The running program, and what it sends to its node."""

    home: Path
    chain: ChainUnderTest
    url: str
    program: Running
    sent: Counter[str] = field(default_factory=Counter)

    def children(self) -> dict[str, int]:
        """The living hubs by their names."""
        started = {line["process"]: line["pid"] for line in self.program.lines() if line["event"] == "process_started"}
        return {name: pid for name, pid in started.items() if name.startswith("hub") and is_alive(pid)}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What is committed."""
        with closing(sqlite3.connect(f"file:{self.home / 'data' / 'hub.db'}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()

    async def settle(self, http: aiohttp.ClientSession, payment: TestPayment, **headers: str) -> tuple[int, Any]:
        """The answer, 0 where whoever had the request was killed."""
        body = payment.asking(confirm=True)
        try:
            async with http.post(self.url + "/settle", json=body, headers=headers) as answer:
                return answer.status, await answer.json()
        except (aiohttp.ClientError, ConnectionError):
            return 0, {}

    async def until_confirmed(self, count: int) -> None:
        async with asyncio.timeout(90):
            while self.rows("SELECT state, count(*) FROM settlements GROUP BY state") != [("CONFIRMED", count)]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


@contextmanager
def hub_program(home: Path, chain: ChainUnderTest, node_url: str) -> Iterator[tuple[Running, str]]:
    """A configured hub with two workers."""
    made = finished("init", "--dir", home, "--rpc-url", node_url)
    assert made.returncode == 0, made.stderr
    (home / "keys" / "signer.key").write_text(chain.wallets.relayer.private_key_hex + "\n")
    environ = {"TOLLKEEPER_LOG_FORMAT": "json", "TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": chain.token_name}
    arguments = ("hub", "--config", home / "tollkeeper.toml", "--port", "0", "--workers", str(WORKERS))
    with running(*arguments, environ=environ) as process:
        yield process, process.wait_for_event("serving", START_SECONDS)["url"]
        process.process.terminate()
        process.exit_code()


@asynccontextmanager
async def two_hubs(home: Path, chain: ChainUnderTest) -> AsyncIterator[tuple[Hubs, ChaosNode]]:
    async with run_chaos(chain.url) as chaos:
        with ExitStack() as stack:
            process, url = await asyncio.to_thread(stack.enter_context, hub_program(home, chain, chaos.url))
            hubs = Hubs(home, chain, url, process)

            def count(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
                if call["method"] == SEND:
                    hubs.sent[call["params"][0]] += 1
                return answer

            chaos.falsify = count
            assert set(hubs.children()) == {"hub 1", "hub 2"}
            yield hubs, chaos
            await asyncio.to_thread(stack.close)
    await asyncio.to_thread(assert_books_agree, home)


def new_session() -> aiohttp.ClientSession:
    """Each request on a connection of its own, so that the kernel spreads them over both."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def test_two_hubs_share_the_work_and_give_each_success_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    owner = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    async with two_hubs(tmp_path / "home", chain) as (hubs, _), new_session() as http:
        payments = [new_payment(chain) for _ in range(60)]
        answers = await asyncio.gather(*(hubs.settle(http, payment) for payment in payments * 3))
        successes = Counter(body["transaction"] for status, body in answers if status == 200 and body["success"])
        assert (len(successes), set(successes.values())) == (60, {1})
        await hubs.until_confirmed(60)
        assert len(hubs.rows("SELECT DISTINCT holder FROM settlements")) == WORKERS
        assert (len(hubs.sent), set(hubs.sent.values())) == (60, {1})
        assert chain.nonce(chain.wallets.relayer) == nonce + 60
        assert chain.balance(chain.wallets.owner.address) == owner + 600_000


async def test_what_a_killed_hub_carried_the_other_finishes_and_nobody_pays_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Under load on slow blocks, one after the other is killed by SIGKILL; callers ask again with the same payment."""
    chain = embedded_chain
    owner = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    async with two_hubs(tmp_path / "home", chain) as (hubs, _), new_session() as http:
        payments = [new_payment(chain) for _ in range(60)]
        chain.rpc.call("evm_setAutomine", False)

        async def buy(payment: TestPayment) -> None:
            async with asyncio.timeout(90):
                while True:
                    status, body = await hubs.settle(http, payment, Prefer="wait=5")
                    if status == 200:
                        assert body["success"] or body["errorReason"] == "duplicate_settlement", body
                        return
                    await asyncio.sleep(0.2)

        async def mine() -> None:
            while True:
                await asyncio.sleep(0.5)
                await asyncio.to_thread(chain.rpc.call, "evm_mine")

        mining = asyncio.create_task(mine())
        buying = [asyncio.create_task(buy(payment)) for payment in payments]
        for name in ("hub 1", "hub 2", "hub 1"):
            async with asyncio.timeout(60):
                while name not in hubs.children():  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            os.kill(hubs.children()[name], signal.SIGKILL)
        await asyncio.gather(*buying)
        await hubs.until_confirmed(60)
        mining.cancel()
        chain.rpc.call("evm_setAutomine", True)
        mined = chain.nonce(chain.wallets.relayer) - nonce
        assert mined == len(hubs.rows("SELECT DISTINCT signer_nonce FROM settlement_slots"))
        assert chain.balance(chain.wallets.owner.address) == owner + 600_000
