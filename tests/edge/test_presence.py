"""Callers who send no more, and callers who left (RFC 9112 9.6): the first get their answers, the second cost nothing.

A caller who closes its connection says the same as one who only sends no more: FIN. A reset is what tells them apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
from typing import Any

import pytest

from tests.edge.called import Called, called
from tests.edge.callers import caller, everything, first_answer, say
from tests.edge.targets import Connection, serves, sized, target
from tests.edge.test_calls import CLOSE, bodies, get, until
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server import client_liveness, protocol_class
from tollkeeper.edge.server import protocol as inbound

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
QUICK = Patience(sweep_seconds=0.1)


def connected(running: Called, send_buffer_bytes: int = 1 << 20) -> socket.socket:
    """A caller whose system does as it is told, with nothing of asyncio between."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    line.connect(("127.0.0.1", running.asgi.port))
    line.setblocking(False)
    return line


def fill(line: socket.socket) -> None:
    """Send until the system takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            line.send(bytes(65_536))


# Callers who send no more


@pytest.mark.parametrize("path", [b"/call/wait", b"/wait"])
async def test_a_caller_who_sends_no_more_gets_its_answer(path: bytes) -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(get(path))
        writer.write_eof()
        await asyncio.sleep(1)
        running.calls.go.set()
        running.asgi.go.set()
        said = await asyncio.wait_for(everything(reader), 5)
        assert said.startswith(CONTINUE)
        answer = first_answer(said.removeprefix(CONTINUE))
        assert (answer.status, answer.body, answer.headers[b"connection"]) == (200, b"GET %b " % path, b"close")
        assert running.calls.gone == running.asgi.gone == 0


async def test_a_caller_who_sends_no_more_gets_the_target_s_answer_to_its_upload() -> None:
    async with target(serves(sized(b"yes"))) as there, called(there.at()) as running:
        async with caller(running.asgi) as (reader, writer):
            writer.write(get(b"/call/relay", b"Content-Length: 5\r\n", b"POST") + b"hello")
            writer.write_eof()
            said = await asyncio.wait_for(everything(reader), 5)
        assert (first_answer(said.replace(CONTINUE, b"")).body, there.bodies) == (b"yes", [b"hello"])


async def test_a_caller_who_sends_no_more_gets_all_answers_to_what_it_had_sent() -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        paths = [b"/call/wait", *(b"/call/%d" % number for number in range(12)), b"/asgi", b"/call/last"]
        writer.write(b"".join(map(get, paths)))
        writer.write_eof()
        await until(lambda: running.calls.begun)
        running.calls.go.set()
        said = await asyncio.wait_for(everything(reader), 10)
        assert bodies(said.replace(CONTINUE, b"")) == [b"GET %b " % path for path in paths]


async def test_a_caller_of_http_1_0_who_sends_no_more_is_not_asked() -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(b"GET /call/wait HTTP/1.0\r\nHost: x\r\n\r\n")
        writer.write_eof()
        await asyncio.sleep(1)
        running.calls.go.set()
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).body == b"GET /call/wait "


async def test_a_caller_who_sends_no_more_gets_the_refusal_behind_its_answers() -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/wait") + get(b"/call/x") * 65)  # more than may wait
        await until(lambda: running.calls.begun)
        writer.write_eof()
        await asyncio.sleep(0.3)
        running.calls.go.set()
        said = (await asyncio.wait_for(everything(reader), 10)).replace(CONTINUE, b"")
        assert (said.count(b"HTTP/1.1 200 "), said.count(b"HTTP/1.1 429 ")) == (65, 1)


@pytest.mark.parametrize(("version", "end"), [(b"1.1", b"4\r\nhalf\r\n0\r\n\r\n"), (b"1.0", b"half")])
async def test_a_caller_who_sends_no_more_gets_the_rest_of_an_answer_of_unknown_length(
    version: bytes, end: bytes
) -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(b"GET /call/halves HTTP/%b\r\nHost: x\r\n\r\n" % version)
        assert b"half " in await reader.read(1000)
        writer.write_eof()
        await asyncio.sleep(1)
        running.calls.go.set()
        assert (await asyncio.wait_for(reader.read(), 5)).removeprefix(b"\r\n") == end
        assert (running.calls.gone, running.calls.ends) == (0, [200])


async def test_a_caller_who_sends_no_more_in_the_middle_of_an_answer_gets_those_behind_it() -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/halves") + get(b"/call/x"))
        said = await reader.read(1000)
        writer.write_eof()
        await asyncio.sleep(0.3)
        running.calls.go.set()
        said += await asyncio.wait_for(everything(reader), 5)
        assert b"4\r\nhalf\r\n0\r\n\r\n" + CONTINUE + b"HTTP/1.1 200 OK" in said
        assert said.endswith(b"GET /call/x ")


@pytest.mark.parametrize("ends", ["cut", "fails"])
async def test_an_answer_without_an_end_that_is_cut_does_not_look_whole(ends: str) -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(b"GET /call/%b HTTP/1.0\r\nHost: x\r\n\r\n" % ends.encode())
        assert b"half " in await reader.read(1000)
        running.calls.go.set()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)


async def test_an_answer_without_an_end_that_its_caller_does_not_take_does_not_look_whole() -> None:
    quick = Patience(sweep_seconds=0.05, read_seconds=0.3)
    async with called(patience=quick) as running:
        line = connected(running)
        line.setblocking(True)
        line.settimeout(20)
        line.sendall(b"GET /call/much HTTP/1.0\r\nHost: x\r\n\r\n")
        await until(lambda: running.calls.begun)
        await until(lambda: not running.server.server_state.connections, 20)

        def read() -> None:
            while line.recv(1_000_000):
                pass

        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(read)
        running.calls.begun[0].abort()  # of one who has left: nothing is left to do
        line.close()


async def test_a_body_that_ends_early_is_refused_and_its_request_taken_back() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/early") + get(b"/asgi", b"Content-Length: 5\r\n", b"POST") + b"hel")
        writer.write_eof()
        answer = first_answer(await asyncio.wait_for(everything(reader), 5))
        assert (answer.body, first_answer(answer.rest).status) == (b"early", 400)
        await until(lambda: running.asgi.gone == 1)


async def test_who_takes_a_body_that_ends_early_is_told_once_its_caller_is_known_to_be_there() -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/early") + get(b"/call/take", b"Content-Length: 5\r\n", b"POST") + b"hel")
        writer.write_eof()
        answer = first_answer(await asyncio.wait_for(everything(reader), 5))
        assert answer.body == b"early"
        asked, refusal = answer.rest[: len(CONTINUE)], first_answer(answer.rest[len(CONTINUE) :])
        assert (asked, refusal.status, refusal.headers[b"x-parts"]) == (CONTINUE, 400, b"1")
        assert (running.calls.gone, running.calls.ends) == (0, [200, 400])


async def test_a_whole_request_is_none_of_the_refused_head_behind_it_however_its_caller_ends() -> None:
    async def slow(connection: Connection) -> None:
        await connection.request()
        await asyncio.sleep(2)
        await connection.send(sized(b"hi"))

    async with (
        target(slow) as there,
        called(there.at(), QUICK) as running,
        caller(running.asgi) as (reader, writer),
    ):
        whole = get(b"/call/relay", b"Transfer-Encoding: chunked\r\n", b"POST") + b"5\r\nhello\r\n0\r\n\r\n"
        writer.write(whole + b"GET /call/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        writer.write_eof()
        answer = first_answer((await asyncio.wait_for(everything(reader), 10)).replace(CONTINUE, b""))
        assert (answer.status, answer.body, first_answer(answer.rest).status) == (200, b"hi", 400)


# Callers who left


async def test_a_caller_who_closes_ends_the_exchange_with_the_target() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.wait_closed()

    async with target(behave) as there, called(there.at()) as running:
        with connected(running) as line:
            line.send(get(b"/call/relay"))
            await until(lambda: there.heads)
        await asyncio.wait_for(there.lost.wait(), 10)
        assert (running.calls.gone, running.calls.answered, running.calls.ends) == (1, [], [0])


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_caller_who_closes_in_the_middle_of_an_answer_that_says_nothing_is_found_by_the_system(
    version: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_liveness, "SYSTEM_ASKS_SECONDS", 1)
    async with called(patience=QUICK) as running:
        with connected(running) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)  # a minute goes quickly
            line.send(b"GET /call/halves HTTP/%b\r\nHost: x\r\n\r\n" % version)
            said = b""
            while b"half " not in said:
                said += await asyncio.get_running_loop().sock_recv(line, 1000)
        await until(lambda: running.calls.gone == 1)


async def test_an_asgi_request_learns_that_its_caller_closed() -> None:
    async with called(patience=QUICK) as running:
        with connected(running) as line:
            line.send(get(b"/asgi/endless"))
            await until(lambda: running.asgi.seen)
        await until(lambda: not running.server.server_state.connections, 10)


async def test_what_was_read_ahead_of_a_target_is_lent_to_others_once_it_has_taken_it() -> None:
    goes_on, size, part = asyncio.Event(), 64_000_000, 24_000_000

    async def behave(connection: Connection) -> None:
        await connection.head()
        await goes_on.wait()
        await connection.reader.readexactly(size)
        await connection.send(sized(b"yes"))

    async with (
        target(behave) as there,
        called(there.at(), patience=QUICK) as running,
        caller(running.asgi) as (reader, writer),
    ):
        writer.write(get(b"/call/relay", b"Content-Length: %d\r\n" % size, b"POST") + bytes(part))
        await until(lambda: running.server.server_state.connections)
        connection: Any = next(iter(running.server.server_state.connections))
        await until(lambda: connection._lent_bytes > 0)  # noqa: SLF001 - nothing else shows it
        goes_on.set()
        await until(lambda: connection._lent_bytes == 0)  # noqa: SLF001
        writer.write(bytes(size - part))
        assert (await asyncio.wait_for(reader.readuntil(b"yes"), 20)).startswith(b"HTTP/1.1 200")


async def test_what_is_read_ahead_is_counted_by_the_network_of_an_ipv6_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the address the caller chooses as it likes, anew for each connection."""
    addresses = iter(["2001:db8::1", "2001:db8::2:1"])
    monkeypatch.setattr(inbound, "plain_address", lambda _peer: next(addresses))
    ends = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await connection.head()
        await ends.wait()

    async with (
        target(behave) as there,
        called(there.at(), patience=QUICK) as running,
        caller(running.asgi) as (_, first),
        caller(running.asgi) as (_, second),
    ):
        for writer in (first, second):
            writer.write(get(b"/call/relay", b"Content-Length: 64000000\r\n", b"POST") + bytes(24_000_000))
        await until(lambda: len(running.server.server_state.connections) == 2)
        held: Any = running.server.server_state.connections
        await until(lambda: all(one._lent_bytes for one in held))  # noqa: SLF001 - nothing else shows it
        room = next(iter(held)).listener.ahead
        assert room.held_by("2001:db8::/64") == room.held > 0
        ends.set()


