"""A caller who stalls in the body of a paid call, and a target that does: each is bounded by its own time (A-58)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_leaving import shop
from tests.gateway.test_stopping import books_of
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.target.connection import TargetConnection

QUICK = Patience(sweep_seconds=0.2, body_seconds=3, read_seconds=60, head_seconds=60)  # a first sale takes less
MIB = 2**20
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def raw_target(serve: Serve) -> AsyncIterator[RecordingTarget]:
    """A target that has the whole connection."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield RecordingTarget(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


async def reads_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read(-1)
    writer.close()


@pytest.mark.parametrize(("signing", "length"), [("none", "10"), ("hmac", "10"), ("hmac", "2000000")])
async def test_whoever_stalls_in_his_body_is_closed_and_his_call_has_its_end(
    signing: str, length: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with (
        raw_target(reads_all) as target,
        shop(embedded_chain.url, target, tmp_path, patience=QUICK) as there,
    ):
        gate = await there.gate(credits=20, method="POST", headerAuthMode=signing)
        payment = await there.payment(gate, "POST")
        reader, writer = await there.connect()
        writer.write(there.request(gate, "POST", X_Payment=payment, Content_Length=length) + b"hello")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
    assert there.calls() == {("DONE", 499): 1}
    assert books_of(there) == [("LIVE", 19)]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("framing", [b"content-length: 100", b"transfer-encoding: chunked", b"connection: close"])
async def test_who_ends_in_the_middle_of_his_body_is_closed_though_his_answer_had_begun(
    framing: bytes, version: bytes, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """In that very moment the target begins to answer, and stalls."""
    may_begin, is_dropped = asyncio.Event(), asyncio.Event()

    async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await may_begin.wait()
        half = b"4\r\nhalf\r\n" if b"chunked" in framing else b"half"
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + half)
        await reads_all(reader, writer)
        is_dropped.set()

    async with (
        raw_target(begins) as target,
        shop(embedded_chain.url, target, tmp_path, patience=QUICK, drain_seconds=1) as there,
    ):
        gate = await there.gate(credits=20, method="POST", stream=True)
        payment = await there.payment(gate, "POST")
        reader, writer = await there.connect()
        request = there.request(gate, "POST", X_Payment=payment, Content_Length="10")
        writer.write(request.replace(b"HTTP/1.1", b"HTTP/" + version, 1) + b"0123")
        await until(there.calls)
        writer.write_eof()
        await asyncio.sleep(0.05)  # he is not believed to have left for a while
        may_begin.set()
        await asyncio.wait_for(reader.readuntil(b"half"), 20)
        await asyncio.wait_for(is_dropped.wait(), 30)
        writer.close()


@pytest.mark.parametrize("how", ["ends", "waits"])
async def test_who_stops_in_the_middle_of_his_body_reads_on_steadily_what_his_target_has_said(
    how: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """For longer than a caller may owe more of a body."""
    size = 6 * MIB

    async def answers_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        await reads_all(reader, writer)

    async with (
        raw_target(answers_early) as target,
        shop(embedded_chain.url, target, tmp_path, patience=QUICK) as there,
    ):
        gate = await there.gate(credits=20, method="POST")
        payment = await there.payment(gate, "POST")
        bought = await there.buyer.ask("POST", gate["accessUrl"], headers={"X-Payment": payment})
        assert (bought.status, len(bought.body)) == (200, size)
        asked = there.request(gate, "POST", X_Payment=payment, Content_Length="10") + b"hello"
        host, port = there.url.removeprefix("http://").split(":")
        loop, read_bytes = asyncio.get_running_loop(), 0
        with socket.socket() as line:
            line.setblocking(False)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            await loop.sock_connect(line, (host, int(port)))
            await loop.sock_sendall(line, asked)
            read_bytes += len(await asyncio.wait_for(loop.sock_recv(line, 1), 20))
            if how == "ends":
                line.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while part := await asyncio.wait_for(loop.sock_recv(line, 65_536), 20):
                    read_bytes += len(part)
                    await asyncio.sleep(0.05)
    assert read_bytes > size
    assert there.calls() == {("DONE", 200): 2}


async def test_a_signed_body_waits_for_its_target_from_the_first_byte_that_that_does_not_take(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, is_over = TargetConnection.connection_made, asyncio.Event()
    transports: list[asyncio.Transport] = []

    def made_narrow(self: TargetConnection, transport: asyncio.BaseTransport) -> None:
        """As over a long way: the system does not take a mebibyte at once."""
        made(self, transport)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        transports.append(self.transport)

    monkeypatch.setattr(TargetConnection, "connection_made", made_narrow)

    async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket it can
        await is_over.wait()
        writer.close()

    async with raw_target(deaf) as target, shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode="hmac")
        payment = await there.payment(gate, "POST")
        _, writer = await there.connect()
        writer.write(there.request(gate, "POST", X_Payment=payment, Transfer_Encoding="chunked"))
        sent_bytes = 0
        with contextlib.suppress(TimeoutError):
            while sent_bytes < 90 * MIB:
                writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
                sent_bytes += 65_536
                await asyncio.wait_for(writer.drain(), 2)
        # What is read ahead to see whether he has left, and the systems' buffers.
        assert max(transport.get_write_buffer_size() for transport in transports) < 40 * MIB
        assert sent_bytes < 60 * MIB
        is_over.set()
        writer.transport.abort()
