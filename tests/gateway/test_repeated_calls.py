"""Calls on a held credit that are sent again and again: each has its own answer, receipt and end."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.gateway.market import Market
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tests.gateway.same_bytes import Caller, kept, request
from tests.gateway.test_leaving import LeftShop, shop
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.spool import MEMORY_SIZE_BYTES, SpoolRoom

CREDITS = 60
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n"
Answer = Callable[[Received, Writer], Awaitable[None]]


def paid(gate: dict[str, Any], payment: str, method: str = "GET") -> bytes:
    return request(gate, method, f"X-Payment: {payment}\r\n")


async def served(caller: Caller, data: bytes, times: int = 3) -> None:
    """So many calls."""
    for _ in range(times):
        assert (await caller.ask(data))[0] == 200


async def in_pieces(_request: Received, writer: Writer) -> None:
    for piece in (OK[:20], OK[20:], b'{"served":', b"true}"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)


async def with_a_new_head(_request: Received, writer: Writer) -> None:
    writer.write(OK[:-2] + b"x-new: yes\r\n\r\n" + b'{"served":true}')
    await writer.drain()


async def chunked(_request: Received, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nf\r\n" + b'{"served":true}' + b"\r\n0\r\n\r\n")
    await writer.drain()


async def until_closed(_request: Received, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b'{"served":true}')
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("answer", [in_pieces, with_a_new_head, chunked, until_closed])
async def test_an_answer_of_another_shape_comes_with_the_receipt_of_its_own_call(
    market: Market, answer: Answer
) -> None:
    gate = await market.gate(credits=CREDITS)
    data = paid(gate, await market.payment(gate))
    async with kept(gate) as caller:
        await served(caller, data)
        market.target.answer = answer
        for number in range(3):
            status, headers, body = await caller.ask(data)
            assert (status, body) == (200, {"served": True})
            assert headers["x-credits-remaining"] == str(CREDITS - 4 - number)
            assert headers["x-request-id"] == market.target.requests[-1].header("x-request-id")
        market.target.answer = answer_ok
        assert (await caller.ask(data))[1]["x-credits-remaining"] == str(CREDITS - 7)
    counters = await market.counters(gate, lambda found: found["calls"] == 7)
    assert (counters["calls"], counters["failures"]) == (7, 0)


@pytest.mark.parametrize(("status", "framing"), [(204, b""), (304, b""), (205, b"content-length: 0\r\n")])
async def test_an_answer_without_a_body_stays_one(market: Market, status: int, framing: bytes) -> None:
    gate = await market.gate(credits=CREDITS)
    data = paid(gate, await market.payment(gate))

    async def bare(_request: Received, writer: Writer) -> None:
        writer.write(b'HTTP/1.1 %d Bare\r\n%betag: "a"\r\n\r\n' % (status, framing))
        await writer.drain()

    async with kept(gate) as caller:
        await served(caller, data)
        market.target.answer = bare
        for number in range(3):
            caller.writer.write(data)
            head = (await asyncio.wait_for(caller.reader.readuntil(b"\r\n\r\n"), 30)).decode().lower()
            assert head.startswith(f"http/1.1 {status} ")
            assert f"x-credits-remaining: {CREDITS - 4 - number}\r\n" in head
            assert ("content-length" in head) == bool(framing)


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 502)])
async def test_a_connection_that_ended_unheard_is_another_try_where_that_is_safe(
    market: Market, method: str, status: int
) -> None:
    gate = await market.gate(credits=CREDITS, method="GET,POST")
    data = paid(gate, await market.payment(gate), method)
    ends = 0

    async def end_once(got: Received, writer: Writer) -> None:
        nonlocal ends
        ends += 1
        if ends == 1:
            writer.close()
        else:
            await answer_ok(got, writer)

    async with kept(gate) as caller:
        await served(caller, data)
        market.target.answer = end_once
        answered, headers, _ = await caller.ask(data)
        assert (answered, headers["x-credits-remaining"]) == (status, str(CREDITS - 4))
        ids = {received.header("x-request-id") for received in market.target.requests[3:]}
        assert ids == {headers["x-request-id"]}, "one call, however often it was sent"
        assert (await caller.ask(data))[1]["x-credits-remaining"] == str(CREDITS - 5)


async def test_calls_side_by_side_that_find_no_connection_open_their_own(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    data = paid(gate, await market.payment(gate))
    async with kept(gate) as first, kept(gate) as second, kept(gate) as third:
        await served(first, data)
        answers = await asyncio.gather(*(caller.ask(data) for caller in (first, second, third)))
    assert [status for status, _, _ in answers] == [200] * 3
    assert {headers["x-credits-remaining"] for _, headers, _ in answers} == {"56", "55", "54"}


async def test_requests_behind_one_that_is_answered_keep_their_turn(market: Market) -> None:
    gate = await market.gate(credits=CREDITS)
    data = paid(gate, await market.payment(gate))
    async with kept(gate) as caller:
        await served(caller, data)
        caller.writer.write(data)
        await asyncio.sleep(0)
        caller.writer.write(data + data)
        left = [(await caller.answer(data))[1]["x-credits-remaining"] for _ in range(3)]
    assert left == [str(CREDITS - 4 - number) for number in range(3)]


async def test_a_body_goes_with_its_own_call(market: Market) -> None:
    gate = await market.gate(credits=CREDITS, method="GET,POST")
    payment = await market.payment(gate)
    more = f"X-Payment: {payment}\r\nContent-Length: 8\r\n"
    async with kept(gate) as caller:
        for number in range(8):
            answer: Answer = answer_ok if number % 3 else in_pieces
            market.target.answer = answer
            status, _, _ = await caller.ask(request(gate, "POST", more) + b"%08d" % number)
            assert status == 200
    assert [received.body for received in market.target.requests] == [b"%08d" % number for number in range(8)]


async def _left_shop(there: LeftShop) -> tuple[dict[str, Any], bytes]:
    gate = await there.gate(credits=CREDITS)
    payment = await there.payment(gate)
    data = there.request(gate, X_Payment=payment)
    reader, writer = await there.connect()
    for _ in range(3):
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(15)
    writer.close()
    return gate, data


async def test_a_call_has_one_end_whenever_its_client_leaves(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async def slow(got: Received, writer: Writer) -> None:
        await asyncio.sleep(0.003)
        await answer_ok(got, writer)

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate, data = await _left_shop(there)
        target.answer = slow
        for number in range(40):
            await there.leave(data, number % 8 / 1600)
        await asyncio.sleep(0.1)
    calls, outcomes = there.calls(), there.outcomes(gate)
    assert {state for state, _ in calls} == {"DONE"}
    assert {status for _, status in calls} <= {200, 499}
    assert sum(calls.values()) == sum(outcomes.values()) <= CREDITS, "each is told to its owner once"


async def _heads_and_bodies(there: LeftShop, data: bytes, times: int) -> list[tuple[bytes, bytes]]:
    """What so many callers get for the same bytes, each on a connection of its own."""

    async def call() -> tuple[bytes, bytes]:
        reader, writer = await there.connect()
        with closing(writer):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return head, await reader.readexactly(size)

    return await asyncio.wait_for(asyncio.gather(*(call() for _ in range(times))), 30)


async def _side_by_side(there: LeftShop, data: bytes, times: int) -> list[bytes]:
    """Their statuses."""
    return [head[9:12] for head, _ in await _heads_and_bodies(there, data, times)]


def of_its_id(request_id: bytes, size_bytes: int) -> bytes:
    """So many bytes, which are the request's own."""
    own = request_id + b"\r\n\r\n"
    return (own * (size_bytes // len(own) + 1))[:size_bytes]


class Rooms(list[SpoolRoom]):
    """Where answers wait, of each gateway that is started; in so much memory."""

    memory_bytes = MEMORY_SIZE_BYTES

    def are_empty(self) -> bool:
        return not any(room.memory.held + room.disk.held for room in self)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Rooms:
    sound, made = SpoolRoom.__init__, Rooms()

    def noted(self: SpoolRoom, *arguments: Any) -> None:
        sound(self, *arguments, memory_bytes=made.memory_bytes)
        made.append(self)

    monkeypatch.setattr(SpoolRoom, "__init__", noted)
    return made


@pytest.mark.parametrize("memory_bytes", [64 * 1024 * 1024, 400_000])
async def test_a_long_answer_in_parts_is_its_callers_own_and_leaves_no_memory_taken(
    memory_bytes: int,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    rooms: Rooms,
) -> None:
    """Also where the answers that come at once are more than all of them may take in memory."""
    rooms.memory_bytes = memory_bytes
    sizes = itertools.cycle((70_000, 300, 1024 * 1024, 400_000, 1024 * 1024 + 1))

    async def in_parts(got: Received, writer: Writer) -> None:
        body = of_its_id((got.header("x-request-id") or "").encode(), next(sizes))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in (0, len(body) // 3):
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(body[at : len(body) // 3 if at == 0 else len(body)])
        await writer.drain()

    async with shop(embedded_chain.url, target, tmp_path) as there:
        _, data = await _left_shop(there)
        target.answer = in_parts
        for _ in range(5):
            for head, body in await _heads_and_bodies(there, data, 8):
                own = head.rpartition(b"x-request-id: ")[2].rstrip()
                size_bytes = int(head.partition(b"content-length: ")[2].split()[0])
                assert len(body) == size_bytes
                assert body == of_its_id(own, size_bytes)
        await until(rooms.are_empty)
    assert there.calls() == {("DONE", 200): 3 + 40}


@pytest.mark.parametrize("how", ["ends", "resets", "is late", "its caller leaves"])
async def test_a_long_answer_that_does_not_come_whole_is_no_answer(
    how: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    rooms: Rooms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half, dropped = asyncio.Event(), asyncio.Event()

    async def cut(got: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + bytes(100_000))
        await writer.drain()
        await asyncio.sleep(0.05)
        half.set()
        if how == "ends":
            writer.close()
        elif how == "resets":
            writer.transport.abort()
        else:
            await got.reader.read()
            dropped.set()

    async def whole(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + bytes(300_000))
        await writer.drain()

    if how == "is late":
        defaults = cast("dict[str, Any]", Forwarder.relay.__kwdefaults__)
        monkeypatch.setitem(defaults, "limits", replace(defaults["limits"], response_seconds=1.0))
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate, data = await _left_shop(there)
        target.answer = whole
        assert await _side_by_side(there, data, 2) == [b"200"] * 2
        target.answer = cut
        if how == "its caller leaves":
            _, writer = await there.connect()
            writer.write(data)
            await asyncio.wait_for(half.wait(), 5)
            writer.transport.abort()
            await asyncio.wait_for(dropped.wait(), 10)
        else:
            ((head, body),) = await _heads_and_bodies(there, data, 1)
            assert head.startswith(b"HTTP/1.1 502 ")
            assert b"x-credits-remaining: " in head
            assert (b"UPSTREAM_TIMEOUT" if how == "is late" else b"UPSTREAM_INVALID") in body
        await until(rooms.are_empty)
        target.answer = whole
        assert await _side_by_side(there, data, 1) == [b"200"]
    assert there.calls() == {("DONE", 200): 6, ("DONE", 499 if how == "its caller leaves" else 502): 1}
    assert sum(there.outcomes(gate).values()) == 7


async def test_calls_side_by_side_have_each_its_own_answer_and_end(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    statuses = itertools.cycle((200, 404, 201, 503))

    async def with_its_id(got: Received, writer: Writer) -> None:
        own = (got.header("x-request-id") or "").encode()
        writer.write(b"HTTP/1.1 %d Known\r\ncontent-length: %d\r\n\r\n%b" % (next(statuses), len(own), own))
        await writer.drain()

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate, data = await _left_shop(there)
        target.answer = with_its_id
        answers = [one for _ in range(4) for one in await _heads_and_bodies(there, data, 8)]
        ids = [head.rpartition(b"x-request-id: ")[2].rstrip() for head, _ in answers]
        assert ids == [body for _, body in answers]
        found = {one: head for one, (head, _) in zip(ids, answers, strict=True)}
        assert len({head.partition(b"x-credits-remaining: ")[2].split()[0] for head in found.values()}) == 32
    books = there.statuses()
    assert {one.decode(): int(head[9:12]) for one, head in found.items()}.items() <= books.items()
    assert Counter(books.values()) == {200: 3 + 8, 404: 8, 201: 8, 503: 8}
    assert sum(there.outcomes(gate).values()) == 3 + 32


async def test_a_call_of_an_older_gate_has_one_end_too_where_its_client_leaves(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    is_asked = asyncio.Event()

    async def never(got: Received, _writer: Writer) -> None:
        is_asked.set()
        await got.reader.read()

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate, data = await _left_shop(there)
        changed = {"description": "newer"}
        assert (await there.buyer.ask("PUT", f"{there.url}/api/v1/paygates/{gate['id']}", body=changed)).status == 200
        target.answer = never
        _, writer = await there.connect()
        writer.write(data)
        await asyncio.wait_for(is_asked.wait(), 10)
        writer.transport.abort()
        await asyncio.sleep(0.1)
    assert there.calls() == {("DONE", 200): 3, ("DONE", 499): 1}
    assert sum(there.outcomes(gate).values()) == 4


async def test_a_call_that_a_stop_cuts_short_has_an_end_and_its_caller_is_told(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    is_asked = asyncio.Event()

    async def never(got: Received, _writer: Writer) -> None:
        is_asked.set()
        await got.reader.read()

    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate, data = await _left_shop(there)
        target.answer = never
        reader, writer = await there.connect()
        writer.write(data)
        await asyncio.wait_for(is_asked.wait(), 10)
        waiting = asyncio.ensure_future(reader.read())
    answer = await waiting
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nx-credits-remaining: 57\r\n" in answer  # a 503 charges nothing
    writer.close()
    assert there.calls() == {("DONE", 200): 3, ("RESTORED", 503): 1}
    assert there.outcomes(gate)["failed", 503, "UNAVAILABLE"] == 1
