"""A process that can open no more: callers on whom nobody waits give way to those who come (security A-58)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.edge.callers import Listening, caller, everything, first_answer, listener
from tests.edge.test_calls import until
from tests.edge.test_inbound import BAD, get
from tollkeeper.core.http.timeouts import Patience

CALLERS = 40


@asynccontextmanager
async def crowded(room: int, patience: Patience | None = None) -> AsyncIterator[Listening]:
    """A listener of a process that has this many descriptors left before it is crowded."""
    with next_descriptor() as first:
        async with listener(patience, descriptors_max=2 * (first + room)) as listening:
            yield listening


@contextmanager
def next_descriptor() -> Iterator[int]:
    """The number that the next file or connection gets, and those behind it the next ones.

    What other tests of this process have left free below the highest one is taken meanwhile.
    """
    highest = max(int(one.name) for one in Path("/dev/fd").iterdir())
    taken = [os.dup(0)]
    while taken[-1] <= highest:
        taken.append(os.dup(0))
    number = taken.pop()
    os.close(number)
    try:
        yield number
    finally:
        for one in taken:
            os.close(one)


@pytest.mark.parametrize("said", [b"", b"GET /half HTTP/1.1\r\n", get(b"/asked"), BAD], ids=repr)
async def test_idle_callers_give_way_and_who_is_served_stays(said: bytes) -> None:
    async with crowded(CALLERS) as listening, AsyncExitStack() as open_ones:
        busy, busy_writer = await open_ones.enter_async_context(caller(listening))
        busy_writer.write(get(b"/wait"))
        for _ in range(2 * CALLERS):  # each takes two descriptors of this process, for it is the caller too
            _, writer = await open_ones.enter_async_context(caller(listening))
            writer.write(said)
            await asyncio.sleep(0)
        reader, writer = await open_ones.enter_async_context(caller(listening))
        writer.write(get(b"/new", b"Connection: close"))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200
        assert len(listening.connections) <= CALLERS
        listening.go.set()
        assert (await asyncio.wait_for(busy.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200")


async def test_who_has_most_connections_gives_way_though_others_have_waited_longer() -> None:
    async with crowded(CALLERS) as listening, AsyncExitStack() as open_ones:
        honest = [await open_ones.enter_async_context(caller(listening)) for _ in range(3)]
        for reader, writer in honest:
            writer.write(get(b"/asked"))
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(1.1)  # a look at all of them
        for _ in range(2 * CALLERS):  # each takes two descriptors of this process
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.port, local_addr=("127.0.0.2", 0))
            open_ones.callback(writer.close)
            writer.write(get(b"/asked"))
            await asyncio.wait_for(reader.read(100), 5)
        for reader, writer in honest:
            writer.write(get(b"/again", b"Connection: close"))
            assert b"HTTP/1.1 200" in await asyncio.wait_for(everything(reader), 5)


async def test_who_is_answered_for_good_and_does_not_end_gives_way_before_who_has_just_come() -> None:
    patient = Patience(linger_seconds=20, linger_total_seconds=60)
    async with crowded(CALLERS, patient) as listening, AsyncExitStack() as open_ones:
        for _ in range(15):  # each takes two descriptors of this process
            reader, writer = await open_ones.enter_async_context(caller(listening))
            writer.write(get(b"/asked", b"Connection: close"))
            assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200
        await asyncio.sleep(1.1)  # a look at all of them
        new = [await open_ones.enter_async_context(caller(listening)) for _ in range(10)]
        await asyncio.sleep(0.1)
        for _, writer in new:
            writer.write(get(b"/new", b"Connection: close"))
        said = await asyncio.gather(*(asyncio.wait_for(everything(reader), 5) for reader, _ in new))
        assert [first_answer(one).status for one in said if one] == [200] * len(new)
        assert len(listening.connections) <= CALLERS


@pytest.mark.parametrize("kind", ["sends no body", "reads no answer"])
async def test_callers_who_hold_up_what_they_asked_for_give_way(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("tollkeeper.edge.server.caller_connection.BEHIND_SECONDS", 0.1)
    quick = Patience(sweep_seconds=0.02)
    async with crowded(CALLERS, quick) as listening, AsyncExitStack() as open_ones:
        for _ in range(2 * CALLERS):
            reader, writer = await open_ones.enter_async_context(caller(listening))
            if kind == "sends no body":
                writer.write(get(b"/slow", b"Content-Length: 9", method=b"POST"))
            else:
                reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001
                writer.write(get(b"/endless"))
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):  # each who came last may be some hundredths of a second behind
            while not any(one.behind_seconds() >= 0.1 for one in listening.connections):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
        reader, writer = await open_ones.enter_async_context(caller(listening))
        writer.write(get(b"/new", b"Connection: close"))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200
        assert len(listening.connections) <= CALLERS


async def test_where_everybody_is_served_the_next_caller_is_not_taken() -> None:
    async with crowded(20) as listening, AsyncExitStack() as open_ones:
        served = []
        for _ in range(20):
            reader, writer = await open_ones.enter_async_context(caller(listening))
            writer.write(get(b"/wait"))
            served.append(reader)
            await asyncio.sleep(0.01)
        count = len(listening.connections)
        assert 5 <= count < 20
        listening.go.set()
        reading = [asyncio.wait_for(reader.read(100), 5) for reader in served]
        answers = await asyncio.gather(*reading, return_exceptions=True)
        assert sum(isinstance(one, bytes) and one.startswith(b"HTTP/1.1 200") for one in answers) == count


async def test_callers_who_leave_too_much_unread_in_memory_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.edge.server.timeouts.BEHIND_SECONDS", 0.1)
    async with listener(Patience(sweep_seconds=0.02)) as listening, AsyncExitStack() as open_ones:
        for _ in range(20):
            reader, writer = await open_ones.enter_async_context(caller(listening))
            reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001
            writer.write(get(b"/endless"))
        await until(lambda: sum(one.behind_seconds() >= 0.1 for one in listening.connections) == 20)
        unread = sum(one.transport.get_write_buffer_size() for one in listening.connections)
        next(iter(listening.connections)).listener.sweep.unsent_max_bytes = unread // 2
        await until(lambda: len(listening.connections) <= 12)
        await asyncio.sleep(0.2)  # and no more of them than that takes
        assert 5 <= len(listening.connections) <= 12
