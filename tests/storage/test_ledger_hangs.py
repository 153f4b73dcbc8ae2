"""A ledger process that hangs: it is killed and started anew, callers are told in time, a slow disk is borne."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.faults.syscalls import slowed
from tests.storage.test_ledger import by_header, outcomes, spend_together
from tests.storage.test_ledger_kills import CREDITS, check
from tests.storage.test_ledger_process import Worker
from tests.storage.test_purchases import Shop
from tests.workers.program import is_alive
from tollkeeper.core.paygates import PayGate
from tollkeeper.core.purchases import Spend
from tollkeeper.serving import ledger_keeper
from tollkeeper.serving.ledger_keeper import LedgerKeeper
from tollkeeper.storage import StorageError, open_database, remote
from tollkeeper.storage.database import LostError
from tollkeeper.storage.remote import RemoteDatabase
from tollkeeper.storage.sequences import next_id

SOON_SECONDS = 60  # far beyond what it takes, on a machine that has other work


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_replaced(keeper: LedgerKeeper, former: int) -> bool:
    return keeper.process_id != former


def has_begun(began: list[int], count: int) -> bool:
    return len(began) > count


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def sold(path: Path) -> PayGate:
    """A database in which three purchases have credits."""
    database = open_database(str(path))
    shop = Shop(database)
    gate = await shop.gate(CREDITS)
    for number in (1, 2, 3):
        await shop.bought(gate, number)
    await database.close()
    return gate


@asynccontextmanager
async def worker(socket_path: Path) -> AsyncIterator[RemoteDatabase]:
    database = RemoteDatabase(socket_path)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of silence is too long."""
    monkeypatch.setattr(ledger_keeper, "_ASK_EVERY_SECONDS", 0.2)
    monkeypatch.setattr(ledger_keeper, "_STARTS_ASKED", 300)  # an interpreter starts slowly on a busy machine


@pytest.mark.usefixtures("impatient")
async def test_a_stopped_ledger_under_load_is_replaced_and_no_answered_spend_is_lost(tmp_path: Path) -> None:
    path, socket_path = tmp_path / "db", tmp_path / "ledger.sock"
    await sold(path)
    told: list[str] = []
    async with LedgerKeeper(str(path), socket_path) as keeper:
        workers = [await Worker.start(socket_path, run) for run in (0, 1)]
        for _ in range(3):
            await asyncio.sleep(1)
            stopped = keeper.process_id
            os.kill(stopped, signal.SIGSTOP)
            await until(partial(is_replaced, keeper, stopped))
        await asyncio.sleep(0.5)
        for one in workers:
            told += await one.kill()
    check(path, told, 2 * 3 + 2)


@pytest.mark.usefixtures("impatient")
async def test_a_stopped_ledger_is_gone_before_its_successor_begins_so_that_it_never_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int] = []

    async def start(*arguments: object, **options: object) -> asyncio.subprocess.Process:
        assert not any(is_there(pid) for pid in began)
        process = await create(*arguments, **options)  # type: ignore[arg-type] # as the keeper calls it
        began.append(process.pid)
        return process

    create = asyncio.create_subprocess_exec
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    async with LedgerKeeper(str(tmp_path / "db"), tmp_path / "ledger.sock") as keeper:
        for count in (1, 2):
            os.kill(began[-1], signal.SIGSTOP)
            await until(partial(has_begun, began, count))
            with pytest.raises(ProcessLookupError):
                os.kill(began[-2], signal.SIGCONT)
            await until(lambda: keeper.process_id == began[-1])
        async with worker(tmp_path / "ledger.sock") as database:
            assert await database.run(next_id("things")) == 1
    assert len(began) == 3


@pytest.mark.usefixtures("impatient")
async def test_a_ledger_that_hangs_as_it_starts_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nif rm {tmp_path}/hang; then exec sleep 1000; fi\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    async with LedgerKeeper(str(tmp_path / "db"), tmp_path / "ledger.sock") as keeper:
        (tmp_path / "hang").touch()
        monkeypatch.setattr(ledger_keeper, "_STARTS_ASKED", 50)
        first = keeper.process_id
        os.kill(first, signal.SIGKILL)
        await until(lambda: keeper.process_id != first)
    assert not (tmp_path / "hang").exists()


