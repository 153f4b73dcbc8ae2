"""Requests with bodies on one connection: the same requests, however their bytes are cut."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.edge.called import called
from tests.edge.callers import caller, everything, first_answer
from tests.edge.test_calls import CLOSE, bodies, get

LENGTH = 30
HEAD = get(b"/call/take", b"Content-Length: %d\r\n" % LENGTH, b"POST")
EARLY = get(b"/call/early", b"Content-Length: %d\r\n" % LENGTH, b"POST")


def body(number: int) -> bytes:
    return b"%030d" % number


async def read_answer(reader: asyncio.StreamReader, seconds: float = 3) -> bytes:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), seconds)
    return await reader.readexactly(int(first_answer(head + b"x" * 9999).headers[b"content-length"]))


@pytest.mark.parametrize("seed", range(8))
async def test_each_body_arrives_behind_its_head(seed: int) -> None:
    chosen = random.Random(seed)
    async with called() as running, caller(running.asgi) as (reader, writer):
        expected: list[bytes] = []
        for number in range(60):
            kind = chosen.randrange(5)
            if kind == 0:
                data, answers = get(b"/call/take"), [b"GET /call/take "]
            elif kind == 1:
                data, answers = EARLY + body(number), [b"early"]
            elif kind == 2:  # two in one piece
                data = HEAD + body(number) + HEAD + body(number + 1000)
                answers = [b"POST /call/take " + body(number), b"POST /call/take " + body(number + 1000)]
            else:
                data, answers = HEAD + body(number), [b"POST /call/take " + body(number)]
            cuts = sorted(chosen.randrange(len(data)) for _ in range(chosen.choice((0, 0, 1, 3))))
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                writer.write(data[start:end])
                if cuts:
                    await asyncio.sleep(0.001)
            for wanted in answers:
                assert await read_answer(reader) == wanted
            expected += answers
        assert len(running.calls.begun) == len(expected)
        assert len({call.request_id for call in running.calls.begun}) == len(expected)


async def test_a_body_that_looks_like_the_end_of_a_head_is_a_body() -> None:
    tricky = (b"\r\n\r\n" + get(b"/call/early"))[:LENGTH].ljust(LENGTH, b"\r")
    async with called() as running, caller(running.asgi) as (reader, writer):
        for _ in range(4):
            writer.write(HEAD + tricky)
            assert await read_answer(reader) == b"POST /call/take " + tricky
        assert len(running.calls.begun) == 4


async def test_what_follows_a_body_is_the_next_request_and_refused_where_it_is_none() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        for number in range(3):
            writer.write(HEAD + body(number))
            await read_answer(reader)
        writer.write(HEAD + body(7) + b"more")
        await asyncio.sleep(0.05)
        writer.write(b" and more\r\n\r\n")
        said = await everything(reader)
        answered = first_answer(said)
        assert answered.body == b"POST /call/take " + body(7)
        assert first_answer(answered.rest).status == 400
        assert len(running.calls.begun) == 4


@pytest.mark.parametrize("before", [b"\n", b"\r", b"\n\n\n", b"\r\n\r"])
@pytest.mark.parametrize("request_bytes", [HEAD + body(1), get(b"/call/known")])
async def test_what_stands_before_a_request_is_refused_though_it_came_alone(
    before: bytes, request_bytes: bytes
) -> None:
    async with called() as running:
        async with caller(running.asgi) as (reader, writer):
            for _ in range(3):
                writer.write(request_bytes)
                await read_answer(reader)
        begun = len(running.calls.begun)
        async with caller(running.asgi) as (reader, writer):
            writer.write(before)
            await asyncio.sleep(0.05)
            writer.write(request_bytes)
            refused = first_answer(await everything(reader))
        assert (refused.status, refused.rest) == (400, b"")
        assert len(running.calls.begun) == begun


async def test_empty_lines_that_came_alone_may_stand_before_a_request() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        for _ in range(3):
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
            writer.write(HEAD + body(1))
            assert await read_answer(reader) == b"POST /call/take " + body(1)


async def test_requests_wait_for_their_turn_with_their_bodies() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        for number in range(2):
            writer.write(HEAD + body(number))
            await read_answer(reader)
        writer.write(get(b"/call/wait"))
        await asyncio.sleep(0.02)
        for number in range(5, 9):
            writer.write(HEAD + body(number))
            await asyncio.sleep(0.01)
        assert len(running.calls.begun) == 3
        running.calls.go.set()
        writer.write(get(b"/call/take", CLOSE))
        assert bodies(await everything(reader)) == [
            b"GET /call/wait ",
            *(b"POST /call/take " + body(number) for number in range(5, 9)),
            b"GET /call/take ",
        ]


async def test_a_caller_who_waits_to_be_asked_is_asked_each_time() -> None:
    head = get(b"/call/take", b"Expect: 100-continue\r\nContent-Length: %d\r\n" % LENGTH, b"POST")
    async with called() as running, caller(running.asgi) as (reader, writer):
        for number in range(3):
            writer.write(head + body(number))
            assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert await read_answer(reader) == b"POST /call/take " + body(number)


async def test_chunks_are_read_each_time() -> None:
    head = get(b"/call/take", b"Transfer-Encoding: chunked\r\n", b"POST")
    async with called() as running, caller(running.asgi) as (reader, writer):
        for number in range(3):
            writer.write(head + b"2\r\n%02d\r\n0\r\n\r\n" % number)
            assert await read_answer(reader) == b"POST /call/take %02d" % number


async def test_a_body_longer_than_a_head_may_be_is_taken_too() -> None:
    head = get(b"/call/take", b"Content-Length: 40000\r\n", b"POST")
    async with called() as running, caller(running.asgi) as (reader, writer):
        for number in range(4):
            sent = bytes([48 + number]) * 40_000
            writer.write(head + sent)
            assert await read_answer(reader) == b"POST /call/take " + sent


@pytest.mark.parametrize("seed", range(3))
async def test_however_many_requests_come_at_once_all_are_answered_in_order_and_others_have_their_turn(
    seed: int,
) -> None:
    chosen = random.Random(seed)
    kinds = chosen.choices([0, 1, 2], k=500)
    chunked = get(b"/call/take", b"Transfer-Encoding: chunked\r\n", b"POST") + b"3;x\r\nabc\r\n0\r\n\r\n"
    sent = [EARLY + body(0), HEAD + body(0), chunked]
    wanted = [b"early", b"POST /call/take " + body(0), b"POST /call/take abc"]
    data = b"".join(sent[kind] for kind in kinds)
    async with called() as running, caller(running.asgi) as (reader, writer):
        writer.write(get(b"/call/early"))
        await read_answer(reader)
        (flood,) = running.server.server_state.connections
        size_bytes = chosen.randrange(20_000, len(data))
        flood.data_received(data[:size_bytes])
        assert len(running.calls.begun) <= 40
        flood.data_received(data[size_bytes:] if seed else data[size_bytes : size_bytes + 7])  # as if nothing held it
        writer.write(b"" if seed else data[size_bytes + 7 :])
        if seed == 1:
            writer.write_eof()
        async with caller(running.asgi) as (other, other_writer):
            other_writer.write(get(b"/call/early"))
            assert await read_answer(other) == b"early"
        for kind in kinds:
            assert await read_answer(reader) == wanted[kind]
        assert len(running.calls.begun) == len(kinds) + 2
