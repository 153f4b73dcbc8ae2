"""A backup amid purchases and calls, put back after a kill: the books agree but for what the guide names."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Scene, scene
from tests.deploy.proxies import DEPLOY

SETTLED, OPEN = "settled_but_not_in_the_books", "carried_out_but_open"
GUIDE = (DEPLOY.parent / "docs" / "guide-operator.md").read_text()


def purchases(town: Scene) -> int:
    ((count,),) = town.site.rows("SELECT count(*) FROM purchases WHERE state = 'LIVE'")
    return int(count)


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


async def test_a_backup_under_load_forgets_what_the_guide_says_and_nothing_else(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    copy = tmp_path / "copy.db"
    async with scene(tmp_path / "home", embedded_chain) as town:
        config = town.site.config
        gate = await town.gate(credits=20)
        async with load(town, gate):
            await town.until(lambda: purchases(town) >= 6)
            done = await asyncio.to_thread(finished, "backup", copy, "--config", config)
            assert done.returncode == 0, done.stderr
            kept = purchases(town)
            await town.until(lambda: purchases(town) >= kept + 6)
        payment, _ = await town.buy(gate)
        before = purchases(town)
        agreed = await asyncio.to_thread(finished, "db", "check", "--chain", "--config", config)
        assert (agreed.returncode, agreed.stdout) == (0, "books and chain agree\n"), agreed.stdout
        town.program.process.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(town.program.process.process.wait)

        restored = await asyncio.to_thread(finished, "restore", copy, "--config", config)
        assert restored.returncode == 0, restored.stderr
        assert 6 <= purchases(town) < before
        own = await asyncio.to_thread(finished, "db", "check", "--no-chain", "--config", config)
        assert own.stdout == "the books agree\n"
        forgotten = differences(town)
        assert set(forgotten) <= {SETTLED, OPEN} <= set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
        assert before - purchases(town) <= len(forgotten)
        with town.site.serving() as program:
            held = town.chain.balance(town.buyer.wallet.address)
            again = await town.buyer.call(f"{program.url}/{gate['slug']}", payment)
            assert (again.status, town.chain.balance(town.buyer.wallet.address)) == (200, held), again.body
            await town.until(lambda: set(differences(town)) == {SETTLED})


def differences(town: Scene) -> list[str]:
    """The rules by which books and chain differ, once for each difference."""
    told = finished("db", "check", "--chain", "--config", town.site.config, environ=town.site.environ).stdout
    return re.findall(r"^(\w+): ", told, re.MULTILINE)
