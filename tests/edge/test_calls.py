from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.edge.called import called
from tests.edge.callers import caller, everything, first_answer, say
from tests.edge.targets import Connection, answers, serves, sized, target
from tollkeeper.core.http.timeouts import Patience

HOST = b"Host: x\r\n"
CLOSE = b"Connection: close\r\n"


def get(path: bytes, more: bytes = b"", method: bytes = b"GET") -> bytes:
    return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method, path, HOST, more)


def bodies(data: bytes) -> list[bytes]:
    found = []
    while data:
        answer = first_answer(data)
        found.append(answer.body)
        data = answer.rest
    return found


async def until(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


# Order


async def test_calls_and_asgi_requests_in_one_packet_are_answered_in_the_order_of_their_coming() -> None:
    async with called() as running:
        sent = [b"/call/a", b"/asgi/a", b"/call/early", b"/call/b", b"/asgi/b", b"/asgi/c", b"/call/c"]
        data = b"".join(get(path) for path in sent) + get(b"/call/last", CLOSE)
        said = bodies(await say(running.asgi, data))
        assert said == [b"early" if path.endswith(b"early") else b"GET %b " % path for path in [*sent, b"/call/last"]]


async def test_a_call_behind_a_waiting_request_begins_when_that_is_answered() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/wait") + get(b"/call/wait") + get(b"/call/early", CLOSE))
        await asyncio.sleep(0.05)
        assert running.calls.begun == []
        running.asgi.go.set()
        await until(lambda: len(running.calls.begun) == 1)
        await asyncio.sleep(0.05)
        assert len(running.calls.begun) == 1
        running.calls.go.set()
        assert bodies(await everything(reader)) == [b"GET /wait ", b"GET /call/wait ", b"early"]


async def test_sixty_calls_answered_at_once_need_no_deep_stack() -> None:
    async with called() as running:
        said = await say(running.asgi, get(b"/asgi") + get(b"/call/early") * 60 + get(b"/call/a", CLOSE))
        assert len(bodies(said)) == 62


@pytest.mark.parametrize("pieces", [1, 3, 7, 40])
async def test_the_same_head_again_is_the_same_request_however_it_is_cut(pieces: int) -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        for number in range(5):
            data = get(b"/call/same", b"X-A: 1\r\n")
            size = -(-len(data) // (pieces if number % 2 else 1))
            for start in range(0, len(data), size):
                writer.write(data[start : start + size])
                await asyncio.sleep(0.001)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert b" 200 " in head
            assert await reader.readexactly(len(b"GET /call/same ")) == b"GET /call/same "
        assert len({call.request_id for call in running.calls.begun}) == 5


async def test_bytes_of_a_body_that_look_like_a_remembered_head_are_a_body() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        head = get(b"/call/early")
        for _ in range(2):
            writer.write(head)
            await asyncio.wait_for(reader.readuntil(b"early"), 10)
        writer.write(get(b"/call/take", b"%bContent-Length: %d\r\n" % (CLOSE, len(head)), b"POST"))
        await asyncio.sleep(0.05)
        writer.write(head)
        assert first_answer(await everything(reader)).body == b"POST /call/take " + head


# Bodies


async def test_a_body_is_asked_for_only_when_it_is_wanted() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/wait", b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"POST"))
        await until(lambda: running.calls.begun)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        running.calls.go.set()
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi" + get(b"/call/a", CLOSE))
        assert bodies(await everything(reader)) == [b"POST /call/wait hi", b"GET /call/a "]


async def test_an_answer_instead_of_a_body_closes_the_connection() -> None:
    async with called() as running:
        data = get(b"/call/early", b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"POST")
        answer = first_answer(await say(running.asgi, data))
        assert (answer.body, answer.headers[b"connection"], answer.rest) == (b"early", b"close", b"")


@pytest.mark.parametrize("path", [b"/call/a", b"/asgi"])
async def test_http_1_0_is_never_told_to_continue(path: bytes) -> None:
    """RFC 9110 10.1.1: it knows no answer before the answer."""
    async with called() as running:
        lines = b"Expect: 100-continue\r\nContent-Length: 2\r\n"
        data = get(path, lines, b"POST").replace(b"HTTP/1.1", b"HTTP/1.0") + b"hi"
        assert bodies(await say(running.asgi, data)) == [b"POST %b hi" % path]


async def test_an_early_answer_leaves_the_connection_in_step() -> None:
    async with called() as running:
        data = get(b"/call/early", b"Content-Length: 300000\r\n", b"POST") + bytes(300_000) + get(b"/call/b", CLOSE)
        assert bodies(await say(running.asgi, data)) == [b"early", b"GET /call/b "]


@pytest.mark.parametrize(
    "last",
    [
        b"GET /call/early HTTP/1.0\r\nConnection: keep-alive\r\n" + HOST + b"\r\n",
        get(b"/call/early", b"Transfer-Encoding: chunked\r\n", b"POST") + b"1\r\nx\r\n0\r\n\r\n",
    ],
)
async def test_what_stands_behind_the_last_answer_is_never_begun(last: bytes) -> None:
    async with called() as running:
        said = await say(running.asgi, last + get(b"/asgi") + get(b"/call/a") + get(b"/asgi", CLOSE))
        assert bodies(said) == [b"early"]
        assert (len(running.calls.begun), running.asgi.seen) == (1, [])


async def test_head_gets_the_length_and_no_body() -> None:
    async with called() as running:
        said = await say(running.asgi, get(b"/call/early", b"", b"HEAD") + get(b"/call/b", CLOSE))
        head, _, rest = said.partition(b"\r\n\r\n")
        assert b"content-length: 5" in head
        assert bodies(rest) == [b"GET /call/b "]


async def test_a_chunked_body_arrives_without_its_framing() -> None:
    async with called() as running:
        data = (
            get(b"/call/a", CLOSE + b"Transfer-Encoding: chunked\r\n", b"POST") + b"2\r\nhi\r\n3;x\r\n yo\r\n0\r\n\r\n"
        )
        assert first_answer(await say(running.asgi, data)).body == b"POST /call/a hi yo"


async def test_a_body_that_nobody_wants_yet_is_not_read_beyond_a_bound() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        size = 64_000_000
        writer.write(get(b"/call/wait", CLOSE + b"Content-Length: %d\r\n" % size, b"POST") + bytes(size))
        await until(lambda: running.calls.begun)
        await asyncio.sleep(0.2)
        assert writer.transport.get_write_buffer_size() > size // 2
        running.calls.go.set()
        assert len(first_answer(await everything(reader)).body) == size + len(b"POST /call/wait ")


async def test_a_caller_who_does_not_read_gets_no_second_large_answer_made() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport of a socket has it
        writer.write(get(b"/call/large") * 30)
        await asyncio.sleep(0.3)
        assert len(running.calls.begun) < 15
        writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        for _ in range(30):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            await reader.readexactly(1_000_000)


# The other end


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
async def test_bodies_cross_both_ways_in_either_framing(framing: bytes) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n2\r\n!!\r\n0\r\n\r\n"
    async with target(serves(response)) as there, called(there.at()) as running:
        data = b"POST /call/relay HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + framing
        answer = first_answer(await say(running.asgi, data))
        assert (answer.status, answer.body, there.bodies) == (200, b"yes!!", [b"hello"])
        assert b"transfer-encoding" not in answer.headers


async def test_a_target_that_does_not_read_stops_the_caller() -> None:
    async def behave(connection: Connection) -> None:
        await connection.head()
        await connection.target.lost.wait()

    async with target(behave) as there, called(there.at()) as running, caller(running.asgi) as (_, writer):
        size = 64_000_000
        writer.write(get(b"/call/relay", b"Content-Length: %d\r\n" % size, b"POST"))
        writer.write(bytes(size))
        await asyncio.sleep(0.5)
        assert writer.transport.get_write_buffer_size() > size // 2
        there.lost.set()
        await until(lambda: running.calls.answered == [502])


async def test_a_caller_who_leaves_ends_the_exchange_with_the_target() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.wait_closed()

    async with target(behave) as there, called(there.at()) as running, caller(running.asgi) as (_, writer):
        writer.write(get(b"/call/relay"))
        await until(lambda: there.heads)
        writer.transport.abort()
        await asyncio.wait_for(there.lost.wait(), 10)
        assert (running.calls.gone, running.calls.answered, running.calls.ends) == (1, [], [0])
        assert running.calls.forwarder.pool.open_count == 0


async def test_a_caller_who_leaves_in_the_line_is_never_begun() -> None:
    async with called() as running:
        async with caller(running.asgi) as (_, writer):
            writer.write(get(b"/call/wait") + get(b"/call/early"))
            await until(lambda: running.calls.begun)
        await until(lambda: running.calls.gone == 1)
        running.calls.go.set()
        await asyncio.sleep(0.05)
        assert len(running.calls.begun) == 1


async def test_who_takes_a_body_that_breaks_a_rule_is_told_and_answers() -> None:
    async with called() as running:
        data = get(b"/call/take", b"Transfer-Encoding: chunked\r\n", b"POST") + b"5\r\nhello\r\nnonsense\r\n"
        answer = first_answer(await say(running.asgi, data + get(b"/call/b")))
        assert (answer.status, answer.headers[b"x-parts"], answer.headers[b"connection"]) == (400, b"1", b"close")
        assert answer.rest == b""
        assert (running.calls.gone, running.calls.ends) == (0, [400])


async def test_who_asks_for_a_broken_body_later_is_told_what_came_and_that_it_broke() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/wait", b"Transfer-Encoding: chunked\r\n", b"POST") + b"5\r\nhello\r\nnonsense\r\n")
        await until(lambda: running.calls.begun)
        await asyncio.sleep(0.05)
        running.calls.go.set()
        answer = first_answer(await asyncio.wait_for(everything(reader), 10))
        assert (answer.status, answer.headers[b"x-parts"], answer.rest) == (400, b"1", b"")


@pytest.mark.parametrize("how", ["nonsense", "its end"])
async def test_an_answer_that_has_begun_goes_on_where_the_body_breaks_and_is_the_last(how: str) -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/halves", b"Transfer-Encoding: chunked\r\n", b"POST"))
        assert b"half " in await asyncio.wait_for(reader.readuntil(b"half "), 10)
        if how == "its end":
            writer.write_eof()
        else:
            writer.write(b"nonsense\r\n")
        await asyncio.sleep(0.3)
        running.calls.go.set()
        assert await asyncio.wait_for(reader.read(), 10) == b"\r\n4\r\nhalf\r\n0\r\n\r\n"
        assert (running.calls.gone, running.calls.ends) == (0, [200])


async def test_an_answer_that_does_not_go_on_where_the_body_breaks_is_cut_in_time() -> None:
    quick = Patience(sweep_seconds=0.05, body_seconds=0.5)
    async with called(patience=quick) as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/started", b"Transfer-Encoding: chunked\r\n", b"POST"))
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
        writer.write(b"nonsense\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), 10)
        assert (running.calls.gone, running.calls.ends) == (1, [200])


# Faults and ends


@pytest.mark.parametrize(("path", "status"), [(b"/call/fault", 500), (b"/call/refused", 404)])
async def test_a_handler_that_raises_is_answered_and_the_connection_goes_on(path: bytes, status: int) -> None:
    async with called() as running:
        said = await say(running.asgi, get(path) + get(b"/call/b", CLOSE))
        answer = first_answer(said)
        assert answer.status == status
        assert answer.error["requestId"].encode() == answer.headers[b"x-request-id"]
        assert bodies(answer.rest) == [b"GET /call/b "]
        assert running.calls.ends == [status, 200]


async def test_a_stopping_server_finishes_the_calls_that_it_took() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer), caller(running.asgi) as (idle, _):
        writer.write(get(b"/call/wait"))
        await until(lambda: running.calls.begun)
        stopping = asyncio.ensure_future(running.stop())
        assert await asyncio.wait_for(everything(idle), 10) == b""
        assert not stopping.done()
        running.calls.go.set()
        answer = first_answer(await asyncio.wait_for(everything(reader), 10))
        assert (answer.body, answer.headers[b"connection"]) == (b"GET /call/wait ", b"close")
        await stopping


async def test_a_connection_that_is_idle_after_a_call_is_closed_in_time() -> None:
    async with called(patience=Patience(sweep_seconds=0.05)) as running, caller(running.asgi) as (reader, writer):
        running.server.config.timeout_keep_alive = 1
        for connection in running.server.server_state.connections:
            connection.timeout_keep_alive = 1  # type: ignore[union-attr]  # ours has it
        writer.write(get(b"/call/early"))
        assert first_answer(await asyncio.wait_for(everything(reader), 10)).body == b"early"


async def test_a_kept_connection_to_the_target_serves_the_next_call() -> None:
    async with target(serves(sized(b"x"))) as there, called(there.at()) as running:
        said = await say(running.asgi, get(b"/call/relay") * 4 + get(b"/call/relay", CLOSE))
        assert bodies(said) == [b"x"] * 5
        assert there.connections == 1


async def test_a_target_that_closes_early_is_a_502() -> None:
    half = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", wait=False)
    async with target(half) as there, called(there.at()) as running:
        answer = first_answer(await say(running.asgi, get(b"/call/relay", CLOSE)))
        assert (answer.status, answer.error["code"]) == (502, "UPSTREAM_INVALID")


@pytest.mark.parametrize(
    ("says", "connections"),
    [
        (b"Connection: keep-alive", 1),
        (b"Connection: keep-alive, close", 2),
        (b"Connection: Close\r\nConnection: keep-alive", 2),
        (b"Proxy-Connection: keep-alive", 2),
        (b"X: y", 2),
    ],
)
async def test_a_target_of_http_1_0_is_asked_again_on_a_connection_that_it_keeps_alone(
    says: bytes, connections: int
) -> None:
    async def behave(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(b"HTTP/1.0 200 OK\r\n%b\r\nContent-Length: 2\r\n\r\nhi" % says)

    async with target(behave) as there, called(there.at()) as running:
        assert bodies(await say(running.asgi, get(b"/call/relay") + get(b"/call/relay", CLOSE))) == [b"hi"] * 2
        assert there.connections == connections
