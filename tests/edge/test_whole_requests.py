"""A head that comes in one piece is read by another parser than one that comes in two: nobody can tell which."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import pytest

from tests.edge.callers import Listening, caller, everything, first_answer, listener
from tests.edge.odd_heads import odd_head
from tests.edge.test_calls import CLOSE, get
from tollkeeper.core.http.heads import RequestHead, passed_on
from tollkeeper.core.limits import HEADERS_MAX, REQUEST_HEAD_SIZE_BYTES
from tollkeeper.edge.server.call import AnsweredAtOnce, AnsweredRequest, InboundCall

HEADS = 400
TOGETHER = 8
TARGETS = [
    *[b"/call", b"/once", b"/once?a=b", b"/call/a"] * 8,
    *(b"/call?a=%zz", b"/once?a=%zz", b"/asgi", b"*", b"/"),
    *(b"http://gw.example/call", b"//call", b"/call/%2", b"/call#a", b"/call\\a", b"/call\x00", b"/call\x7f", b"/\xff"),
    *(b"", b"call", b"/call a", b"/call/" + b"a" * 9_000, b"/once/../call", b"/ONCE"),
]
TOO_LARGE_OR_WRONG = [(400, "INVALID_PARAMETER"), (431, "HEADERS_TOO_LARGE")]
NEXT = get(b"/call/next", CLOSE)


@dataclass
class Once:
    """A request that was answered at once."""

    answer: bytes
    head: RequestHead
    method: str
    request_id: str = "at-once"
    started_ns: int = 0
    status: int = 200
    duration_us: int = 0


@dataclass
class Told:
    """A handler that answers with all that it was told of a request, some of them at once."""

    at_once_count: int = 0
    ends: list[int] = field(default_factory=list)

    def place_of(self, target: bytes) -> bytes | None:
        return target if target.startswith((b"/call", b"/once")) else None

    def at_once(self, head: RequestHead, place: bytes, peer: str) -> AnsweredAtOnce | None:
        if head.shape.has_proof or head.method == "HEAD" or not place.startswith(b"/once"):
            return None
        self.at_once_count += 1
        body = told(head, peer)
        return Once(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body, head, head.method)

    def begin(self, call: InboundCall) -> None:
        call.answer(200, b"", told(call.head, call.peer))

    def ended(self, call: AnsweredRequest) -> None:
        self.ends.append(call.status)


def told(head: RequestHead, peer: str) -> bytes:
    """All that a handler and a target learn of a head."""
    lines = passed_on(head.shape, head.values, head.header.get(b"connection", b""), frozenset({b"x-a"}))
    facts = (head, head.header, head.headers, head.content_length, head.shape.has_proof, lines, peer)
    return repr(facts).encode()


async def answers(listening: Listening, parts: list[bytes]) -> list[object]:
    """What is answered to a head that is sent in these parts, and to a request behind it if any is read."""
    async with caller(listening) as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.002)  # most are read one by one; no answer hangs on it
        said = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            said = await asyncio.wait_for(reader.read(1), 0.2)  # what has no answer waits for more
        with contextlib.suppress(ConnectionError):
            writer.write(NEXT)
            writer.write_eof()
        said += await asyncio.wait_for(everything(reader), 60)
    return read(said)


def read(said: bytes) -> list[object]:
    """Status, and code or body, of each answer."""
    found: list[object] = []
    while said:
        head, _, rest = said.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100 "):
            pass  # it is asked for a body, or whether it is there at all
        elif not rest or rest.startswith(b"HTTP/1.1 "):  # to HEAD
            found.append(head.split(b" ")[1])
        else:
            answer = first_answer(said)
            rest = answer.rest
            found.append((answer.status, answer.error["code"] if answer.status >= 400 else answer.body))
        said = rest
    return found


def judged(head: bytes, found: list[object]) -> list[object]:
    """Of a head that is too large, and wrong besides, it hangs on the cut which of both is found first."""
    is_too_large = len(head) > REQUEST_HEAD_SIZE_BYTES or head.count(b"\n") > HEADERS_MAX
    return ["refused"] if is_too_large and found[0] in TOO_LARGE_OR_WRONG and len(found) == 1 else found


@pytest.mark.parametrize("seed", range(3))
async def test_a_head_is_answered_alike_in_one_piece_and_in_two(seed: int) -> None:
    """Also what handlers and targets learn of it, and whether the connection is kept."""
    chosen = random.Random(seed)
    calls = Told()
    async with listener(calls=calls) as listening:
        heads = [odd_head(chosen, TARGETS) for _ in range(HEADS)]
        for first in range(0, HEADS, TOGETHER):
            several = heads[first : first + TOGETHER]
            cuts = [chosen.randrange(1, len(head)) for head in several]
            cut = [[head[:at], head[at:]] for head, at in zip(several, cuts, strict=True)]
            asked = [answers(listening, parts) for parts in (*([head] for head in several), *cut)]
            said = await asyncio.gather(*asked)
            for head, at, whole, in_two in zip(several, cuts, said[: len(several)], said[len(several) :], strict=True):
                assert judged(head, whole) == judged(head, in_two), (head[:2000], at, whole, in_two)
    assert calls.at_once_count > HEADS / 50
