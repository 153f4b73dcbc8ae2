"""Where a request ends, however what came was cut: no piece holds the end of one and the beginning of the next."""

from __future__ import annotations

import asyncio
import random

from tests.edge.callers import Listening, caller, everything, listener
from tests.edge.test_calls import until
from tests.edge.test_inbound import get
from tollkeeper.edge.server.request_pieces import Pieces

PARTS = [b"\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"GET / HTTP/1.1\r\n", b"x" * 300, b"5\r\n", b"\r", b"\n", b"0"]
LAST_LINES = [b"0\r\n\r\n", b"000;a=b\r\n\r\n", b"0\r\nA: 5\r\nB: 6\r\n\r\n", b"0\r\nA: x\r\n\r\n"]
EXTENSIONS = [b"", b"", b";a", b';a="0"', b";" + b"x" * 300]
END = get(b"/end", b"Connection: close")


def chunked(rolls: random.Random) -> tuple[bytes, bytes]:
    """A body, and how it comes."""
    chunks = [b"".join(rolls.choices(PARTS, k=rolls.randrange(1, 6))) for _ in range(rolls.randrange(6))]
    sizes = [b"%0*x%b" % (rolls.randrange(1, 9), len(chunk), rolls.choice(EXTENSIONS)) for chunk in chunks]
    framed = [b"%b\r\n%b\r\n" % pair for pair in zip(sizes, chunks, strict=True)]
    return b"".join(chunks), b"".join([*framed, rolls.choice(LAST_LINES)])


def cut(rolls: random.Random, data: bytes) -> list[bytes]:
    parts = []
    while data:
        end = rolls.choice([1, 2, 3, 5, 40, len(data)])
        parts.append(data[:end])
        data = data[end:]
    return parts


async def seen_of(listening: Listening, parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    """What the application got of one connection, by path and body; each was answered."""
    listening.seen.clear()
    async with caller(listening) as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        said = await asyncio.wait_for(everything(reader), 5)
    assert said.count(b"HTTP/1.1 200 ") == len(listening.seen), said
    return [(seen.path, seen.body) for seen in listening.seen]


async def test_bodies_in_chunks_end_where_they_end_however_they_are_cut() -> None:
    rolls = random.Random(7)
    async with listener() as listening:
        for _ in range(60):
            bodies = [chunked(rolls) for _ in range(3)]
            wanted = [(b"/%d" % number, body) for number, (body, _) in enumerate(bodies)]
            heads = [get(b"/%d" % number, b"Transfer-Encoding: chunked", method=b"POST") for number in range(3)]
            data = b"".join([head + framed for head, (_, framed) in zip(heads, bodies, strict=True)])
            assert await seen_of(listening, cut(rolls, data + END)) == [*wanted, (b"/end", b"")]


def test_a_chunk_full_of_empty_lines_is_one_piece() -> None:
    pieces = Pieces()
    pieces.begin_body(None)
    full, last = b"10000\r\n" + b"\r\n" * 0x8000 + b"\r\n", b"0\r\n\r\n"
    tiny = b"4\r\n\r\n\r\n\r\n" * 1000
    assert pieces.cut(full[:1000]) == 1000
    assert pieces.cut(full[1000:] + tiny + last + END) == len(full) - 1000 + len(tiny)
    assert pieces.cut(last + END) == len(last)


def test_a_chunk_is_followed_however_its_size_is_written() -> None:
    full = b"\r\n" * 0x8000 + b"\r\n"
    for size in (b"10000;" + b"x" * 300, b"0" * 300 + b"10000", b"0" * 300 + b"10000;" + b"x" * 70_000):
        for cut_at in (1, len(size) - 1, len(size), len(size) + 1, len(size) + 2):
            pieces, data = Pieces(), size + b"\r\n" + full
            pieces.begin_body(None)
            assert pieces.cut(data[:cut_at]) == cut_at
            assert pieces.cut(data[cut_at:] + b"0;a\r\n\r\n" + END) == len(data) - cut_at


def test_empty_lines_before_a_request_are_one_piece() -> None:
    for lines in (b"\r\n" * 1000, b"\n\r\n\r" * 1000):
        assert Pieces().begin(lines + END) == len(lines)


async def test_many_tiny_chunks_are_handed_on_as_one_and_others_have_their_turn() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/tiny", b"Transfer-Encoding: chunked", b"Connection: close", method=b"POST"))
        await until(lambda: listening.seen)
        (connection,) = listening.connections
        for _ in range(3):
            connection.data_received(b"1\r\na\r\n" * 2000)
            assert not connection.transport.is_reading()
            await asyncio.sleep(0.01)
            assert connection.transport.is_reading()
        writer.write(b"0\r\n\r\n")
        said = await asyncio.wait_for(everything(reader), 5)
        assert said.endswith(b" /tiny " + b"a" * 6000)
