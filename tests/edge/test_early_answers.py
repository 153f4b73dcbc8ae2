"""An answer that comes before its request's body was read (RFC 9112 9.3, 9.6).

What is short is read and the connection kept; over anything else it is closed, which the answer says, and so that the
caller sees it: what still comes is thrown away for a while, for a reset would destroy the answer on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.edge.called import Called, called
from tests.edge.callers import caller, everything, first_answer, listener
from tests.edge.targets import Connection, certificate, sized, target
from tests.edge.test_calls import CLOSE, get, until
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.delayed_close import LINGER_SIZE_BYTES
from tollkeeper.edge.server.protocol import UNREAD_BODY_BYTES

PATHS = [b"/call/early", b"/early"]  # a call, and a request for ASGI
MIB = 1024 * 1024
QUICK = Patience(linger_seconds=0.3, linger_total_seconds=1, sweep_seconds=0.05)
PATIENT = Patience(linger_seconds=20, linger_total_seconds=60)
SMUGGLED = get(b"/call/smuggled") + get(b"/smuggled")


def post(path: bytes, *lines: bytes) -> bytes:
    return get(path, b"".join(line + b"\r\n" for line in lines), b"POST")


def length(size_bytes: int) -> bytes:
    return b"Content-Length: %d" % size_bytes


def reached(running: Called) -> list[bytes]:
    """What anybody was asked to answer."""
    return [call.head.target for call in running.calls.begun] + [seen.path for seen in running.asgi.seen]


def upload(port: int, head: bytes, size_bytes: int) -> bytes:
    """A caller who sends all before it reads, as many programs do; a reset is an error."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(head)
        for _ in range(size_bytes // 65_536):
            line.sendall((SMUGGLED * (65_536 // len(SMUGGLED) + 1))[:65_536])
        said = b""
        while part := line.recv(65_536):
            said += part
    return said


@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_who_sends_everything_before_it_reads_gets_the_answer_and_no_reset(path: bytes) -> None:
    size = 20 * MIB
    async with called(patience=PATIENT) as running:
        said = await asyncio.to_thread(upload, running.asgi.port, post(path, length(size)), size)
        answer = first_answer(said)
        assert (answer.status, answer.headers[b"connection"], answer.body, answer.rest) == (
            200,
            b"close",
            b"early",
            b"",
        )
        assert reached(running) == [path]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "framing",
    [length(UNREAD_BODY_BYTES + 1), length(10**15), b"Transfer-Encoding: chunked"],
    ids=["over", "huge", "chunked"],
)
async def test_an_answer_before_a_long_body_says_close_and_ends_what_is_sent(path: bytes, framing: bytes) -> None:
    async with called(patience=PATIENT) as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, framing))
        answer = first_answer(await asyncio.wait_for(everything(reader), 5))
        assert (answer.status, answer.headers[b"connection"], answer.rest) == (200, b"close", b"")
        writer.write(b"5\r\nhello\r\n0\r\n\r\n" + SMUGGLED)
        await asyncio.sleep(0.1)
        assert reached(running) == [path]
        assert not writer.transport.is_closing()


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_before_a_short_body_keeps_the_connection_in_step(path: bytes) -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(UNREAD_BODY_BYTES)))
        assert b"connection" not in await reader.readuntil(b"early")
        body = (SMUGGLED * (UNREAD_BODY_BYTES // len(SMUGGLED) + 1))[:UNREAD_BODY_BYTES]
        writer.write(body + get(path, CLOSE))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).headers[b"connection"] == b"close"
        assert reached(running) == [path, path]


@pytest.mark.parametrize("path", [b"/call/wait", b"/wait"])
@pytest.mark.parametrize("framing", [length(3 * MIB), b"Transfer-Encoding: chunked"], ids=["length", "chunked"])
async def test_a_long_body_that_was_read_keeps_the_connection(path: bytes, framing: bytes) -> None:
    is_chunked = framing.startswith(b"T")
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (3 * MIB, bytes(3 * MIB)) if is_chunked else bytes(3 * MIB)
    async with called() as running, caller(running.asgi) as (reader, writer):
        running.calls.go.set()
        running.asgi.go.set()
        for _ in range(2):
            writer.write(post(path, framing) + body)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert b"connection" not in head
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


@pytest.mark.parametrize("path", [b"/call/wait", b"/wait"])
async def test_a_stopping_server_says_close_though_a_long_body_was_read(path: bytes) -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(3 * MIB)) + bytes(MIB))
        await until(lambda: reached(running))
        for connection in running.server.server_state.connections:
            connection.shutdown()
        writer.write(bytes(2 * MIB))
        running.calls.go.set()
        running.asgi.go.set()
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).headers[b"connection"] == b"close"


