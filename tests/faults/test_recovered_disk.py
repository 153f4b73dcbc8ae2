"""A disk that took no writes for a while: 503 meanwhile, and spends again without anybody's help (security F13, F14).

What was answered is in the books, what was refused took no credit, and it was the same process all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import Scene, Site
from tests.faults.aftermath import Site as Configured
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came
from tests.faults.syscalls import refused
from tests.faults.test_full_store import on_a_small_disk
from tests.gateway.recording_target import recording_target
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CREDITS = 500
REFUSALS = 12
WAIT_SECONDS = 60


@asynccontextmanager
async def sold_on_a_small_disk(home: Path, chain: ChainUnderTest) -> AsyncIterator[tuple[Scene, Path]]:
    """A program whose database lies on a small file system of its own, and where that is to be seen."""
    site = await asyncio.to_thread(Site, home, chain)
    site.environ["TOLLKEEPER_SIGNER_KEY"] = site.key
    data = home / "data"
    data.mkdir(exist_ok=True)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving(under=on_a_small_disk(data, 4)) as program:
            inside = Path(f"/proc/{program.pid}/root{data}")
            small = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
            yield Scene(site, program, target, buyer, chain), inside
        await asyncio.to_thread(keep, small, data)


def keep(small: int, data: Path) -> None:
    """Copies the database out of a file system that nobody but this open directory holds any more."""
    try:
        for path in Path(f"/proc/self/fd/{small}").iterdir():
            if path.is_file():
                shutil.copy(path, data / path.name)
    finally:
        os.close(small)


@contextmanager
def full(inside: Path) -> Iterator[Callable[[], None]]:
    """The disk has no room left; what is given fills it again, where the program made some."""
    filler = inside / "filler"

    def fill() -> None:
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))

    fill()
    try:
        yield fill
    finally:
        filler.unlink()


@contextmanager
def failing_syncs(pid: int) -> Iterator[Callable[[], None]]:
    """No sync of the process succeeds."""
    with subprocess.Popen(refused("fdatasync,fsync", pid)) as tracer:
        deadline = time.monotonic() + WAIT_SECONDS
        while not all(is_traced(task) for task in Path(f"/proc/{pid}/task").iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        try:
            yield lambda: None
        finally:
            tracer.send_signal(signal.SIGINT)  # lets go of the process
            tracer.wait()


def is_traced(task: Path) -> bool:
    with contextlib.suppress(OSError):
        return "TracerPid:\t0\n" not in (task / "status").read_text()
    return True


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
async def test_a_disk_that_takes_writes_again_is_written_to_without_a_restart(
    tmp_path: Path, embedded_chain: ChainUnderTest, fault: int
) -> None:
    if fault == errno.EIO:
        assert shutil.which("strace"), "strace is missing: apt-get install strace"
    async with sold_on_a_small_disk(tmp_path / "home", embedded_chain) as (scene, inside):
        gate = await scene.gate(credits=CREDITS)
        payment, first = await scene.buy(gate)
        assert first.status == 200, first.body
        statuses: list[int] = []
        told: list[str] = []  # how many credits are left

        async def call() -> int:
            answer = await scene.buyer.call(gate["url"], payment)
            statuses.append(answer.status)
            if answer.status == 200:
                told.append(answer.headers["x-credits-remaining"])
            return answer.status

        came(f"disk that takes no writes: {errno.errorcode[fault]}")
        with full(inside) if fault == errno.ENOSPC else failing_syncs(scene.program.pid) as again:
            deadline = time.monotonic() + WAIT_SECONDS
            while statuses.count(503) < REFUSALS:
                assert time.monotonic() < deadline, statuses
                again()
                await call()
                await asyncio.sleep(0.3)  # long enough in all that the disk is tried again, in vain
        deadline = time.monotonic() + WAIT_SECONDS
        while await call() != 200:
            assert time.monotonic() < deadline, scene.program.process.wrote
            await asyncio.sleep(0.2)
        assert [await call() for _ in range(20)] == [200] * 20
        assert set(statuses) == {200, 503}
        assert scene.program.process.process.poll() is None
        # What a refused call may have taken is given back.
        while await call() != 200 or int(told[-1]) != CREDITS - 1 - statuses.count(200):
            assert time.monotonic() < deadline, told
            await asyncio.sleep(0.2)
        assert len(scene.target.requests) == 1 + statuses.count(200)
    configured = Configured(scene.site.config, scene.site.environ)
    await assert_nothing_lost(tmp_path, embedded_chain, paid=[authorization_in(payment)], sites=[configured])
