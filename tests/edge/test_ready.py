"""Answers that are given without a call, to requests whose very bytes came before."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.edge.called import called
from tests.edge.callers import Answer, caller, everything, first_answer
from tests.edge.test_calls import until
from tollkeeper.edge.call import InboundCall

HOST = b"Host: x\r\n"
READY = b"GET /call/ready HTTP/1.1\r\n%b\r\n" % HOST


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> Answer:
    writer.write(data)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = int(first_answer(head).headers[b"content-length"])
    return first_answer(head + await reader.readexactly(length))


async def test_a_request_that_came_before_is_answered_by_the_same_head_and_a_new_id_date_and_body() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        first = await ask(reader, writer, READY)
        before_ms = time.time_ns() // 1_000_000
        answers = [await ask(reader, writer, READY) for _ in range(1500)]
        after_ms = time.time_ns() // 1_000_000
        assert len(running.calls.begun) == 1
        for answer in answers:
            assert answer.status == 200
            assert list(answer.headers) == list(first.headers)
            made_ms = int(answer.body.removeprefix(b"ready at "))
            assert before_ms <= made_ms <= after_ms
            assert int(answer.headers[b"x-request-id"][:12], 16) == made_ms
        assert len({answer.headers[b"x-request-id"] for answer in [first, *answers]}) == 1501


async def test_on_another_connection_too_and_as_its_first_request() -> None:
    async with called() as running:
        async with caller(running.asgi) as (reader, writer):
            await ask(reader, writer, READY)
        async with caller(running.asgi) as (reader, writer):
            assert (await ask(reader, writer, READY)).body.startswith(b"ready at ")
            assert (await ask(reader, writer, READY.replace(b"ready", b"early"))).body == b"early"
            assert (await ask(reader, writer, READY)).body.startswith(b"ready at ")
        assert len(running.calls.begun) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"GET /call/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /call/ready HTTP/1.0\r\nHost: x\r\n\r\n",
        b"POST /call/ready HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
        b"\r\n" + READY + READY,
    ],
)
async def test_what_ends_its_connection_has_a_body_or_company_is_a_call_each_time(data: bytes) -> None:
    async with called() as running:
        for _ in range(3):
            async with caller(running.asgi) as (reader, writer):
                writer.write(data)
                writer.write_eof()
                said = await everything(reader)
                assert b"ready at" not in said
        assert len(running.calls.begun) == 3 * data.count(b"/call/ready")


async def test_it_waits_behind_a_request_that_is_not_answered_yet() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        await ask(reader, writer, READY)
        writer.write(READY.replace(b"ready", b"wait"))
        await asyncio.sleep(0.05)
        writer.write(READY)
        await asyncio.sleep(0.05)
        assert len(running.calls.begun) == 2
        running.calls.go.set()
        first = first_answer(await asyncio.wait_for(reader.readuntil(b"begun"), 10))
        assert first.body == b"GET /call/wait "
        assert first_answer(first.rest).body == b"begun"


async def test_bytes_of_a_body_that_look_like_it_are_a_body() -> None:
    async with called() as running, caller(running.asgi) as (reader, writer):
        await ask(reader, writer, READY)
        writer.write(b"POST /call/take HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, len(READY)))
        await asyncio.sleep(0.05)
        assert (await ask(reader, writer, READY)).body == b"POST /call/take " + READY


async def test_a_caller_who_sends_no_more_gets_it() -> None:
    async with called() as running:
        async with caller(running.asgi) as (reader, writer):
            await ask(reader, writer, READY)
        async with caller(running.asgi) as (reader, writer):
            writer.write(READY)
            writer.write_eof()
            assert first_answer(await everything(reader)).body.startswith(b"ready at ")


async def test_a_stopping_server_says_that_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.edge.inbound._LAST_REQUEST_SECONDS", 2)  # else the request may come too late
    async with called() as running, caller(running.asgi) as (reader, writer):
        await ask(reader, writer, READY)
        stopping = asyncio.ensure_future(running.stop())
        await until(lambda: not running.server.servers[0].is_serving())  # uvicorn looks every tenth of a second
        answer = await ask(reader, writer, READY)
        assert (answer.body, answer.headers[b"connection"]) == (b"begun", b"close")
        await stopping


async def test_a_handler_that_fails_at_it_gets_the_request_as_a_call() -> None:
    broken = READY.replace(b"ready", b"ready_broken")
    async with called() as running, caller(running.asgi) as (reader, writer):
        for _ in range(3):
            assert (await ask(reader, writer, broken)).body == b"begun"
        assert running.calls.asked == ["127.0.0.1"] * 2
        assert all(isinstance(call, InboundCall) for call in running.calls.begun)