# Expect: 100-continue


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [5, 3 * MIB])
async def test_a_caller_who_waits_for_100_and_is_answered_may_send_the_body_or_not(path: bytes, size: int) -> None:
    """Which of the two, nobody can tell from the bytes: nothing behind the answer is read as a request."""
    async with called(patience=PATIENT) as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(size), b"Expect: 100-continue"))
        answer = first_answer(await asyncio.wait_for(everything(reader), 5))
        assert (answer.status, answer.headers[b"connection"], answer.rest) == (200, b"close", b"")
        writer.write(SMUGGLED)
        await asyncio.sleep(0.1)
        assert reached(running) == [path]
        assert not writer.transport.is_closing()


@pytest.mark.parametrize("path", [b"/call/take", b"/take"])
async def test_a_caller_who_waited_for_100_and_sent_the_body_keeps_the_connection(path: bytes) -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(2), b"Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert b"connection" not in await asyncio.wait_for(reader.readuntil(b"hi"), 5)
        writer.write(get(path, CLOSE))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200


# The end


@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_who_stays_silent_behind_the_answer_is_left(path: bytes) -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(10**9)))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200
        await until(lambda: not running.server.server_state.connections)


async def test_an_early_answer_to_a_caller_who_has_just_left_ends_its_call_in_order() -> None:
    async with called() as running:
        line = socket.create_connection(("127.0.0.1", running.asgi.port))
        line.sendall(post(b"/call/silent", length(10**9)) + b"begun")
        await until(lambda: bool(running.calls.begun))
        line.close()
        running.calls.begun[0].answer(200, b"", b"early")  # which the caller's system refuses before it is all said
        assert running.calls.ends == [200]
        await until(lambda: not running.server.server_state.connections)


@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_who_sends_on_for_ever_is_left(path: bytes) -> None:
    async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(10**9)))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200
        loop = asyncio.get_running_loop()
        started = loop.time()
        while running.server.server_state.connections:
            assert loop.time() - started < 10
            if not writer.transport.is_closing():
                writer.write(b"x")
            await asyncio.sleep(0.02)
        assert loop.time() - started > QUICK.linger_seconds


async def test_no_more_than_so_much_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.edge.server.delayed_close.LINGER_SIZE_BYTES", 4 * MIB)
    assert LINGER_SIZE_BYTES == 64 * MIB
    async with called(patience=PATIENT) as running:
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(upload, running.asgi.port, post(b"/call/early", length(10**9)), 64 * MIB)
        await until(lambda: not running.server.server_state.connections)


async def test_a_slow_reader_gets_all_of_an_answer_that_ends_the_connection() -> None:
    async with called(patience=QUICK) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.asgi.port, limit=65_536)
        writer.write(post(b"/call/large", length(10**9)))
        read = 0
        with contextlib.suppress(asyncio.IncompleteReadError):
            while part := await reader.read(20_000):
                read += len(part)
                await asyncio.sleep(0.05)
        assert read > 1_000_000
        writer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_that_stops_does_not_wait_long_for_a_caller_who_sends_on(path: bytes) -> None:
    patience = Patience(linger_seconds=0.3, linger_total_seconds=60, sweep_seconds=0.05)
    async with called(patience=patience) as running, caller(running.asgi) as (reader, writer):
        writer.write(post(path, length(10**9)))
        assert first_answer(await asyncio.wait_for(everything(reader), 5)).status == 200
        stopping = asyncio.ensure_future(running.stop())
        while not stopping.done():
            if not writer.transport.is_closing():
                writer.write(b"x")
            await asyncio.sleep(0.02)
        await stopping


