"""The ledger process and its workers, killed at any moment: nothing answered is lost, nothing is granted twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.counts import PROPERTY
from tests.storage.test_ledger_kills import CALLERS, check
from tests.storage.test_purchases import Shop
from tollkeeper.serving.ledger_keeper import LedgerKeeper
from tollkeeper.storage import StorageError, open_database
from tollkeeper.storage.remote import RemoteDatabase
from tollkeeper.storage.sequences import next_id

WORKER = """
import asyncio, os, sys
from pathlib import Path
import uvloop
from tests.storage.test_purchases import HEADER, NOW_MS, Shop, key
from tollkeeper.core.purchases import Spend
from tollkeeper.storage import StorageError
from tollkeeper.storage.ledger import HeldSpend, Ledger
from tollkeeper.storage.purchase_rows import SpendRequest
from tollkeeper.storage.remote import RemoteDatabase

async def main(path, run):
    database = RemoteDatabase(Path(path))
    await database.open()
    shop = Shop(database)
    ledger = Ledger(database)
    calls = 0

    def go_on(caller):
        nonlocal calls
        calls += 1
        call_id = f"{run}-{calls}"

        def answered(result):
            if isinstance(result, StorageError):
                asyncio.get_running_loop().call_later(0.01, go_on, caller)
                return
            assert result.outcome is Spend.SPENT, result
            os.write(1, f"call {call_id}\\n".encode())
            go_on(caller)

        wish = SpendRequest(1, 1, HEADER, call_id)
        ledger.spend(HeldSpend(key(1 + caller % 3), None, wish), NOW_MS, answered)

    for caller in range(CALLERS):
        go_on(caller)
    number = 1000 * (run + 1)
    while True:
        number += 1
        try:
            gate, _ = await shop.gates.by_id(1)
            purchase = await shop.bought(gate, number)
        except StorageError:
            await asyncio.sleep(0.01)
            continue
        os.write(1, f"bought {purchase.id}\\n".encode())
        await asyncio.sleep(0.002)

uvloop.run(main(sys.argv[1], int(sys.argv[2])))
""".replace("CALLERS", str(CALLERS))


class Worker:
    """A worker's process and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._spoke = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, socket_path: Path, run: int) -> Worker:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", WORKER, str(socket_path), str(run), stdout=asyncio.subprocess.PIPE
            )
        )

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        first = await self._process.stdout.readline()
        self._spoke.set()
        return first + await self._process.stdout.read()

    async def heard(self, seconds: float = 30) -> None:
        """Wait for its first spend or purchase; a busy machine takes long to start a process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._spoke.wait()

    async def kill(self) -> list[str]:
        """Kill it; its whole lines."""
        self._process.kill()
        said = await self._reading
        await self._process.wait()
        return [line.decode().strip() for line in said.splitlines(keepends=True) if line.endswith(b"\n")]


async def started_anew(keeper: LedgerKeeper, killed: int) -> None:
    for _ in range(6000):
        if keeper.process_id != killed:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the ledger process was not started anew")


def ledgers() -> list[int]:
    """The ledger processes of this one, also one that is just starting."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    return [int(pid) for pid in children if b"ledger_process" in command_of(pid)]


def command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def kill_many(directory: Path, kills: int, seed: int) -> Counter[str]:
    """At least so many processes killed, amid spends and purchases or as they start; how many of which."""
    path, socket_path = directory / "db", directory / "ledger.sock"
    database = open_database(str(path))
    shop = Shop(database)
    gate = await shop.gate(9999)
    for number in (1, 2, 3):
        await shop.bought(gate, number)
    await database.close()
    chance = random.Random(seed)
    told: list[str] = []
    came: Counter[str] = Counter()
    runs = 2

    def kill_ledger(kind: str) -> None:
        for pid in ledgers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                came[kind] += 1

    async with LedgerKeeper(str(path), socket_path) as keeper:
        workers = [await Worker.start(socket_path, run) for run in range(runs)]
        while came.total() < kills:
            await workers[0].heard(chance.choice((0, 30, 30, 30)))
            await asyncio.sleep(chance.uniform(0.01, 0.2))
            victim = chance.choice(("ledger", "worker", "both"))
            killed = keeper.process_id
            if victim != "worker":
                kill_ledger("kill of a ledger amid spends and purchases")
            if victim != "ledger":
                told += await workers.pop(0).kill()
                came["kill of its worker"] += 1
                workers.append(await Worker.start(socket_path, runs))
                runs += 1
            if victim != "worker":
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.uniform(0, 0.5))
                    kill_ledger("kill of a ledger about its start")
                    killed = keeper.process_id if keeper.process_id not in ledgers() else 0
                await started_anew(keeper, killed)
        for worker in workers:
            await worker.heard()
            told += await worker.kill()
    check(path, told, came.total() + 2)
    return came


@pytest.mark.timeout(600)  # thirty starts and more, on a machine that may have other work
async def test_kills_of_ledger_and_workers_lose_no_answered_spend_and_double_none(tmp_path: Path) -> None:
    await kill_many(tmp_path, 20, 1)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_900_kills_of_ledger_and_workers_lose_no_answered_spend_and_double_none(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With the 100 kills of whole programs (`tests/faults/test_kills_under_load.py`) a thousand."""
    came: Counter[str] = Counter()
    for part in range(30):  # of a fresh database each, so that the credits last
        directory = tmp_path / str(part)
        directory.mkdir()
        came += await kill_many(directory, 30, part)
    record_property(PROPERTY, dict(came))
    assert came.total() >= 900


async def test_a_dead_ledger_process_is_unavailable_until_it_is_started_anew(tmp_path: Path) -> None:
    async with LedgerKeeper(str(tmp_path / "db"), tmp_path / "ledger.sock") as keeper:
        remote = RemoteDatabase(tmp_path / "ledger.sock")
        await remote.open()
        assert await remote.run(next_id("things")) == 1
        os.kill(keeper.process_id, signal.SIGKILL)
        statuses: set[int] = set()
        async with asyncio.timeout(60):
            while True:
                try:
                    assert await remote.run(next_id("things")) == 2
                    break
                except StorageError as error:
                    statuses.add(error.status)
                    await asyncio.sleep(0.01)
        assert statuses == {503}
        await remote.close()


async def test_a_signal_to_the_group_does_not_end_the_ledger_before_its_keeper_does(tmp_path: Path) -> None:
    async with LedgerKeeper(str(tmp_path / "db"), tmp_path / "ledger.sock") as keeper:
        remote = RemoteDatabase(tmp_path / "ledger.sock")
        await remote.open()
        os.kill(keeper.process_id, signal.SIGTERM)
        os.kill(keeper.process_id, signal.SIGINT)
        assert await remote.run(next_id("things")) == 1
        await remote.close()
    database = open_database(str(tmp_path / "db"))  # its lock is free: the process is gone
    await database.close()


async def test_a_database_in_use_is_said_at_the_start(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "db"))
    with pytest.raises(StorageError, match="in use by process"):
        async with LedgerKeeper(str(tmp_path / "db"), tmp_path / "ledger.sock"):
            pass
    await database.close()
