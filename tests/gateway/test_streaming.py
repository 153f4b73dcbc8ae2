"""`stream: true`: an answer is passed on as it comes, with its limits and for one credit (contract 4.7)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer
from tollkeeper.core.limits import PROXY_RESPONSE_SIZE_BYTES

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def streaming_gate(market: Market, **fields: object) -> tuple[dict[str, Any], str]:
    gate = await market.gate(stream=True, credits=20, **fields)
    assert gate["stream"] is True
    return gate, await market.payment(gate)


async def remaining(market: Market, payment: str) -> int:
    (held,) = (await market.ask("GET", "/api/v1/credits", headers={"X-Payment": payment})).json()["data"]
    left: int = held["remaining"]
    return left


async def test_events_arrive_before_the_next_is_sent_and_use_one_credit(market: Market) -> None:
    gate, payment = await streaming_gate(market)
    seen = asyncio.Queue[int]()

    async def events(_request: Received, writer: Writer) -> None:
        writer.write(SSE)
        for number in range(5):
            writer.write(chunk(b"data: %d\n\n" % number))
            assert await asyncio.wait_for(seen.get(), 20) == number  # it would wait for ever if that were held back
        writer.write(b"0\r\n\r\n")

    market.target.answer = events
    async with (
        aiohttp.ClientSession() as session,
        session.get(gate["accessUrl"], headers={"X-Payment": payment}) as answer,
    ):
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert answer.headers["x-credits-remaining"] == "19"
        assert {"x-payment-response", "x-purchase-id", "x-credit-token"} <= {name.lower() for name in answer.headers}
        assert answer.headers["cache-control"] == "private, no-store"
        for number in range(5):
            assert await answer.content.readexactly(len(b"data: 0\n\n")) == b"data: %d\n\n" % number
            await seen.put(number)
        assert await answer.content.read() == b""
    assert await remaining(market, payment) == 19
    counters = await market.counters(gate, lambda found: found["calls"] == 1)
    assert counters["failures"] == 0


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_a_whole_answer_is_the_same_whether_it_streams_or_not(market: Market, framing: str) -> None:
    body = bytes(range(256)) * 2000

    async def answer(_request: Received, writer: Writer) -> None:
        if framing == "length":
            writer.write(b"HTTP/1.1 201 Made\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif framing == "chunked":
            writer.write(b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body) + b"0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 201 Made\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
            writer.close()

    market.target.answer = answer
    gate, payment = await streaming_gate(market, method="GET,POST")
    for method in ("GET", "POST", "HEAD", "GET"):
        streamed = await market.pay(gate, payment, method)
        assert streamed.status == 201
        assert streamed.body == (b"" if method == "HEAD" else body)
    assert await remaining(market, payment) == 16


async def test_a_stream_that_grows_too_large_is_cut_and_uses_the_credit(market: Market) -> None:
    gate, payment = await streaming_gate(market, onFailure="restore")

    async def endless(_request: Received, writer: Writer) -> None:
        writer.write(SSE)
        while not writer.is_closing():
            writer.write(chunk(bytes(65536)))
            await writer.drain()

    market.target.answer = endless
    sizes = [0]

    async def read_all() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.get(gate["accessUrl"], headers={"X-Payment": payment}) as answer,
        ):
            assert answer.status == 200
            async for part in answer.content.iter_any():
                sizes[0] += len(part)

    with pytest.raises(aiohttp.ClientPayloadError):
        await read_all()
    assert sum(sizes) <= PROXY_RESPONSE_SIZE_BYTES
    assert await remaining(market, payment) == 19
    counters = await market.counters(gate, lambda found: found["calls"] == 1)
    assert counters["failures"] == 1


async def test_a_target_that_fails_before_its_head_is_a_502_also_where_it_would_stream(market: Market) -> None:
    gate, payment = await streaming_gate(market)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (PROXY_RESPONSE_SIZE_BYTES + 1)
    for sent, code in (
        (head, "UPSTREAM_TOO_LARGE"),
        (b"what?\r\n\r\n", "UPSTREAM_INVALID"),
        (b"", "UPSTREAM_UNREACHABLE"),
    ):

        async def fail(_request: Received, writer: Writer, sent: bytes = sent) -> None:
            writer.write(sent)
            await writer.drain()
            writer.close()

        market.target.answer = fail
        answer = await market.pay(gate, payment)
        assert (answer.status, answer.error_code) == (502, code)
        assert answer.receipt is not None
    assert await remaining(market, payment) == 17


async def test_a_stream_that_breaks_off_is_cut_and_not_ended(market: Market) -> None:
    gate, payment = await streaming_gate(market)

    async def breaks(_request: Received, writer: Writer) -> None:
        writer.write(SSE + chunk(b"data: 1\n\n") + b"ff\r\nhalf")
        await writer.drain()
        writer.close()

    market.target.answer = breaks
    with pytest.raises(aiohttp.ClientPayloadError):
        await market.pay(gate, payment)
    assert await remaining(market, payment) == 19


@pytest.mark.parametrize("behind", [0, 12])
async def test_a_stream_that_breaks_off_takes_no_earlier_answer_with_it(market: Market, behind: int) -> None:
    """Its caller has sent both requests, and perhaps more, and reads the first answer when the second is cut."""
    size = 2_000_000
    whole_gate = await market.gate(credits=20)
    gate, payment = await streaming_gate(market)
    whole_payment = await market.payment(whole_gate)
    is_read, is_cut = asyncio.Event(), asyncio.Event()

    async def answer(request: Received, writer: Writer) -> None:
        if request.path.endswith("whole"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"1" * size)
            return
        writer.write(SSE + chunk(b"data: 1\n\n"))
        await asyncio.wait_for(is_read.wait(), 20)
        writer.transport.abort()
        is_cut.set()

    market.target.answer = answer
    url, loop = urlsplit(gate["accessUrl"]), asyncio.get_running_loop()
    head = "GET {}{} HTTP/1.1\r\nHost: a\r\nX-Payment: {}\r\n\r\n"
    asked = head.format(urlsplit(whole_gate["accessUrl"]).path, "?whole", whole_payment)
    asked += head.format(url.path, "?cut", payment)
    with socket.socket() as line:
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(line, (url.hostname, url.port))
        await loop.sock_sendall(line, asked.encode())
        for _ in range(behind):  # beyond what is read ahead
            await asyncio.sleep(0.05)
            await loop.sock_sendall(line, head.format(url.path, "?cut", payment).encode())
        said = b""
        while len(said) < size - 500_000:
            said += await asyncio.wait_for(loop.sock_recv(line, 65536), 10)
        is_read.set()
        while part := await asyncio.wait_for(loop.sock_recv(line, 65536), 10):
            said += part
    assert is_cut.is_set()
    assert said.count(b"1" * size) == 1
    assert said.count(b"HTTP/1.1 200") == 2
    assert not said.endswith(b"0\r\n\r\n")


async def test_a_client_that_sends_no_more_gets_the_whole_stream(market: Market) -> None:
    gate, payment = await streaming_gate(market)
    goes_on = asyncio.Event()

    async def events(_request: Received, writer: Writer) -> None:
        writer.write(SSE + chunk(b"data: 1\n\n"))
        await goes_on.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    market.target.answer = events
    parts = urlsplit(gate["accessUrl"])
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nX-Payment: {payment}\r\n\r\n".encode())
    assert b"x-credits-remaining: 19" in await reader.readuntil(chunk(b"data: 1\n\n"))
    writer.write_eof()
    await asyncio.sleep(2.5)  # a caller who left would have been noticed by now
    goes_on.set()
    assert await asyncio.wait_for(reader.read(), 30) == chunk(b"data: 2\n\n") + b"0\r\n\r\n"
    writer.close()


async def test_a_client_that_leaves_ends_the_targets_stream(market: Market) -> None:
    gate, payment = await streaming_gate(market)
    ended = asyncio.Event()

    async def events(request: Received, writer: Writer) -> None:
        writer.write(SSE)
        hangs_up = asyncio.ensure_future(request.reader.read())
        while not hangs_up.done():
            writer.write(chunk(b"data: 1\n\n"))
            await asyncio.wait([hangs_up], timeout=0.2)
        ended.set()
        writer.close()

    market.target.answer = events
    async with aiohttp.ClientSession() as session:
        answer = await session.get(gate["accessUrl"], headers={"X-Payment": payment})
        assert await answer.content.readexactly(9) == b"data: 1\n\n"
        answer.close()
    await asyncio.wait_for(ended.wait(), 30)
    assert await remaining(market, payment) == 19


async def test_a_client_of_http_1_0_gets_the_stream_until_the_connection_ends(market: Market) -> None:
    gate, payment = await streaming_gate(market)

    async def events(_request: Received, writer: Writer) -> None:
        writer.write(SSE + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    market.target.answer = events
    parts = urlsplit(gate["accessUrl"])
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        b"GET %b HTTP/1.0\r\nHost: %b\r\nX-Payment: %b\r\n\r\n"
        % (parts.path.encode(), parts.netloc.encode(), payment.encode())
    )
    head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
    writer.close()
    assert b"transfer-encoding" not in head.lower()
    assert body == b"data: 1\n\ndata: 2\n\n"
