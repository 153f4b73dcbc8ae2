"""The listener: bounded heads, refusals in specification 7's words, an end that answers what was sent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.edge.test_calls import until
from tollkeeper.api import Shell
from tollkeeper.core.limits import REQUEST_HEAD_SIZE_BYTES
from tollkeeper.serving.http.access_log import AccessLog
from tollkeeper.serving.http.server import Address, HttpServer, ListenError, listen, until_signalled


async def app(_scope: Any, receive: Any, send: Any) -> None:
    size = 0
    more = True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    async with HttpServer(AccessLog(app), listen("127.0.0.1", 0), drain_seconds=1) as server:
        yield server.address


async def exchange(address: Address, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    said = json.loads(body)
    assert said["apiVersion"] == "v1"
    assert said["error"]["requestId"].encode() in head
    assert b"x402-version: 1" in head
    return int(head.split()[1]), said["error"]["code"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
    ],
)
async def test_bytes_that_are_no_request_are_refused_with_the_error_body(address: Address, sent: bytes) -> None:
    assert error_of(await exchange(address, sent)) == (400, "INVALID_PARAMETER")


@pytest.mark.parametrize("sent", [b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000])
async def test_an_endless_head_is_cut_off(address: Address, sent: bytes) -> None:
    answer = await exchange(address, sent)
    assert answer == b"" or error_of(answer) == (431, "HEADERS_TOO_LARGE")


async def test_a_head_of_the_permitted_size_is_taken(address: Address) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"a" * (REQUEST_HEAD_SIZE_BYTES - 100)
    answer = await exchange(address, head, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_body_is_no_head_however_large(address: Address) -> None:
    body = b"b" * 1_000_000
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await exchange(address, head, body, last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"1000000" in answer


async def test_pipelined_requests_are_answered_in_order(address: Address) -> None:
    one = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await exchange(address, one % (1, b"a") + one % (2, b"bb") + last)
    bodies = [part.partition(b"\r\n\r\n")[2][:1] for part in answer.split(b"HTTP/1.1 200")[1:]]
    assert bodies == [b"1", b"2", b"0"]


async def test_a_request_sent_while_the_server_begins_to_stop_is_still_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tollkeeper.edge.server.protocol._LAST_REQUEST_SECONDS", 2
    )  # else the request may come too late
    listening = listen("127.0.0.1", 0)
    async with HttpServer(AccessLog(app), listening, drain_seconds=5) as server:
        host, port = server.address.host, server.address.port
        connections = [await asyncio.open_connection(host, port) for _ in range(3)]
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        await until(lambda: listening.fileno() < 0)  # uvicorn looks every tenth of a second whether it is to stop
        _, writer = connections[0]
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        _, writer = connections[1]
        writer.write(b"GET / HTTP/1.1\r\n")
        await asyncio.sleep(0.5)
        writer.write(b"Host: x\r\n\r\n")
        answers = [await asyncio.wait_for(reader.read(), 10) for reader, _ in connections]
        await stopping
    for _, writer in connections:
        writer.close()
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200", b"HTTP/1.1 200", b""]
    assert all(b"connection: close" in answer for answer in answers[:2])


async def test_a_request_whose_time_is_over_at_a_stop_is_told_so() -> None:
    begun = asyncio.Event()

    async def waits(_scope: Any, _receive: Any, _send: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with HttpServer(AccessLog(Shell(waits)), listen("127.0.0.1", 0), drain_seconds=1) as server:
        sent = b"PUT / HTTP/1.1\r\nHost: x\r\nX-Correlation-Id: mine\r\n\r\n"
        asking = asyncio.create_task(exchange(server.address, sent))
        await begun.wait()
    answer = await asking
    assert error_of(answer) == (503, "UNAVAILABLE")
    assert b"\r\nretry-after: " in answer
    assert b"\r\nx-correlation-id: mine\r\n" in answer


@pytest.mark.parametrize("apart_seconds", [0.0, 0.02, 0.5])
async def test_nobody_is_taken_any_more_behind_a_second_signal_however_soon_it_comes(apart_seconds: float) -> None:
    begun, ended, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    server = HttpServer(AccessLog(Shell(app)), listen("127.0.0.1", 0), drain_seconds=600)

    async def serve(stop: asyncio.Event) -> None:
        try:
            async with server:
                begun.set()
                await stop.wait()
        finally:
            ended.set()
            await closed.wait()  # settlements under way are finished, and the database is closed

    serving = asyncio.create_task(until_signalled(serve))
    await begun.wait()
    _, unfinished = await asyncio.open_connection(server.address.host, server.address.port)
    unfinished.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(apart_seconds)
    assert not ended.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    await ended.wait()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(server.address.host, server.address.port)
    closed.set()
    await serving
    unfinished.close()


async def test_what_cannot_be_listened_on_is_said_with_what_to_choose() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError) as refused:
            listen("127.0.0.1", port)
        busy = f"127.0.0.1:{port} cannot be listened on (Address already in use): "
        assert str(refused.value) == busy + "end what listens there, or choose another port (--port)"
        with pytest.raises(ListenError) as refused:
            listen("127.0.0.1", port, "metrics_address")
        assert str(refused.value) == busy + "end what listens there, or choose another metrics_address"
    with pytest.raises(ListenError, match=r"192.0.2.1:80 .*: choose an address of this machine \(--host\)"):
        listen("192.0.2.1", 80)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (Address("0.0.0.0", 80), "http://127.0.0.1:80"),  # noqa: S104 - shown, not listened on
        (Address("::", 80), "http://[::1]:80"),
        (Address("::1", 80), "http://[::1]:80"),
        (Address("localhost", 80), "http://localhost:80"),
    ],
)
def test_a_listener_on_every_address_is_reached_on_this_machine(address: Address, url: str) -> None:
    assert address.url == url


async def caller_of(scope: Any, _receive: Any, send: Any) -> None:
    """Say whom the answer goes to."""
    body = scope["client"][0].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
async def test_a_listener_on_every_address_takes_callers_over_both_protocols_as_who_they_are(caller: str) -> None:
    async with HttpServer(AccessLog(caller_of), listen("::", 0), drain_seconds=1) as server:
        request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await exchange(Address(caller, server.address.port), request)
    assert answer.endswith(b"\r\n\r\n" + caller.encode())
