"""A body is held whole: in memory up to its limit, beyond it on disk, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.edge.test_calls import until
from tests.storage.test_files import no_file_larger_than
from tollkeeper.edge.target.spool import BATCH_SIZE_BYTES, Space, Spool, SpooledBody, SpoolRoom

MIB = 1024 * 1024


class Source:
    """What a spool holds back and releases."""

    def __init__(self) -> None:
        self.is_paused = False
        self.pauses = 0
        self.faults: list[BaseException] = []

    def pause(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        self.is_paused = False


def spool(room: SpoolRoom, source: Source, memory_bytes: int = MIB) -> Spool:
    return Spool(
        Space(room, "owner"), memory_bytes, pause=source.pause, resume=source.resume, on_fault=source.faults.append
    )


def held(room: SpoolRoom) -> int:
    """What tenants have of memory and disk."""
    return room.memory.held + room.disk.held


async def until_resumed(source: Source) -> None:
    while source.is_paused:  # noqa: ASYNC110 - a spool tells its source by a call, not by an event
        await asyncio.sleep(0)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def whole(body: bytes | SpooledBody) -> bytes:
    return body if isinstance(body, bytes) else b"".join([part async for part in body])


async def test_a_small_body_never_touches_the_disk(tmp_path: Path) -> None:
    room, source = SpoolRoom(tmp_path / "missing"), Source()
    spooled = spool(room, source)
    for _ in range(4):
        spooled.append(bytes(MIB // 4))
    assert held(room) == MIB
    assert await spooled.finish() == bytes(MIB)
    assert (held(room), source.pauses, source.faults) == (0, 0, [])
    room.close()


async def test_a_large_body_comes_back_as_it_went_in_and_the_source_waits_for_the_disk() -> None:
    room, source = SpoolRoom(), Source()
    spooled = spool(room, source)
    parts = [bytes([number]) * 100_000 for number in range(80)]
    for part in parts:
        spooled.append(part)
        while source.is_paused:
            assert room.memory.held <= MIB
            await asyncio.sleep(0)
    body = await spooled.finish()
    assert isinstance(body, SpooledBody)
    assert body.size_bytes == 8_000_000
    assert await whole(body) == b"".join(parts)
    assert (held(room), source.pauses > 5) == (0, True)
    room.close()


async def test_a_source_that_goes_on_while_the_disk_is_behind_loses_nothing() -> None:
    room, source = SpoolRoom(), Source()
    spooled = spool(room, source)
    parts = [bytes([number]) * 300_000 for number in range(20)]
    for part in parts:
        spooled.append(part)
    await until_resumed(source)
    assert await whole(await spooled.finish()) == b"".join(parts)
    room.close()


async def test_a_crowded_room_sends_bodies_to_disk_early() -> None:
    room, source = SpoolRoom(memory_bytes=7 * MIB), Source()
    spools = [spool(room, source) for _ in range(6)]
    for spooled in spools:
        for _ in range(3):
            spooled.append(bytes(300_000))
    bodies = [await spooled.finish() for spooled in spools]
    assert [isinstance(body, SpooledBody) for body in bodies] == [False, False, True, True, True, True]
    assert [await whole(body) for body in bodies] == [bytes(900_000)] * 6
    assert held(room) == 0
    room.close()


async def test_a_spool_that_is_given_up_leaves_nothing() -> None:
    room, source = SpoolRoom(), Source()
    for size in (1000, 2 * MIB):
        given_up = spool(room, source)
        given_up.append(bytes(size))
        given_up.close()
    on_disk = spool(room, source)
    on_disk.append(bytes(2 * MIB))
    await until_resumed(source)
    on_disk.close()
    await until(lambda: held(room) == 0)
    assert (held(room), source.faults) == (0, [])
    room.close()


async def test_a_spool_that_is_given_up_while_its_end_is_awaited_leaves_nothing() -> None:
    room, source, goes_on = SpoolRoom(), Source(), threading.Event()
    for _ in range(4):
        room.threads.submit(goes_on.wait)  # the disk is slow
    spooled = spool(room, source)
    spooled.append(bytes(2 * MIB))
    finishing = asyncio.ensure_future(spooled.finish())
    await asyncio.sleep(0)
    finishing.cancel()
    spooled.close()
    goes_on.set()
    await until(lambda: held(room) == 0)
    assert (held(room), finishing.cancelled()) == (0, True)
    room.close()


async def test_a_disk_that_fails_is_told_once_and_ends_the_wait(tmp_path: Path) -> None:
    room, source = SpoolRoom(tmp_path / "missing"), Source()
    spooled = spool(room, source)
    spooled.append(bytes(2 * MIB))
    with pytest.raises(FileNotFoundError):
        await spooled.finish()
    assert [type(fault) for fault in source.faults] == [FileNotFoundError]
    spooled.close()
    assert held(room) == 0
    room.close()


@pytest.mark.parametrize("short_bytes", [1, 1000, 4096, 100_000])
async def test_a_disk_that_takes_a_write_in_part_is_told_once_and_its_file_is_given_up(short_bytes: int) -> None:
    room, source = SpoolRoom(), Source()
    spooled = spool(room, source)
    spooled.append(bytes(2 * MIB))
    await until_resumed(source)
    before = open_descriptors()
    with no_file_larger_than(4 * MIB - short_bytes):
        spooled.append(bytes(2 * MIB))
        await until(lambda: source.faults)
        spooled.close()
    assert [getattr(fault, "errno", None) for fault in source.faults] == [errno.EFBIG]
    assert (held(room), open_descriptors()) == (0, before - 1)
    room.close()


@pytest.mark.parametrize("disk_bytes", [2048 * MIB, 30 * MIB], ids=["large", "small"])
async def test_some_of_a_disk_is_left_to_others(monkeypatch: pytest.MonkeyPatch, disk_bytes: int) -> None:
    left_bytes = min(256 * MIB, disk_bytes // 10) + 3 * MIB
    usage = SimpleNamespace(total=disk_bytes, free=left_bytes)
    monkeypatch.setattr("tollkeeper.edge.target.spool.shutil.disk_usage", lambda _folder: usage)
    room, source = SpoolRoom(), Source()
    spooled = spool(room, source)
    spooled.append(bytes(2 * MIB))
    await until_resumed(source)
    usage.free -= 2 * MIB
    spooled.append(bytes(2 * MIB))
    with pytest.raises(OSError, match="left for others"):
        await spooled.finish()
    assert len(source.faults) == 1
    spooled.close()
    room.close()


async def test_what_could_not_be_written_for_another_reason_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    room, source = SpoolRoom(), Source()

    def nothing_left(_size_bytes: int) -> None:
        raise MemoryError

    monkeypatch.setattr(room, "require", nothing_left)
    spooled = spool(room, source)
    spooled.append(bytes(2 * MIB))
    with pytest.raises(MemoryError):
        await spooled.finish()
    assert [type(fault) for fault in source.faults] == [MemoryError]
    spooled.close()
    room.close()


async def test_a_body_that_is_left_half_read_gives_its_space_back() -> None:
    room, source = SpoolRoom(), Source()
    spooled = spool(room, source, memory_bytes=1)
    spooled.append(bytes(3 * BATCH_SIZE_BYTES))
    body = await spooled.finish()
    assert isinstance(body, SpooledBody)
    async for part in body:
        assert len(part) == BATCH_SIZE_BYTES
        break
    gc.collect()  # an iteration that is left is closed when it is collected
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError, match="closed"):
        await whole(body)
    room.close()


class HungFile(io.FileIO):
    """Of a disk that answers no read for now."""

    began = threading.Event()
    may_end = threading.Event()

    def readinto(self, buffer: Any, /) -> int | None:
        self.began.set()
        assert self.may_end.wait(10)
        return super().readinto(buffer)


@pytest.mark.parametrize("how", ["its reader is cancelled", "it is closed"])
async def test_a_body_that_is_given_up_while_a_read_hangs_keeps_nobody_waiting(how: str, tmp_path: Path) -> None:
    room, path = SpoolRoom(), tmp_path / "body"
    path.write_bytes(bytes(2 * BATCH_SIZE_BYTES))
    HungFile.began.clear()
    HungFile.may_end.clear()
    file = io.BufferedReader(HungFile(str(path)))
    body = SpooledBody(file, 2 * BATCH_SIZE_BYTES, Space(room, "owner"))
    reading = asyncio.ensure_future(whole(body))
    await until(HungFile.began.is_set)
    late = threading.Timer(5, HungFile.may_end.set)  # lest a loop that waits for it wait for ever
    late.start()
    if how == "it is closed":
        body.close()
    reading.cancel()
    await asyncio.wait([reading])
    assert not HungFile.may_end.is_set()
    late.cancel()
    HungFile.may_end.set()
    await until(lambda: file.closed)
    room.close()


async def test_a_file_that_is_shorter_than_it_was_is_a_fault(tmp_path: Path) -> None:
    room = SpoolRoom()
    path = tmp_path / "short"
    path.write_bytes(b"half")
    with pytest.raises(OSError, match="shorter"):
        await whole(SpooledBody(path.open("rb"), 10, Space(room, "owner")))
    room.close()
