"""`tollkeeper hub --workers 2`: two hubs on one database, under load and with kill -9 (contract 5.2; security F20)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, running
from tests.hub.hub_under_test import new_payment
from tests.workers.hubs import Site, buy, mine_slowly, new_session, run_site, settle
from tests.workers.program import START_SECONDS, is_alive

WORKERS = 2


@dataclass
class Hubs:
    """The running program."""

    site: Site
    url: str
    program: Running

    def children(self) -> dict[str, int]:
        """The living hubs by their names."""
        started = {line["process"]: line["pid"] for line in self.program.lines() if line["event"] == "process_started"}
        return {name: pid for name, pid in started.items() if name.startswith("hub") and is_alive(pid)}


@contextmanager
def hub_program(site: Site) -> Iterator[Hubs]:
    arguments = ("hub", "--config", site.config, "--port", "0", "--workers", str(WORKERS))
    with running(*arguments, environ=site.environ) as process:
        yield Hubs(site, process.wait_for_event("serving", START_SECONDS)["url"], process)
        process.process.terminate()
        process.exit_code()


@asynccontextmanager
async def two_hubs(home: Path, chain: ChainUnderTest) -> AsyncIterator[Hubs]:
    async with run_site(home, chain) as (site, stack):
        hubs = await asyncio.to_thread(stack.enter_context, hub_program(site))
        assert set(hubs.children()) == {"hub 1", "hub 2"}
        yield hubs


async def test_two_hubs_share_the_work_and_give_each_success_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    owner = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    async with two_hubs(tmp_path / "home", chain) as hubs, new_session() as http:
        payments = [new_payment(chain) for _ in range(60)]
        answers = await asyncio.gather(*(settle(http, hubs.url, payment) for payment in payments * 3))
        successes = Counter(body["transaction"] for status, body in answers if status == 200 and body["success"])
        assert (len(successes), set(successes.values())) == (60, {1})
        await hubs.site.until_confirmed(60)
        assert len(hubs.site.rows("SELECT DISTINCT holder FROM settlements")) == WORKERS
        assert (len(hubs.site.sent), set(hubs.site.sent.values())) == (60, {1})
        assert chain.nonce(chain.wallets.relayer) == nonce + 60
        assert chain.balance(chain.wallets.owner.address) == owner + 600_000


async def test_what_a_killed_hub_carried_the_other_finishes_and_nobody_pays_twice(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Under load on slow blocks, one after the other is killed by SIGKILL; callers ask again with the same payment."""
    chain = embedded_chain
    owner = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    async with two_hubs(tmp_path / "home", chain) as hubs, new_session() as http:
        payments = [new_payment(chain) for _ in range(60)]
        chain.rpc.call("evm_setAutomine", False)
        mining = asyncio.create_task(mine_slowly(chain))
        buying = [asyncio.create_task(buy(http, [hubs.url], payment)) for payment in payments]
        for name in ("hub 1", "hub 2", "hub 1"):
            async with asyncio.timeout(60):
                while name not in hubs.children():  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            os.kill(hubs.children()[name], signal.SIGKILL)
        await asyncio.gather(*buying)
        await hubs.site.until_confirmed(60)
        mining.cancel()
        chain.rpc.call("evm_setAutomine", True)
        mined = chain.nonce(chain.wallets.relayer) - nonce
        assert mined == len(hubs.site.rows("SELECT DISTINCT signer_nonce FROM settlement_slots"))
        assert chain.balance(chain.wallets.owner.address) == owner + 600_000
