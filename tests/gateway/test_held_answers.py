"""Paid calls that come again in the same bytes, at a target whose answers have one head and every fault.

Each caller gets the answer to its own request or a 502, whatever came before on the connections.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer
from tests.gateway.same_bytes import Caller, kept, request

STEPS = 60
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 41\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
FOREIGN = HEAD + b'{"id":"%b"}' % (b"f" * 32)
KINDS = [
    *["whole"] * 4,
    "no_content",
    "not_modified",
    "followed",
    "informed",
    "informed_apart",
    "apart",
    "closed",
    "chunked",
    "garbage",
    "cut",
]
# What comes when the connection's next request is under way is its answer, as far as anybody can tell.
ALONE = [*KINDS, "followed_late", "followed_late", "closed_late"]


def parts(kind: str, body: bytes, *, is_head: bool) -> list[bytes]:
    """What a target writes at once, each a moment after the one before."""
    whole = HEAD + body
    told: dict[str, list[bytes]] = {
        "no_content": [b"HTTP/1.1 204 No Content\r\nx-is: 204\r\n\r\n"],
        "not_modified": [b"HTTP/1.1 304 Not Modified\r\ncontent-length: 41\r\n\r\n"],
        "followed": [whole + FOREIGN],
        "followed_late": [whole, FOREIGN],
        "informed": [HINTS + whole],
        "informed_apart": [HINTS, whole],
        "apart": [HEAD, body],
        "chunked": [CHUNKED if is_head else CHUNKED + b"29\r\n" + body + b"\r\n0\r\n\r\n"],
        "garbage": [b"no HTTP\r\n\r\n"],
        "cut": [HEAD[:-20] if is_head else whole[:-3]],
    }
    return told.get(kind, [whole])


async def tricky(received: Received, writer: Writer) -> None:
    """Answers as `X-Kind` says, with the request's id."""
    kind, is_head = received.header("x-kind") or "whole", received.method == "HEAD"
    body = b"" if is_head else b'{"id":"%b"}' % (received.header("x-request-id") or "").encode()
    first, *later = parts(kind, body, is_head=is_head)
    writer.write(first)
    await writer.drain()
    for part in later:
        await asyncio.sleep(0.01)
        writer.write(part)
        await writer.drain()
    if kind in {"closed", "cut"}:
        writer.close()
    elif kind == "closed_late":
        asyncio.get_running_loop().call_later(0.01, writer.close)


async def read(caller: Caller, method: str) -> tuple[int, dict[str, str], bytes]:
    """An answer with or without a body."""
    head = (await asyncio.wait_for(caller.reader.readuntil(b"\r\n\r\n"), 20)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    status = int(first.split(" ")[1])
    size = 0 if method == "HEAD" or status in {204, 304} else int(headers["content-length"])
    return status, headers, await asyncio.wait_for(caller.reader.readexactly(size), 20)


def check(kind: str, method: str, answer: tuple[int, dict[str, str], bytes]) -> None:
    status, headers, body = answer
    wanted = {"no_content": 204, "not_modified": 304, "garbage": 502, "cut": 502}.get(kind, 200)
    assert status == wanted, (kind, answer)
    assert headers["x-credits-remaining"]
    if status == 200 and method != "HEAD":
        assert body == b'{"id":"%b"}' % headers["x-request-id"].encode(), (kind, answer)


@pytest.mark.parametrize("callers", [1, 4])
async def test_each_caller_gets_the_answer_to_its_own_request(market: Market, callers: int) -> None:
    market.target.answer = tricky
    gate = await market.gate(credits=callers * STEPS + 1, method="GET,HEAD")
    kinds = KINDS if callers > 1 else ALONE
    payment, bought = await market.buy(gate)
    assert bought.status == 200
    left: Counter[int] = Counter()

    async def call(number: int) -> None:
        dice = random.Random(callers * 100 + number)
        async with kept(gate) as caller:
            for _ in range(STEPS):
                kind, method = dice.choice(kinds), dice.choice(["GET", "GET", "HEAD"])
                caller.writer.write(request(gate, method, f"X-Kind: {kind}\r\nX-Payment: {payment}\r\n"))
                answer = await read(caller, method)
                check(kind, method, answer)
                left[int(answer[1]["x-credits-remaining"])] += 1
                if kind.endswith("_late"):
                    await asyncio.sleep(0.1)

    await asyncio.gather(*(call(number) for number in range(callers)))
    assert left == Counter(range(callers * STEPS))  # one credit each


@pytest.mark.parametrize("is_one_write", [True, False])
async def test_calls_sent_ahead_are_answered_in_their_order(market: Market, is_one_write: bool) -> None:  # noqa: FBT001
    market.target.answer = tricky
    gate = await market.gate(credits=100)
    payment, _ = await market.buy(gate)
    data = request(gate, "GET", f"X-Payment: {payment}\r\n")
    async with kept(gate) as caller:
        for _ in range(4):
            for part in [data * 12] if is_one_write else [data] * 12:
                caller.writer.write(part)
                if not is_one_write:
                    await asyncio.sleep(0.001)
            answers = [await read(caller, "GET") for _ in range(12)]
            for answer in answers:
                check("whole", "GET", answer)
            left = [int(headers["x-credits-remaining"]) for _, headers, _ in answers]
            assert left == list(range(left[0], left[0] - 12, -1))
        assert left[-1] == 100 - 1 - 48


async def test_a_caller_who_sends_no_more_gets_its_answer_and_one_who_left_poisons_no_connection(
    market: Market,
) -> None:
    reached = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(received: Received, writer: Writer) -> None:
        reached.set()
        await go_on.wait()
        await tricky(received, writer)

    gate = await market.gate(credits=20)
    payment, _ = await market.buy(gate)
    market.target.answer = tricky
    data = request(gate, "GET", f"X-Payment: {payment}\r\n")

    async def warm(caller: Caller, left: int) -> None:
        for remaining in (left, left - 1):
            caller.writer.write(data)
            answer = await read(caller, "GET")
            check("whole", "GET", answer)
            assert answer[1]["x-credits-remaining"] == str(remaining)

    async with kept(gate) as caller:
        await warm(caller, 18)
        market.target.answer = slow
        caller.writer.write(data)
        caller.writer.write_eof()
        await asyncio.wait_for(reached.wait(), 10)
        go_on.set()
        status, headers, body = await read_past_question(caller)
        assert (status, headers["x-credits-remaining"]) == (200, "16")
        assert headers["x-request-id"].encode() in body
        assert await asyncio.wait_for(caller.reader.read(), 10) == b""

    reached.clear()
    go_on.clear()
    async with kept(gate) as caller:
        caller.writer.write(data)
        await asyncio.wait_for(reached.wait(), 10)
        caller.writer.transport.abort()
    go_on.set()
    market.target.answer = tricky
    async with kept(gate) as caller:
        await warm(caller, 14)


async def read_past_question(caller: Caller) -> tuple[int, dict[str, str], Any]:
    """The answer behind a 100 that asks a silent caller whether it is there."""
    first = await asyncio.wait_for(caller.reader.readuntil(b"\r\n"), 20)
    if first.startswith(b"HTTP/1.1 100"):
        await caller.reader.readuntil(b"\r\n")
        first = await asyncio.wait_for(caller.reader.readuntil(b"\r\n"), 20)
    rest = (await caller.reader.readuntil(b"\r\n\r\n")).decode()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest.split("\r\n"))}
    return int(first.split(b" ")[1]), headers, await caller.reader.readexactly(int(headers["content-length"]))