async def test_what_was_answered_before_a_stop_reaches_a_caller_who_had_sent_more() -> None:
    async with called() as running:
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # so that answers wait for their reader
            line.settimeout(10)
            await asyncio.to_thread(line.connect, ("127.0.0.1", running.asgi.port))
            asked = get(b"/call/large", b"A: " + b"a" * 20_000 + b"\r\n") * 200
            sending = asyncio.ensure_future(asyncio.to_thread(line.sendall, asked))
            await until(lambda: bool(running.calls.begun))
            stopping = asyncio.ensure_future(running.stop())
            await asyncio.sleep(0.1)

            def read() -> bytes:
                parts: list[bytes] = []
                while part := line.recv(1_000_000):  # a reset, which may destroy answers on their way, is an error
                    parts.append(part)
                return b"".join(parts)

            said = await asyncio.to_thread(read)
            answers = said.count(b"HTTP/1.1 200")
            assert answers == len(running.calls.ends) < 200
            assert len(first_answer(said[said.rindex(b"HTTP/1.1 200") :]).body) == 1_000_000
            await sending
        await stopping


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    "behind", [b"", b"POST /call/x HT", b"POST /call/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhell"]
)
def test_the_end_of_what_a_caller_sends_does_not_destroy_the_last_answer_of_a_server_that_stops(
    behind: bytes, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    size = 6_000_000
    told: list[str] = []

    async def run() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with called(patience=QUICK) as running, caller(running.asgi) as (reader, writer):
            writer.write(get(b"/call/silent"))
            await until(lambda: bool(running.calls.begun))
            (connection,) = running.server.server_state.connections
            connection.shutdown()
            writer.write(behind)
            await asyncio.sleep(0.2)
            reader._limit = 1000  # type: ignore[attr-defined]  # noqa: SLF001 - so that most waits for its reader
            running.calls.begun[0].answer(200, b"", bytes(size))
            await asyncio.sleep(0.2)
            writer.write_eof()
            await asyncio.sleep(0.2)
            return await asyncio.wait_for(everything(reader), 10)

    with asyncio.Runner(loop_factory=loop) as runner:
        answer = first_answer(runner.run(run()))
    assert (len(answer.body), told) == (size, [])


@pytest.mark.parametrize("path", [b"/call/large", b"/long"])
async def test_what_comes_behind_the_last_request_does_not_destroy_its_answer(path: bytes) -> None:
    """Old clients send an empty line behind a body (RFC 9112 2.2), some a request that nobody will answer."""

    def ask(port: int, behind: bytes) -> int:
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # so that the answer waits for its reader
            line.connect(("127.0.0.1", port))
            line.settimeout(10)
            line.sendall(get(path, CLOSE + b"Content-Length: 5\r\n", b"POST") + b"hello")
            time.sleep(0.1)
            line.sendall(behind)
            time.sleep(0.1)
            size = 0
            while part := line.recv(65_536):  # a reset, which may destroy what is on its way, is an error
                size += len(part)
                time.sleep(0.001)
        return size

    async with called(patience=QUICK) as running:
        sizes = [await asyncio.to_thread(ask, running.asgi.port, behind) for behind in (b"", b"\r\n", get(b"/call/x"))]
    assert len(set(sizes)) == 1
    assert sizes[0] > 1_000_000


async def test_a_last_answer_over_tls_ends_at_once(tmp_path: Path) -> None:
    """There is no way to end one side of it."""
    server, client = certificate(tmp_path, "gw.example")
    async with listener(PATIENT, tls=server) as listening:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listening.port, ssl=client, server_hostname="gw.example"
        )
        writer.write(get(b"/last", CLOSE))
        said = await asyncio.wait_for(reader.read(-1), 5)  # an end without TLS's own would be an error
        writer.close()
    assert first_answer(said).body == b"GET /last "


async def test_an_early_answer_over_tls_is_seen_by_a_caller_who_sends_everything_first(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "gw.example")
    async with listener(PATIENT, tls=server) as listening:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listening.port, ssl=client, server_hostname="gw.example"
        )
        writer.write(post(b"/early", length(10**9)))
        for _ in range(80):
            writer.write(bytes(65_536))
            await writer.drain()
        assert b"connection: close" in await asyncio.wait_for(reader.readuntil(b"early"), 5)
        writer.close()


# Targets


async def answers_413(connection: Connection) -> None:
    await connection.head()
    connection.writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
    await connection.writer.drain()
    connection.writer.write_eof()
    with contextlib.suppress(ConnectionError):
        while await connection.reader.read(65_536):
            pass


