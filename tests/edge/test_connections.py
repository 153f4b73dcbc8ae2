"""A connection to a target and the pool of them: bounds, and nothing that fails in silence (performance 5)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Literal

import pytest
import structlog

from tests.edge.targets import OK, Connection, Target, answers, serves, sized, target
from tests.edge.test_calls import until
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.heads import ResponseHead
from tollkeeper.edge.target.connection import TargetConnection, TargetKey
from tollkeeper.edge.target.exchange import TargetFailure
from tollkeeper.edge.target.pool import TargetPool

REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
Moment = Literal["head", "body", "end", "failure", "pause", "resume", "none"]


class Recorder:
    """An exchange that records what it is told, and fails at one moment if told to."""

    def __init__(self, fails_at: Moment = "none") -> None:
        self.fails_at = fails_at
        self.told: list[str] = []
        self.body = b""
        self.failure: TargetFailure | None = None
        self.over = asyncio.Event()

    def tell(self, moment: Moment) -> None:
        self.told.append(moment)
        if moment in ("end", "failure"):
            self.over.set()
        if moment == self.fails_at:
            raise ZeroDivisionError(moment)

    def on_head(self, head: ResponseHead) -> None:
        assert (head.status, head.framing.declared_bytes) == (200, int(dict(head.headers)[b"content-length"]))
        self.tell("head")

    def on_body(self, data: bytes | memoryview) -> None:
        self.body += data
        self.tell("body")

    def on_end(self) -> None:
        self.tell("end")

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        self.on_head(head)
        self.on_body(body)
        self.on_end()

    def on_failure(self, failure: TargetFailure) -> None:
        self.failure = failure
        self.tell("failure")

    def pause_sending(self) -> None:
        self.tell("pause")

    def resume_sending(self) -> None:
        self.tell("resume")


@pytest.fixture
async def pool() -> AsyncIterator[TargetPool]:
    made = TargetPool(idle_seconds=30, idle_per_target=3, idle_in_all=5)
    yield made
    made.close()
    await asyncio.sleep(0)


async def connect(pool: TargetPool, there: Target, name: str = "a.example") -> TargetConnection:
    return await pool.open("http", ["127.0.0.1"], there.port, name)


async def exchange(connection: TargetConnection, recorder: Recorder) -> Recorder:
    connection.begin(recorder, "GET")
    connection.write(REQUEST)
    connection.end_request()
    await asyncio.wait_for(recorder.over.wait(), 10)
    return recorder


async def test_an_exchange_is_told_head_body_and_end(pool: TargetPool) -> None:
    async with target(serves(sized(b"hello"))) as there:
        connection = await connect(pool, there)
        for _ in range(2):
            recorder = await exchange(connection, Recorder())
            assert (recorder.told, recorder.body) == (["head", "body", "end"], b"hello")
            assert pool.take([connection.lane], pool.loop.time()) is connection


@pytest.mark.parametrize("moment", ["head", "body", "end"])
async def test_a_fault_in_a_callback_is_logged_and_ends_the_exchange(pool: TargetPool, moment: Moment) -> None:
    async with target(serves(sized(b"hello"))) as there:
        with structlog.testing.capture_logs() as logs:
            recorder = await exchange(await connect(pool, there), Recorder(moment))
        await asyncio.sleep(0.01)
        assert recorder.told[-2:] == [moment, "failure"]
        assert recorder.failure is not None
        assert recorder.failure.code is Code.INTERNAL_ERROR
        assert [entry["event"] for entry in logs] == ["target_callback_failed"]
        assert isinstance(logs[0]["exc_info"], ZeroDivisionError)
        assert (pool.open_count, pool.idle_count) == (0, 0)


async def test_as_many_connections_are_kept_as_a_busy_target_has_calls_at_once() -> None:
    """Else each call beyond them would open its own, which costs as much as the call."""
    busy = TargetPool()
    async with target(serves(sized(b"hello"))) as there:
        for _ in range(2):
            lane = busy.lane(TargetKey("http", "127.0.0.1", there.port, "a.example"))
            kept = [busy.take([lane], asyncio.get_running_loop().time()) for _ in range(200)]
            connections = [one or await connect(busy, there) for one in kept]
            await asyncio.gather(*(exchange(one, Recorder()) for one in connections))
            assert busy.open_count == busy.idle_count == 200
        assert there.connections == 200
    busy.close()


async def says_in_turn(pool: TargetPool, *responses: tuple[bytes, ...], method: str = "GET") -> list[Recorder]:
    """What exchanges, one after the other, are told by a target that sends these parts; each on a kept connection."""
    left = list(responses)

    async def behave(connection: Connection) -> None:
        while True:
            await connection.head()
            for part in left.pop(0):
                await connection.send(part)
                await asyncio.sleep(0.02)

    recorders: list[Recorder] = []
    async with target(behave) as there:
        connection = await connect(pool, there)
        for _ in responses:
            if recorders:
                kept = pool.take([connection.lane], pool.loop.time())
                connection = kept or await connect(pool, there)
            recorder = Recorder()
            recorders.append(recorder)
            connection.begin(recorder, method)
            connection.write(REQUEST)
            connection.end_request()
            await asyncio.wait_for(recorder.over.wait(), 10)
    return recorders


HEAD = OK + b"Content-Length: 5\r\nDate: Sat, 21 Nov 2026 10:00:00 GMT\r\n\r\n"


async def test_a_head_that_was_read_before_brings_its_own_body(pool: TargetPool) -> None:
    whole, again, apart = (HEAD + b"first",), (HEAD + b"again",), (HEAD + b"in", b"two")
    recorders = await says_in_turn(
        pool, whole, again, apart, (HEAD, b"later"), (HEAD[:20], HEAD[20:] + b"slow!"), again
    )
    assert [recorder.body for recorder in recorders] == [b"first", b"again", b"intwo", b"later", b"slow!", b"again"]
    assert all((recorder.told[0], recorder.told[-1]) == ("head", "end") for recorder in recorders)
    assert pool.open_count == 1


async def test_what_follows_a_response_whose_head_was_read_before_spoils_the_connection(pool: TargetPool) -> None:
    behind = HEAD + b"first" + HEAD + b"extra"
    first, second, third = await says_in_turn(pool, (HEAD + b"first",), (behind,), (HEAD + b"third",))
    assert (first.body, second.body, third.body) == (b"first", b"first", b"third")
    assert pool.open_count == 1  # the second one's was dropped


@pytest.mark.parametrize(
    "head",
    [
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Content-Length: +5\r\n\r\n",
        OK + b"Content-Length: 5\r\n folded\r\n\r\n",
    ],
)
async def test_a_head_that_is_refused_is_refused_again(pool: TargetPool, head: bytes) -> None:
    good = (HEAD + b"first",)
    recorders = await says_in_turn(pool, good, (head + b"first",), good, (head + b"first",))
    assert [recorder.told[-1] for recorder in recorders] == ["end", "failure", "end", "failure"]


async def test_a_head_that_closes_is_read_each_time(pool: TargetPool) -> None:
    closing = OK + b"Content-Length: 5\r\nConnection: close\r\n\r\n"
    recorders = await says_in_turn(pool, (closing + b"first",), (closing + b"again",))
    assert [recorder.body for recorder in recorders] == [b"first", b"again"]
    assert pool.idle_count == 0


async def test_a_head_in_answer_to_head_is_no_head_of_a_body(pool: TargetPool) -> None:
    await says_in_turn(pool, (HEAD + b"first",))
    (recorder,) = await says_in_turn(pool, (HEAD,), method="HEAD")
    assert (recorder.told, recorder.body) == (["head", "end"], b"")
    (recorder,) = await says_in_turn(pool, (HEAD + b"third",))
    assert recorder.body == b"third"


@pytest.mark.parametrize("moment", ["head", "body", "end"])
async def test_a_fault_over_a_head_that_was_read_before_ends_the_exchange(pool: TargetPool, moment: Moment) -> None:
    async with target(serves(sized(b"hello"))) as there:
        connection = await connect(pool, there)
        await exchange(connection, Recorder())
        assert pool.take([connection.lane], pool.loop.time()) is connection
        with structlog.testing.capture_logs() as logs:
            recorder = await exchange(connection, Recorder(moment))
        await asyncio.sleep(0.01)
        assert recorder.told[-2:] == [moment, "failure"]
        assert recorder.failure is not None
        assert recorder.failure.code is Code.INTERNAL_ERROR
        assert [entry["event"] for entry in logs] == ["target_callback_failed"]
        assert (pool.open_count, pool.idle_count) == (0, 0)


async def test_a_fault_in_the_last_callback_is_logged_too(pool: TargetPool) -> None:
    async with target(answers(b"nonsense")) as there:
        with structlog.testing.capture_logs() as logs:
            recorder = await exchange(await connect(pool, there), Recorder("failure"))
        assert recorder.told == ["failure"]
        assert [entry["event"] for entry in logs] == ["target_callback_failed"]


@pytest.mark.parametrize("moment", ["pause", "resume"])
async def test_a_fault_while_the_request_is_held_back_is_logged_and_ends_the_exchange(
    pool: TargetPool, moment: Moment
) -> None:
    async def reads_late(connection: Connection) -> None:
        await asyncio.sleep(0.1)
        await connection.wait_closed()

    async with target(reads_late) as there:
        connection, recorder = await connect(pool, there), Recorder(moment)
        with structlog.testing.capture_logs() as logs:
            connection.begin(recorder, "POST")
            connection.write(REQUEST + bytes(30_000_000))
            await asyncio.wait_for(recorder.over.wait(), 5)
        assert recorder.told[-2:] == [moment, "failure"]
        assert [entry["event"] for entry in logs] == ["target_callback_failed"]


async def test_a_connection_carries_one_exchange(pool: TargetPool) -> None:
    async with target(answers()) as there:
        connection, first = await connect(pool, there), Recorder()
        connection.begin(first, "GET")
        assert connection.carries(first)
        with pytest.raises(RuntimeError):
            connection.begin(Recorder(), "GET")
        connection.abort()
        assert not connection.carries(first)
        await asyncio.sleep(0.01)
        assert first.told == []


async def test_a_request_that_was_not_sent_to_its_end_leaves_nothing_to_keep(pool: TargetPool) -> None:
    async def early(connection: Connection) -> None:
        await connection.head()
        await connection.send(sized(b"hello"))
        await connection.wait_closed()

    async with target(early) as there:
        connection, recorder = await connect(pool, there), Recorder()
        connection.begin(recorder, "POST")
        connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
        await asyncio.wait_for(recorder.over.wait(), 10)
        await asyncio.sleep(0.01)
        assert (recorder.body, pool.open_count) == (b"hello", 0)


async def test_the_pool_keeps_so_many_connections_and_drops_the_oldest(pool: TargetPool) -> None:
    async with target(serves(sized(b"x"))) as there:
        connections = [await connect(pool, there, f"{'a' if n < 5 else n}.example") for n in range(9)]
        for connection in connections[:5]:
            await exchange(connection, Recorder())
        await asyncio.sleep(0.01)
        assert (pool.idle_count, [connection.is_closing() for connection in connections[:5]]) == (
            3,
            [True, True, False, False, False],
        )
        for connection in connections[5:]:
            await exchange(connection, Recorder())
        assert pool.idle_count == 5
        assert [connection.is_closing() for connection in connections[2:]] == [
            True,
            True,
            False,
            False,
            False,
            False,
            False,
        ]
        assert pool.take([connections[4].lane], pool.loop.time()) is connections[4]
        assert pool.take([connections[4].lane], pool.loop.time()) is None


async def test_no_more_than_half_of_all_places_are_kept_for_nobody() -> None:
    pool = TargetPool(places=8)
    async with (
        target(serves(sized(b"x"))) as there,
        target(serves(sized(b"x")), host="127.0.0.2") as other,
        AsyncExitStack() as others,
    ):
        opened = [await connect(pool, there) for _ in range(4)]
        opened += [await pool.open("http", ["127.0.0.2"], other.port, "b.example") for _ in range(2)]
        for connection in opened:
            await exchange(connection, Recorder())
        assert pool.idle_count == 4
        for number in range(3, 11):  # what is idle gives way to what is used, and all together are never more
            one = await others.enter_async_context(target(answers(), host=f"127.0.0.{number}"))
            await pool.open("http", [f"127.0.0.{number}"], one.port, "c.example")
            await asyncio.sleep(0.01)
            assert pool.open_count <= 8
        assert (pool.open_count, pool.idle_count) == (8, 0)
        pool.close()
        await asyncio.sleep(0.01)


async def test_the_newest_connection_is_used_first(pool: TargetPool) -> None:
    async with target(serves(sized(b"x"))) as there:
        connections = [await connect(pool, there) for _ in range(3)]
        for connection in connections:
            await exchange(connection, Recorder())
        assert [pool.take([connections[0].lane], pool.loop.time()) for _ in range(4)] == [*reversed(connections), None]


async def test_a_connection_waits_for_a_bounded_time_only() -> None:
    pool = TargetPool(idle_seconds=0.05)
    async with target(serves(sized(b"x"))) as there:
        connection = await connect(pool, there)
        await exchange(connection, Recorder())
        await asyncio.sleep(0.1)
        assert pool.take([connection.lane], pool.loop.time()) is None
        other = await connect(pool, there)
        await exchange(other, Recorder())
        await until(lambda: (pool.idle_count, pool.open_count) == (0, 0))
    pool.close()


async def test_a_promise_of_the_target_shortens_the_wait() -> None:
    pool = TargetPool(idle_seconds=30)
    async with target(serves(sized(b"x", b"Keep-Alive: timeout=2, max=100"))) as there:
        connection = await connect(pool, there)
        for _ in range(2):  # the second answer is not read by the parser
            began = pool.loop.time()
            await exchange(connection, Recorder())
            assert pool.take([connection.lane], began + 0.9) is connection
        await exchange(connection, Recorder())
        assert pool.idle_count == 1
        await until(lambda: pool.idle_count == 0)
        other = await connect(pool, there)
        await exchange(other, Recorder())
        assert pool.take([other.lane], pool.loop.time() + 1.1) is None
    pool.close()


async def test_bytes_on_an_idle_connection_close_it(pool: TargetPool) -> None:
    is_idle = asyncio.Event()

    async def chatty(connection: Connection) -> None:
        await connection.request()
        await connection.send(sized(b"x"))
        await is_idle.wait()
        await connection.send(sized(b"unasked"))
        await connection.wait_closed()

    async with target(chatty) as there:
        connection = await connect(pool, there)
        await exchange(connection, Recorder())
        assert pool.idle_count == 1
        is_idle.set()
        await asyncio.wait_for(there.lost.wait(), 10)
        assert (pool.idle_count, pool.open_count) == (0, 0)


@pytest.mark.parametrize("last", [sized(b"unasked"), b"\r\n", b""])
async def test_what_a_target_said_or_ended_unread_is_not_the_next_exchanges(pool: TargetPool, last: bytes) -> None:
    """The loop has not looked at its sockets since, as while it waited for a commit."""
    there_by: list[Connection] = []

    async def keeps(connection: Connection) -> None:
        there_by.append(connection)
        await serves(sized(b"x"))(connection)

    async with target(keeps) as there:
        connection = await connect(pool, there)
        await exchange(connection, Recorder())
        assert pool.idle_count == 1
        with socket.socket(fileno=os.dup(there_by[0].writer.get_extra_info("socket").fileno())) as raw:
            raw.sendall(last)
            if not last:
                raw.shutdown(socket.SHUT_WR)
        assert pool.take([connection.lane], pool.loop.time()) is None
        assert (pool.idle_count, connection.is_closing()) == (0, True)


async def test_closing_the_pool_fails_what_is_under_way_and_keeps_nothing() -> None:
    pool = TargetPool()
    async with target(answers()) as there, target(serves(sized(b"x"))) as other:
        busy, recorder = await connect(pool, there), Recorder()
        idle = await connect(pool, other)
        await exchange(idle, Recorder())
        busy.begin(recorder, "GET")
        pool.close()
        await asyncio.sleep(0.01)
        assert recorder.failure is not None
        assert recorder.failure.code is Code.UPSTREAM_UNREACHABLE
        assert (pool.idle_count, pool.open_count) == (0, 0)
        with pytest.raises(ApiError):
            await connect(pool, there)


async def test_no_address_is_no_connection(pool: TargetPool) -> None:
    with pytest.raises(ApiError) as refusal:
        await pool.open("http", [], 80, "a.example")
    assert refusal.value.code is Code.UPSTREAM_UNREACHABLE


async def test_the_head_s_limit_is_64_kib_of_names_and_values(pool: TargetPool) -> None:
    def head(size: int) -> bytes:
        lines = OK + b"Content-Length: 0\r\n"
        return lines + b"A: " + b"b" * (size - len(b"Content-Length: 0\r\nA: \r\n")) + b"\r\n\r\n"

    async with target(answers(head(65_536))) as there:
        assert (await exchange(await connect(pool, there), Recorder())).told == ["head", "end"]
    async with target(answers(head(65_537))) as there:
        assert (await exchange(await connect(pool, there), Recorder())).told == ["failure"]
