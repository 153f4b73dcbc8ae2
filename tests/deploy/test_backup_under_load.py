"""A backup amid purchases and calls, put back after a kill: the books agree but for what the guide names."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Scene, Site, opened
from tests.deploy.proxies import DEPLOY
from tests.engines import PostgresqlServer, programs, said_to

SETTLED, OPEN = "settled_but_not_in_the_books", "carried_out_but_open"
GUIDE = (DEPLOY.parent / "docs" / "guide-operator.md").read_text()


def settled(town: Scene) -> int:
    """How many payments the books say are on the chain: a sale that was under way may lag behind its payment."""
    sql = "SELECT count(*) AS n FROM settlements WHERE state = 'CONFIRMED'"
    url = town.site.environ.get("TOLLKEEPER_DATABASE_URL")
    return int(town.site.rows(sql)[0][0] if url is None else said_to(url, sql)[0]["n"])


@asynccontextmanager
async def load(town: Scene, gate: dict[str, Any]) -> AsyncIterator[None]:
    """Buyers who buy and call, three at a time, until the block ends."""
    is_over = asyncio.Event()

    async def keep_buying() -> None:
        while not is_over.is_set():
            payment, bought = await town.buy(gate)
            assert bought.status == 200, bought.body
            for _ in range(3):
                assert (await town.buyer.call(gate["url"], payment)).status == 200

    buyers = [asyncio.create_task(keep_buying()) for _ in range(3)]
    try:
        yield
    finally:
        is_over.set()
        await asyncio.gather(*buyers)


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest) -> Iterator[tuple[str | None, str | None]]:
    """The database that is copied, and the one that the copy is put into."""
    if request.param == "sqlite":
        yield None, None
        return
    server = PostgresqlServer(programs())
    for name in ("shop", "restored"):
        said_to(server.url("postgres"), f"CREATE DATABASE {name}")
    yield server.url("shop"), server.url("restored")
    server.stop()


async def test_a_backup_under_load_forgets_what_the_guide_says_and_nothing_else(
    tmp_path: Path, embedded_chain: ChainUnderTest, urls: tuple[str | None, str | None]
) -> None:
    copy, site = tmp_path / "copy.db", await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    if urls[0] is not None:
        site.environ["TOLLKEEPER_DATABASE_URL"] = urls[0]

    async def ended(*words: str | Path) -> CompletedProcess[str]:
        return await asyncio.to_thread(finished, *words, "--config", site.config, environ=site.environ)

    async with opened(site, embedded_chain) as town:
        gate = await town.gate(credits=20)
        async with load(town, gate):
            await town.until(lambda: settled(town) >= 6)
            done = await ended("backup", copy)
            assert done.returncode == 0, done.stderr
            kept = settled(town)
            await town.until(lambda: settled(town) >= kept + 6)
        payment, _ = await town.buy(gate)
        before = settled(town)
        agreed = await ended("db", "check", "--chain")
        assert (agreed.returncode, agreed.stdout) == (0, "books and chain agree\n"), agreed.stdout
        town.program.process.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(town.program.process.process.wait)

        if urls[1] is not None:
            site.environ["TOLLKEEPER_DATABASE_URL"] = urls[1]
        restored = await ended("restore", copy)
        assert restored.returncode == 0, restored.stderr
        assert 6 <= settled(town) < before
        own = await ended("db", "check", "--no-chain")
        assert own.stdout == "the books agree\n"
        forgotten = differences(town)
        assert set(forgotten) <= {SETTLED, OPEN} <= set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
        assert before - settled(town) == len(forgotten)
        with town.site.serving() as program:
            held = town.chain.balance(town.buyer.wallet.address)
            again = await town.buyer.call(f"{program.url}/{gate['slug']}", payment)
            assert (again.status, town.chain.balance(town.buyer.wallet.address)) == (200, held), again.body
            await town.until(lambda: set(differences(town)) == {SETTLED})


def differences(town: Scene) -> list[str]:
    """The rules by which books and chain differ, once for each difference."""
    told = finished("db", "check", "--chain", "--config", town.site.config, environ=town.site.environ).stdout
    return re.findall(r"^(\w+): ", told, re.MULTILINE)