async def answers_413_and_resets(connection: Connection) -> None:
    """What a server does that just closes: its system resets a connection that is closed over unread bytes."""
    await connection.head()
    connection.writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
    await connection.writer.drain()
    connection.writer.close()


@pytest.mark.parametrize("behaviour", [answers_413, answers_413_and_resets])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
async def test_the_target_s_answer_before_the_body_reaches_a_caller_who_sends_all_first(
    behaviour: object, is_chunked: object
) -> None:
    size = 20 * MIB
    assert callable(behaviour)
    async with target(behaviour) as there, called(there.at(), PATIENT) as running:
        if is_chunked:
            head = post(b"/call/relay", b"Transfer-Encoding: chunked") + b"%x\r\n" % (2 * size)
        else:
            head = post(b"/call/relay", length(size))
        answer = first_answer(await asyncio.to_thread(upload, running.asgi.port, head, size))
        assert len(running.calls.begun) == 1
        assert (answer.status, answer.headers[b"connection"], answer.body) == (413, b"close", b"much")
        assert running.calls.answered == [413]


async def test_a_long_answer_before_the_body_reaches_a_caller_who_sends_all_first_though_its_target_takes_none() -> (
    None
):
    """More than its way can hold: the rest must go somewhere before the caller reads."""
    size, is_told = 60 * MIB, asyncio.Event()

    async def answers_and_stays(connection: Connection) -> None:
        await connection.head()
        await asyncio.sleep(0.3)
        await connection.send(sized(b"a" * (8 * MIB)))
        await is_told.wait()

    quick = Patience(sweep_seconds=0.05, read_seconds=5, body_seconds=5)
    async with target(answers_and_stays) as there, called(there.at(), quick) as running:
        said = await asyncio.to_thread(upload, running.asgi.port, post(b"/call/relay", length(size)), size)
        is_told.set()
    answer = first_answer(said)
    assert (answer.status, len(answer.body)) == (200, 8 * MIB)


def slow_upload(port: int, path: bytes, size_bytes: int, seconds: float) -> bytes:
    """A caller who sends all before it reads, in parts, and never falls silent."""
    parts = int(seconds * 20)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(post(path, length(size_bytes)))
        for _ in range(parts):
            line.sendall(bytes(size_bytes // parts))
            time.sleep(1 / 20)
        said = b""
        while b"early" not in said and (part := line.recv(65_536)):
            said += part
    return said


@pytest.mark.parametrize("path", PATHS)
async def test_a_stop_does_not_destroy_the_early_answer_to_a_short_body_that_still_comes(path: bytes) -> None:
    async with called() as running:
        sending = asyncio.create_task(asyncio.to_thread(slow_upload, running.asgi.port, path, 900_000, 1.5))
        await until(lambda: reached(running))
        await running.stop()
        assert first_answer(await sending).status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_short_body_that_comes_slowly_behind_its_answer_is_not_idle(path: bytes) -> None:
    async with called(patience=Patience(sweep_seconds=0.05)) as running:
        running.server.config.timeout_keep_alive = 1
        said = await asyncio.to_thread(slow_upload, running.asgi.port, path, 900_000, 2.5)
        assert first_answer(said).status == 200


async def test_who_waited_to_be_asked_and_sent_a_part_of_his_body_is_given_up_behind_its_answer() -> None:
    async with called(patience=Patience(sweep_seconds=0.05, body_seconds=1, head_seconds=1)) as running:
        running.server.config.timeout_keep_alive = 1
        async with caller(running.asgi) as (reader, writer):
            writer.write(post(b"/call/silent", b"Expect: 100-continue", length(10)) + b"x")
            await until(lambda: running.calls.begun)
            await asyncio.sleep(0.2)
            running.calls.begun[0].answer(402, b"")
            answer = first_answer(await asyncio.wait_for(everything(reader), 8))
            assert (answer.status, answer.rest) == (402, b"")
            assert b"connection" not in answer.headers


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_a_caller_who_leaves_between_a_stop_and_its_look_is_no_fault(how: str) -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(post(b"/call/early", length(5000)) + b"hel")
        await asyncio.wait_for(reader.readuntil(b"early"), 5)
        stopping = asyncio.ensure_future(running.stop())
        await asyncio.sleep(0.15)
        getattr(writer if how == "close" else writer.transport, how)()
        await stopping
        await asyncio.sleep(0.6)
    assert told == []
