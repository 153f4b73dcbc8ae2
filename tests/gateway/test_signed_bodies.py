"""What was read of a body to sign it is let go with its call, and not when the collector comes (security A-58)."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tollkeeper
from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok, recording_target
from tests.gateway.test_leaving import LeftShop, shop
from tests.gateway.test_stopping import books_of
from tollkeeper.gateway.call import target_signature
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

AWAY = "http://127.0.0.1:1/"
CALLS = 5
NOTICED_SECONDS = 10  # a caller who left without a reset is asked first, as one who only sends no more
ELSEWHERE = "127.0.0.2"
OURS = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(tollkeeper.__file__).parent}/*")
# Just short enough to be signed, and too long: of that a mebibyte is read before its target is asked.
SIGNED_BYTES = 1_000_000
LONG_BYTES = 1_200_000


def held_bytes() -> int:
    """What the program itself made and nobody has let go."""
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([OURS]).traces)


@asynccontextmanager
async def letting_go(most_bytes: int) -> AsyncIterator[None]:
    """Without a collector less than this is held soon after the block."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
        deadline = time.monotonic() + NOTICED_SECONDS
        while held_bytes() >= most_bytes:
            assert time.monotonic() < deadline, tracemalloc.take_snapshot().statistics("lineno")[:3]
            await asyncio.sleep(0.2)
    finally:
        tracemalloc.stop()
        gc.enable()


async def send(url: str, payment: str, *, size_bytes: int, in_chunks: bool = False, leaves: bool = False) -> bytes:
    """The first line of the answer, or none to a caller who leaves before his body's last bytes."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    length = "Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {size_bytes}"
    writer.write(f"POST {place.path} HTTP/1.1\r\nHost: a\r\nX-Payment: {payment}\r\n{length}\r\n\r\n".encode())
    await asyncio.sleep(0.02)  # else a body that came with its head is no body to wait for
    body = bytes(size_bytes - (1000 if leaves else 0))
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if in_chunks else body)
    await writer.drain()
    if leaves:
        await asyncio.sleep(0.1)
        writer.transport.abort()
        return b""
    try:
        return await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize("how", ["it is forwarded", "its caller leaves", "its target is away"])
async def test_a_body_that_was_to_be_signed_is_let_go_with_its_call(
    embedded_chain: ChainUnderTest, tmp_path: Path, how: str
) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "gateway.db") as url,
        recording_target() as target,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        fields = {
            "targetUrl": target.url,
            "price": "0.01",
            "credits": 50,
            "method": "GET,POST",
            "headerAuthMode": "hmac",
        }
        gate = (await buyer.ask("POST", f"{url}/api/v1/paygates", body=fields)).json()
        payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        assert (await buyer.call(gate["accessUrl"], payment)).status == 200
        if how == "its target is away":
            changed = await buyer.ask("PUT", f"{url}/api/v1/paygates/{gate['id']}", body={"targetUrl": AWAY})
            assert changed.status == 200
        async with letting_go(SIGNED_BYTES):
            for _ in range(CALLS):
                if how == "it is forwarded":
                    assert b" 200 " in await send(gate["accessUrl"], payment, size_bytes=SIGNED_BYTES)
                elif how == "its caller leaves":
                    await send(gate["accessUrl"], payment, size_bytes=SIGNED_BYTES, leaves=True)
                else:
                    assert b" 502 " in await send(gate["accessUrl"], payment, size_bytes=LONG_BYTES, in_chunks=True)


async def test_bodies_that_are_read_to_be_signed_have_a_bound(
    embedded_chain: ChainUnderTest, tmp_path: Path, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_signature, "AHEAD_SIZE_BYTES", 300_000)  # of which one owner has a third
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode="hmac")
        asked = there.request(gate, "POST", X_Payment=await there.payment(gate, "POST"), Content_Length="70000")

        async def begun(first_bytes: int = 69_000) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await there.connect()
            writer.write(asked)
            await asyncio.sleep(0.4)  # the spend is made, and the call waits for its body
            writer.write(bytes(first_bytes))
            await asyncio.sleep(0.2)
            return reader, writer

        slow, slow_writer = await begun()
        quick, quick_writer = await begun()
        answer = await asyncio.wait_for(quick.readuntil(b"\r\n\r\n"), 10)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"x-credits-remaining: 19\r\n" in answer  # given back
        slow_writer.write(bytes(1_000))
        assert (await asyncio.wait_for(slow.readline(), 10)).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):  # the room is everybody's again
            next_one, next_writer = await begun(70_000)
            assert (await asyncio.wait_for(next_one.readline(), 10)).startswith(b"HTTP/1.1 200 ")
            next_writer.close()
        for writer in (slow_writer, quick_writer):
            writer.close()
    assert books_of(there) == [("LIVE", 16)]


async def hang(request: Received, writer: Writer) -> None:
    """Answers what has no body."""
    if request.method == "GET":
        await answer_ok(request, writer)


async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request, whatever its body is."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
    writer.close()


async def begun_at(
    there: LeftShop, gate: dict[str, Any], token: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A call whose body follows its head after a while."""
    reader, writer = await there.connect()
    writer.write(there.request(gate, "POST", X_Credit_Token=token, Content_Length="70000"))
    await asyncio.sleep(0.3)  # the spend is made, and the call waits for its body
    writer.write(bytes(70_000))
    await asyncio.sleep(0.1)
    return reader, writer


async def test_a_target_that_hangs_leaves_room_for_the_bodies_of_others(
    embedded_chain: ChainUnderTest, tmp_path: Path, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_signature, "AHEAD_SIZE_BYTES", 420_000)
    server = await asyncio.start_server(answer_early, ELSEWHERE, 0)
    fields = {"credits": 20, "method": "GET,POST", "headerAuthMode": "hmac"}
    async with server, shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        target.answer = hang
        hanging = await there.gate(**fields)
        other = await there.gate(**fields, targetUrl=f"http://{ELSEWHERE}:{server.sockets[0].getsockname()[1]}/")
        tokens = []
        for gate in (hanging, other):
            bought = await there.buyer.call(gate["accessUrl"], await there.payment(gate))
            assert bought.status == 200
            tokens.append(bought.headers["x-credit-token"])
        held = [await begun_at(there, hanging, tokens[0]) for _ in range(8)]
        last = await asyncio.wait_for(held[-1][0].readuntil(b"\r\n\r\n"), 10)
        assert last.startswith(b"HTTP/1.1 503 ")
        assert b"x-credits-remaining: 17\r\n" in last  # two wait for their target, and the others' are given back
        for _ in range(3):
            reader, writer = await begun_at(there, other, tokens[1])
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200 ")
            writer.close()
        for _, writer in held:
            writer.close()
