"""Hubs that are started one by one with `--share-database`, on one database (contract 5.2; security F20)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, finished, running
from tests.hub.hub_under_test import new_payment
from tests.workers.hubs import Site, buy, mine_slowly, new_session, run_site, settle
from tests.workers.program import START_SECONDS
from tollkeeper.sandbox.wallets import derive_wallets

PROGRAMS = 2
PAYMENTS = 60


@dataclass
class Program:
    """One of them, on a port of its own."""

    process: Running
    url: str

    @property
    def id(self) -> int:
        return self.process.process.pid

    def kill(self) -> None:
        self.process.process.kill()
        self.process.process.wait()


@contextmanager
def one_more(site: Site) -> Iterator[Program]:
    arguments = ("hub", "--config", site.config, "--port", "0", "--share-database")
    with running(*arguments, environ=site.environ) as process:
        yield Program(process, process.wait_for_event("serving", START_SECONDS)["url"])
        if process.process.poll() is None:
            process.process.terminate()
            process.exit_code()


@asynccontextmanager
async def several(home: Path, chain: ChainUnderTest) -> AsyncIterator[tuple[Site, list[Program], ExitStack]]:
    """Two programs that run; more may be entered."""
    async with run_site(home, chain) as (site, stack):
        # At once: who comes first lets the other one in.
        starting = (asyncio.to_thread(stack.enter_context, one_more(site)) for _ in range(PROGRAMS))
        yield site, list(await asyncio.gather(*starting)), stack


async def test_programs_that_share_a_database_share_the_work_and_give_each_success_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    owner = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    async with several(tmp_path / "home", chain) as (site, programs, _), new_session() as http:
        urls = [program.url for program in programs]
        payments = [new_payment(chain) for _ in range(PAYMENTS)]
        own, all_s = payments[: PAYMENTS // 2], payments[PAYMENTS // 2 :]
        asked = [(urls[place % PROGRAMS], payment) for place, payment in enumerate(own)]
        answers = await asyncio.gather(*(settle(http, url, payment) for url, payment in asked))
        asked = [(url, payment) for payment in all_s for url in urls * 2]
        answers += await asyncio.gather(*(settle(http, url, payment) for url, payment in asked))
        successes = Counter(body["transaction"] for status, body in answers if status == 200 and body["success"])
        assert (len(successes), set(successes.values())) == (PAYMENTS, {1})
        await site.until_confirmed(PAYMENTS)
        assert len(site.rows("SELECT DISTINCT holder FROM settlements")) == PROGRAMS
        assert (len(site.sent), set(site.sent.values())) == (PAYMENTS, {1})
        assert chain.nonce(chain.wallets.relayer) == nonce + PAYMENTS
        assert chain.balance(chain.wallets.owner.address) == owner + 10_000 * PAYMENTS


async def test_what_a_killed_program_carried_another_finishes_and_nobody_pays_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Under load on slow blocks one is killed and a new one is started, again and again; callers ask any of them."""
    chain, chosen = embedded_chain, random.Random(0)
    owner = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    async with several(tmp_path / "home", chain) as (site, programs, stack), new_session() as http:
        urls = [program.url for program in programs]
        chain.rpc.call("evm_setAutomine", False)
        mining = asyncio.create_task(mine_slowly(chain))
        buying = [asyncio.create_task(buy(http, urls, new_payment(chain))) for _ in range(PAYMENTS // 2)]
        for _ in range(3):
            await asyncio.sleep(0.5 + chosen.random())
            place = chosen.randrange(PROGRAMS)
            await asyncio.to_thread(programs[place].kill)
            buying += [asyncio.create_task(buy(http, urls, new_payment(chain))) for _ in range(PAYMENTS // 6)]
            programs[place] = await asyncio.to_thread(stack.enter_context, one_more(site))
            urls[place] = programs[place].url
        await asyncio.gather(*buying)
        await site.until_confirmed(PAYMENTS)
        mining.cancel()
        chain.rpc.call("evm_setAutomine", True)
        mined = chain.nonce(chain.wallets.relayer) - nonce
        assert mined == len(site.rows("SELECT DISTINCT signer_nonce FROM settlement_slots"))
        assert chain.balance(chain.wallets.owner.address) == owner + 10_000 * PAYMENTS


async def test_where_all_were_killed_the_next_one_goes_on_at_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    async with several(tmp_path / "home", chain) as (site, programs, stack), new_session() as http:
        chain.rpc.call("evm_setAutomine", False)
        urls = [program.url for program in programs]
        asked = [asyncio.create_task(settle(http, url, new_payment(chain))) for url in urls * 5]
        async with asyncio.timeout(60):
            while len(site.sent) < len(asked):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        for program in programs:
            await asyncio.to_thread(program.kill)
        await asyncio.gather(*asked)
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")
        await asyncio.to_thread(stack.enter_context, one_more(site))
        assert len(site.rows("SELECT id FROM hub_processes")) == 1  # nobody else is believed to live
        await site.until_confirmed(len(asked))
        assert set(site.sent.values()) == {1}


async def test_who_would_not_do_as_the_others_is_refused_and_they_go_on(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    async with several(tmp_path / "home", chain) as (site, programs, _), new_session() as http:

        def refused(*arguments: str, **environ: str) -> str:
            ended = finished(*arguments, "--config", site.config, environ={**site.environ, **environ})
            assert ended.returncode == 3, ended.stderr
            return ended.stderr

        assert "in use by programs that share it" in await asyncio.to_thread(refused, "hub", "--port", "0")
        assert "in use by programs that share it" in await asyncio.to_thread(refused, "db", "migrate", "--for", "hub")
        sharing = ("hub", "--port", "0", "--share-database")
        other = "http://127.0.0.1:9/"
        assert ", base:0x" in await asyncio.to_thread(lambda: refused(*sharing, TOLLKEEPER_RPC_URL_BASE=other))
        site.use_key(derive_wallets().faucet.private_key_hex)
        assert derive_wallets().faucet.address in await asyncio.to_thread(refused, *sharing)
        for program in programs:
            assert (await settle(http, program.url, new_payment(chain)))[0] == 200


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("hub", "--share-database", "--workers", "2"), "a program with workers shares no database"),
        (("serve",), "only hubs share a database"),
    ],
)
def test_what_cannot_share_is_told_so(
    tmp_path: Path, embedded_chain: ChainUnderTest, arguments: tuple[str, ...], reason: str
) -> None:
    site = Site(tmp_path / "home", embedded_chain, embedded_chain.url)
    environ = {**site.environ, "TOLLKEEPER_SHARE_DATABASE": "true"}
    ended = finished(*arguments, "--config", site.config, environ=environ)
    assert ended.returncode == 3
    assert reason in ended.stderr