@pytest.mark.parametrize("where", ["here", "still there"])
async def test_a_caller_who_leaves_an_upload_that_its_target_does_not_take_ends_the_exchange(where: str) -> None:
    async def behave(connection: Connection) -> None:
        await connection.head()
        await connection.target.lost.wait()

    async with target(behave) as there, called(there.at(), QUICK) as running:
        running.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 19)
        with connected(running) as line:
            line.send(get(b"/call/relay", b"Content-Length: 64000000\r\n", b"POST"))
            await until(lambda: there.heads)
            for _ in range(20):
                fill(line)
                await asyncio.sleep(0)
            if where == "still there":
                fill(line)
        await until(lambda: running.calls.gone == 1, 20)
        there.lost.set()


async def test_an_upload_that_its_target_takes_late_arrives_whole_and_is_read_ahead_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol_class, "AHEAD_ALL_BYTES", 18 * 1024 * 1024)  # of which one address has a third
    size = 64_000_000
    sent = random.Random(1).randbytes(size)
    goes = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await connection.head()
        await goes.wait()
        assert await connection.reader.readexactly(size) == sent
        connection.writer.write(sized(b"whole"))
        await connection.wait_closed()

    async with target(behave) as there, called(there.at(), QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/relay", CLOSE + b"Content-Length: %d\r\n" % size, b"POST") + sent)
        await asyncio.sleep(3)
        assert writer.transport.get_write_buffer_size() > size // 4
        goes.set()
        assert first_answer(await asyncio.wait_for(everything(reader), 20)).body == b"whole"


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("waiting", [2, 30])
async def test_nothing_is_begun_for_a_caller_who_left_while_its_calls_waited(how: str, waiting: int) -> None:
    async with called(patience=QUICK) as running:
        line = connected(running)
        line.send(get(b"/call/wait") + get(b"/call/early") * waiting)
        await until(lambda: running.calls.begun)
        if how == "resets":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        line.close()
        running.calls.go.set()
        await until(lambda: not running.server.server_state.connections, 5)
        assert len(running.calls.begun) == 1


# Where a request ends


STREAM = [
    (get(b"/call/a"), b"GET /call/a "),
    (
        get(b"/call/b", b"Content-Length: 22\r\n", b"POST") + b"\r\n\r\nGET  /x HTTP/1.1\r\n",
        b"POST /call/b \r\n\r\nGET  /x HTTP/1.1\r\n",
    ),
    (
        b"\r\n\r\n"
        + get(b"/call/c", b"Transfer-Encoding: chunked\r\n", b"PUT")
        + b"6\r\n\r\n\r\n0\r\r\n2\r\n\r\n\r\n0\r\nA: b\r\n\r\n",
        b"PUT /call/c \r\n\r\n0\r\r\n",
    ),
    (get(b"/asgi", b"Content-Length: 4\r\n", b"POST") + b"\r\n\r\n", b"POST /asgi \r\n\r\n"),
    (
        get(b"/call/d", b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 4\r\n", b"POST") + b"\r\n\r\n",
        b"POST /call/d \r\n\r\n",
    ),
    (get(b"/call/a"), b"GET /call/a "),
    (get(b"/call/last", CLOSE), b"GET /call/last "),
]


@pytest.mark.parametrize("seed", range(12))
async def test_requests_end_where_they_end_however_the_bytes_are_cut(seed: int) -> None:
    data = b"".join(request for request, _ in STREAM)
    dice = random.Random(seed)
    cuts = sorted(dice.sample(range(1, len(data)), k=0 if seed == 0 else dice.randrange(1, 60)))
    async with called() as running, caller(running.asgi) as (reader, writer):
        for start, end in itertools.pairwise([0, *cuts, len(data)]):
            writer.write(data[start:end])
            await asyncio.sleep(0.001)
        assert bodies(await asyncio.wait_for(everything(reader), 5)) == [body for _, body in STREAM]


@pytest.mark.parametrize("before", [b"", *(request for request, _ in STREAM[:5])])
@pytest.mark.parametrize("cut", [1, 4, 5, 20])
async def test_a_first_line_with_two_spaces_is_refused_wherever_it_stands(before: bytes, cut: int) -> None:
    line = b"GET  /call/z HTTP/1.1\r\nHost: x\r\n\r\n"
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(before + line[:cut])
        await asyncio.sleep(0.02)
        writer.write(line[cut:])
        said = await asyncio.wait_for(everything(reader), 5)
        assert b"HTTP/1.1 400" in said
        assert all(call.head.target != b"/call/z" for call in running.calls.begun)


async def test_a_first_line_that_comes_byte_by_byte_is_read() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        for byte in b"\r\n" + get(b"/call/a", CLOSE):
            writer.write(bytes([byte]))
            await writer.drain()
        assert bodies(await asyncio.wait_for(everything(reader), 5)) == [b"GET /call/a "]
    async with called() as running:
        assert bodies(await say(running.asgi, b"\r\n\r\n" + get(b"/call/a", CLOSE))) == [b"GET /call/a "]