def on_a_disk_whose_syncs_take(seconds: float, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(slowed("fsync,fdatasync", seconds))} {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("impatient")
async def test_a_ledger_on_a_slow_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, socket_path = tmp_path / "db", tmp_path / "ledger.sock"
    gate = await sold(path)
    on_a_disk_whose_syncs_take(2, tmp_path, monkeypatch)
    monkeypatch.setattr(ledger_keeper, "_STANDS_ASKED", 50)
    async with LedgerKeeper(str(path), socket_path) as keeper, worker(socket_path) as database:
        first = keeper.process_id
        shop = Shop(database)
        for _ in range(2):  # each twice as long as a stopped process is waited for
            answers = await spend_together(shop.purchases.ledger, [by_header(shop, gate)])
            assert outcomes(answers) == [Spend.SPENT]
        assert keeper.process_id == first


@pytest.mark.usefixtures("impatient")
async def test_a_ledger_whose_disk_lets_nothing_through_is_ended_and_its_callers_are_told_before_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, socket_path = tmp_path / "db", tmp_path / "ledger.sock"
    gate = await sold(path)
    monkeypatch.setattr(ledger_keeper, "_STANDS_ASKED", 15)
    monkeypatch.setattr(remote, "_LOOK_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(remote, "_LOOKS_IN_VAIN", 80)
    monkeypatch.setattr(remote, "BACK_SECONDS", 1.0)
    wrote = ""

    def hangs() -> bool:
        nonlocal wrote
        wrote += capsys.readouterr().out
        return "ledger_process_hangs" in wrote

    on_a_disk_whose_syncs_take(1000, tmp_path, monkeypatch)
    async with LedgerKeeper(str(path), socket_path) as keeper, worker(socket_path) as database:
        shop = Shop(database)
        first = keeper.process_id
        asked = [spend_together(shop.purchases.ledger, [by_header(shop, gate)]), database.run(next_id("things"))]
        async with asyncio.timeout(SOON_SECONDS):
            spent, unit = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(unit, LostError)
        assert isinstance(spent, list)
        assert [type(answer) for answer in spent] == [LostError]
        try:
            await until(hangs)
            assert keeper.process_id == first  # as a kernel does, `strace` lets go of it when the disk has answered
        finally:
            os.kill(tracer_of(first), signal.SIGKILL)
        await until(lambda: keeper.process_id != first)
        os.kill(tracer_of(keeper.process_id), signal.SIGKILL)


def tracer_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("TracerPid:")).split()[1])


async def test_of_a_ledger_that_nobody_ends_callers_are_told_and_it_is_found_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_LOOK_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(remote, "_LOOKS_IN_VAIN", 60)
    monkeypatch.setattr(remote, "BACK_SECONDS", 1.0)
    path, socket_path = tmp_path / "db", tmp_path / "ledger.sock"
    gate = await sold(path)
    async with LedgerKeeper(str(path), socket_path) as keeper, worker(socket_path) as database:
        shop = Shop(database)
        ledger = shop.purchases.ledger
        os.kill(keeper.process_id, signal.SIGSTOP)
        try:
            async with asyncio.timeout(SOON_SECONDS):
                spent = await spend_together(ledger, [by_header(shop, gate)])
            assert [type(answer) for answer in spent] == [LostError]
            with pytest.raises(LostError):  # at once, although somebody listens: nobody has greeted
                await asyncio.wait_for(database.run(next_id("things")), 4)
        finally:
            os.kill(keeper.process_id, signal.SIGCONT)
        async with asyncio.timeout(SOON_SECONDS):
            while True:
                try:
                    assert await database.run(next_id("things")) == 1
                    break
                except LostError:
                    await asyncio.sleep(0.05)
        await shop.purchases.end_calls({}, 0)  # what was taken of a call that was refused is given back
        (answer,) = await spend_together(ledger, [by_header(shop, gate)])
        assert not isinstance(answer, StorageError)
        await shop.ledger_agrees()


async def test_a_quiet_line_is_kept_by_greetings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_LOOK_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(remote, "_LOOKS_IN_VAIN", 60)
    async with LedgerKeeper(str(tmp_path / "db"), tmp_path / "l"), worker(tmp_path / "l") as database:
        line = database._line  # noqa: SLF001 - the connection itself
        await asyncio.sleep(8)
        assert database._line is line  # noqa: SLF001
        assert await database.run(next_id("things")) == 1


KEEPER = """
import asyncio, sys
from pathlib import Path
from tollkeeper.serving import ledger_keeper

async def main(directory):
    ledger_keeper._ASK_EVERY_SECONDS = 0.2
    async with ledger_keeper.LedgerKeeper(str(directory / "db"), directory / "ledger.sock") as keeper:
        while True:
            print("keeps", keeper.process_id, flush=True)
            await asyncio.sleep(0.1)

asyncio.run(main(Path(sys.argv[1])))
"""


@asynccontextmanager
async def keeper_process(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Callable[[], int]]]:
    """A keeper in a process of its own, and the ledger process that it last named."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KEEPER, str(directory), stdout=asyncio.subprocess.PIPE
    )
    named = [0]

    async def hear() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.startswith(b"keeps "):
                named.append(int(line.split()[1]))

    hearing = asyncio.create_task(hear())
    try:
        await until(lambda: named[-1] != 0)
        yield process, lambda: named[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await hearing


async def test_a_ledger_that_was_stopped_together_with_its_parent_is_not_taken_for_one_that_hangs(
    tmp_path: Path,
) -> None:
    async with keeper_process(tmp_path) as (parent, kept):
        ledger = kept()
        for _ in range(2):
            for pid in (parent.pid, ledger):
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(3)  # three times as long as one that hangs is waited for
            for pid in (ledger, parent.pid):
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(2)
        assert kept() == ledger
        assert is_alive(ledger)
    await until(lambda: not is_alive(ledger))


async def test_a_ledger_that_hangs_when_its_parent_dies_ends_when_it_goes_on(tmp_path: Path) -> None:
    async with keeper_process(tmp_path) as (parent, kept):
        ledger = kept()
        os.kill(ledger, signal.SIGSTOP)
        parent.kill()
        await parent.wait()
        assert is_alive(ledger)
        os.kill(ledger, signal.SIGCONT)
        await until(lambda: not is_alive(ledger))
    database = open_database(str(tmp_path / "db"))
    await database.close()
