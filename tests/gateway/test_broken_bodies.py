"""A paid request whose body turns out malformed, or ends too soon: what was charged is told with its 400."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.test_leaving import LeftShop, shop
from tollkeeper.edge.server.client_liveness import CONTINUE

CHUNKED = "Transfer-Encoding: chunked"
# What is sent after the head, a part at a time, and how its length is told; the last None ends the caller's side.
BROKEN: dict[str, tuple[str, list[bytes | None]]] = {
    "at once": (CHUNKED, [b"5\r\nhello\r\nZZ\r\n"]),
    "behind its head": (CHUNKED, [b"5\r\nhello\r\n", b"ZZ\r\n"]),
    "in its trailer": (CHUNKED, [b"5\r\nhello\r\n0\r\nConnection: close\r\n\r\n"]),
    "cut short": ("Content-Length: 10", [b"hello", None]),
}


async def _send(there: LeftShop, head: str, parts: list[bytes | None]) -> tuple[bytes, dict[str, Any]]:
    reader, writer = await there.connect()
    with contextlib.closing(writer):
        writer.write(head.encode())
        for part in parts:
            if part is None:
                writer.write_eof()
            else:
                writer.write(part)
            await asyncio.sleep(0.3)
        said = (await asyncio.wait_for(reader.read(), 10)).removeprefix(CONTINUE)
    head_bytes, _, body = said.partition(b"\r\n\r\n")
    return head_bytes, json.loads(body)


async def _unanswered(got: Received, writer: Writer) -> None:
    await got.reader.read()
    writer.close()


@pytest.mark.parametrize("binding", ["payment", "token"])
@pytest.mark.parametrize("signing", ["none", "hmac"])
@pytest.mark.parametrize("how", BROKEN)
async def test_a_paid_request_with_a_broken_body_is_told_what_it_cost(
    how: str, signing: str, binding: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """On the call that buys, which learns its credit token, and on a held credit."""
    target.answer = _unanswered
    length, parts = BROKEN[how]
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode=signing, creditBinding=binding)
        proof = f"X-Payment: {await there.payment(gate, 'POST')}"
        for left in (19, 18):
            head = f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\n{proof}\r\n{length}\r\n\r\n"
            answer, body = await _send(there, head, parts)
            assert answer.startswith(b"HTTP/1.1 400 "), answer
            assert body["error"]["code"] == "INVALID_PARAMETER"
            assert b"\r\nx-credits-remaining: %d\r\n" % left in answer
            assert b"\r\nconnection: close" in answer
            assert answer.count(b"\r\nx-credit-token: ") == (left == 19)
            if left == 19:
                token = answer.partition(b"\r\nx-credit-token: ")[2].partition(b"\r\n")[0].decode()
                proof = f"X-Credit-Token: {token}"
    assert there.calls() == {("DONE", 400): 2}
    assert there.outcomes(gate) == {("failed", 400, "INVALID_PARAMETER"): 2}


async def test_a_broken_request_that_waits_for_its_turn_is_charged_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST")
        payment = await there.payment(gate, "POST")
        head = f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {payment}\r\n"
        whole, broken = f"{head}Content-Length: 0\r\n\r\n", f"{head}{CHUNKED}\r\n\r\nZZ\r\n"
        reader, writer = await there.connect()
        with contextlib.closing(writer):
            writer.write((whole + broken).encode())
            said = await asyncio.wait_for(reader.read(), 10)
    assert re.findall(rb"HTTP/1\.1 (\d+)", said) == [b"200", b"400"]
    assert there.calls() == {("DONE", 200): 1}


async def _read_slowly(there: LeftShop, asked: bytes, then: bytes | None, is_answered: asyncio.Event) -> bytes:
    """All that a caller gets whose body, once its target has answered, goes on in a way that is none while he reads."""
    host, port = there.url.removeprefix("http://").split(":")
    loop, said = asyncio.get_running_loop(), b""
    with socket.socket() as line:
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await loop.sock_connect(line, (host, int(port)))
        await loop.sock_sendall(line, asked)
        await asyncio.wait_for(is_answered.wait(), 30)
        await asyncio.sleep(1)  # as much of that has come as can
        if then is None:
            line.shutdown(socket.SHUT_WR)
        else:
            await loop.sock_sendall(line, then)
        await asyncio.sleep(0.5)
        while part := await asyncio.wait_for(loop.sock_recv(line, 65_536), 20):
            said += part
    return said


@pytest.mark.parametrize("then", [b"ZZ\r\n", None], ids=["a broken chunk", "its end"])
@pytest.mark.parametrize(("size", "fields"), [(500_000, {}), (6_000_000, {}), (500_000, {"stream": True})])
async def test_a_whole_answer_arrives_where_the_rest_of_its_request_breaks(
    size: int,
    fields: dict[str, Any],
    then: bytes | None,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
) -> None:
    """Its target has answered early and in full, and the caller takes its time; so do those before it."""
    is_answered = asyncio.Event()

    async def early(reader: asyncio.StreamReader, writer: Writer) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = size if b"chunked" in await reader.readuntil(b"\r\n\r\n") else 100_000
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + b"1" * length)
                if length == size:
                    is_answered.set()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    async with server, shop(embedded_chain.url, target, tmp_path) as there:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        gate = await there.gate(credits=20, method="POST", targetUrl=address, **fields)
        head = f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {await there.payment(gate, 'POST')}\r\n"
        asked = f"{head}Content-Length: 0\r\n\r\n{head}{CHUNKED}\r\n\r\n5\r\nhello\r\n"
        said = await _read_slowly(there, asked.encode(), then, is_answered)
        answers = said.replace(CONTINUE, b"").split(b"HTTP/1.1 200 OK\r\n")
        assert [len(answer.partition(b"\r\n\r\n")[2]) for answer in answers] == [0, 100_000, size]
    assert there.calls() == {("DONE", 200): 2}


@pytest.mark.parametrize("then", [b"ZZ\r\n", None], ids=["a broken chunk", "its end"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_stream_that_still_comes_is_cut_where_the_rest_of_its_request_breaks(
    framing: str, then: bytes | None, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """Its target waits for a request that nobody will send."""
    begun = b"Content-Length: 10\r\n\r\nhello" if framing == "length" else f"{CHUNKED}\r\n\r\n5\r\nhello\r\n".encode()
    is_answered, is_left = asyncio.Event(), asyncio.Event()

    async def early(reader: asyncio.StreamReader, writer: Writer) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + begun)
            is_answered.set()
            with contextlib.suppress(ConnectionError):
                await reader.read(-1)
            is_left.set()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    async with server, shop(embedded_chain.url, target, tmp_path) as there:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        gate = await there.gate(credits=20, method="POST", targetUrl=address, stream=True)
        head = f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {await there.payment(gate, 'POST')}\r\n"
        said = await _read_slowly(there, f"{head}{CHUNKED}\r\n\r\n5\r\nhello\r\n".encode(), then, is_answered)
        assert said.removeprefix(CONTINUE).startswith(b"HTTP/1.1 200 OK")
        assert said.removesuffix(b"\r\n").endswith(b"hello")
        await asyncio.wait_for(is_left.wait(), 10)
    assert there.calls() == {("DONE", 200): 1}
    assert there.outcomes(gate) == {("failed", 200, "INVALID_PARAMETER"): 1}
