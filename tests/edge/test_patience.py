"""The sweep looks at every connection, whatever one of them does."""

from __future__ import annotations

import asyncio
import socket

import structlog

from tests.edge.callers import LONG_SIZE_BYTES, listener
from tests.edge.test_calls import until
from tests.edge.test_inbound import get
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.timeouts import Sweep


class Sleeper:
    transport: asyncio.Transport
    peer = ""

    def __init__(self, *, fails: bool = False) -> None:
        self.looked_at = 0
        self.fails = fails

    def check_patience(self, now_seconds: float, passed_seconds: float) -> int:
        assert 0 < passed_seconds <= now_seconds
        self.looked_at += 1
        if self.fails:
            raise ZeroDivisionError
        return 0

    def cut(self) -> None:
        raise AssertionError("nothing waits for this one")

    def behind_seconds(self) -> float:
        return 0

    def spare_seconds(self) -> float | None:
        return None


async def test_one_connection_s_fault_does_not_hide_the_others() -> None:
    sweep, loop = Sweep(0.01), asyncio.get_running_loop()
    failing, sound = Sleeper(fails=True), Sleeper()
    with structlog.testing.capture_logs() as logs:
        for connection in (failing, sound):
            sweep.watch(connection, loop)
        await until(lambda: sound.looked_at > 2)
    assert failing.looked_at == 1
    assert [entry["event"] for entry in logs] == ["sweep_failed"]
    sweep.forget(sound)


async def test_the_sweep_rests_while_there_is_nothing_to_look_at() -> None:
    sweep, loop, sleeper = Sweep(0.01), asyncio.get_running_loop(), Sleeper()
    sweep.watch(sleeper, loop)
    sweep.forget(sleeper)
    sweep.forget(sleeper)
    await asyncio.sleep(0.05)
    assert sleeper.looked_at == 0
    sweep.watch(sleeper, loop)
    await until(lambda: sleeper.looked_at > 0)
    sweep.forget(sleeper)


async def test_who_reads_slowly_gets_his_answer_and_who_reads_nothing_is_given_up() -> None:
    quick = Patience(sweep_seconds=0.05, read_seconds=0.4)
    async with listener(quick) as listening:
        loop = asyncio.get_running_loop()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # the systems hold megabytes all the same
            reader.setblocking(False)
            await loop.sock_connect(reader, ("127.0.0.1", listening.port))
            await loop.sock_sendall(reader, get(b"/endless"))
            for _ in range(60):
                await asyncio.sleep(0.03)
                assert await loop.sock_recv(reader, 8192)
            assert len(listening.connections) == 1
            await until(lambda: not listening.connections)


async def test_an_answer_that_is_still_being_read_is_no_pause_between_two_requests() -> None:
    hasty = Patience(sweep_seconds=0.05, head_seconds=0.1)
    async with listener(hasty, keep_alive_seconds=0) as listening:
        loop = asyncio.get_running_loop()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # as over a network: little waits in systems
            reader.setblocking(False)
            await loop.sock_connect(reader, ("127.0.0.1", listening.port))
            await loop.sock_sendall(reader, get(b"/long"))
            came_bytes = 0
            for _ in range(30):
                await asyncio.sleep(0.03)
                came_bytes += len(await loop.sock_recv(reader, 8192))
            while part := await asyncio.wait_for(loop.sock_recv(reader, 65_536), 5):
                came_bytes += len(part)
            assert came_bytes > LONG_SIZE_BYTES
