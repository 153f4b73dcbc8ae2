"""Whatever a target does, the caller gets a whole answer or the right code (F16, A-42)."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct

import pytest

from tests.edge.forwarded import ForwardRequest, forward
from tests.edge.targets import OK, Behaviour, Connection, answers, forwarder, sized, target
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.edge.target.relay import ForwardLimits

pytestmark = pytest.mark.asyncio

LIMIT_BYTES = 200_000
IMPATIENT = ForwardLimits(request_seconds=2, response_seconds=0.4, response_size_bytes=LIMIT_BYTES)
PATIENT = ForwardLimits(request_seconds=20, response_seconds=20, response_size_bytes=LIMIT_BYTES)
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(bytes(20_000_000))


async def silent(connection: Connection) -> None:
    await connection.request()
    await connection.wait_closed()


async def deaf(connection: Connection) -> None:
    await connection.wait_closed()


async def closes_at_once(connection: Connection) -> None:
    connection.writer.close()


async def resets_after_the_request(connection: Connection) -> None:
    await connection.request()
    raw = connection.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.reset()


async def half_closes_without_a_word(connection: Connection) -> None:
    await connection.request()
    connection.writer.write_eof()
    await connection.wait_closed()


async def half_closes_after_its_answer(connection: Connection) -> None:
    await connection.request()
    await connection.send(sized(b"done"))
    connection.writer.write_eof()
    await connection.wait_closed()


def drips(whole: bytes) -> Behaviour:
    async def behave(connection: Connection) -> None:
        await connection.request()
        for position in range(len(whole)):
            await connection.send(whole[position : position + 1])
            await asyncio.sleep(0.02)
        await connection.wait_closed()

    return behave


def floods(first: bytes, part: bytes) -> Behaviour:
    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.send(first)
        while not connection.writer.is_closing():
            await connection.send(part * 100)

    return behave


def byte_by_byte(whole: bytes) -> Behaviour:
    async def behave(connection: Connection) -> None:
        await connection.request()
        connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(whole)):
            await connection.send(whole[position : position + 1])
            await asyncio.sleep(0)
        await connection.wait_closed()

    return behave


INVALID, TOO_LARGE = Code.UPSTREAM_INVALID, Code.UPSTREAM_TOO_LARGE
TIMEOUT, UNREACHABLE = Code.UPSTREAM_TIMEOUT, Code.UPSTREAM_UNREACHABLE

REFUSED: dict[str, tuple[Behaviour, Code]] = {
    "is silent": (silent, TIMEOUT),
    "reads nothing": (deaf, TIMEOUT),
    "sends half a head": (answers(OK + b"Content-Le"), TIMEOUT),
    "drips its head": (drips(OK + b"X: " + b"y" * 500), TIMEOUT),
    "drips its body": (drips(sized(b"x" * 500)), TIMEOUT),
    "drips its chunks": (drips(CHUNKED + b"1\r\nx\r\n" * 100), TIMEOUT),
    "sends less than its length": (answers(OK + b"Content-Length: 10\r\n\r\nhello"), TIMEOUT),
    "sends no last chunk": (answers(CHUNKED + b"5\r\nhello\r\n"), TIMEOUT),
    "never ends trickling 1xx": (drips(b"HTTP/1.1 103 E\r\n\r\n"), TIMEOUT),
    "closes at once": (closes_at_once, UNREACHABLE),
    "closes without a word": (answers(wait=False), UNREACHABLE),
    "resets": (resets_after_the_request, UNREACHABLE),
    "half-closes without a word": (half_closes_without_a_word, UNREACHABLE),
    "closes in the status line": (answers(b"HTTP/1.1 2", wait=False), INVALID),
    "closes in the head": (answers(OK + b"Content-Length: 5\r\n", wait=False), INVALID),
    "closes in the body": (answers(OK + b"Content-Length: 10\r\n\r\nhello", wait=False), INVALID),
    "closes in a chunk": (answers(CHUNKED + b"a\r\nhello", wait=False), INVALID),
    "closes before the last chunk": (answers(CHUNKED + b"5\r\nhello\r\n", wait=False), INVALID),
    "closes after 100": (answers(b"HTTP/1.1 100 Continue\r\n\r\n", wait=False), INVALID),
    "speaks HTTP/0.9": (answers(b"<html>hello</html>", wait=False), INVALID),
    "says HTTP/0.9": (answers(b"HTTP/0.9 200 OK\r\n\r\nhello", wait=False), INVALID),
    "says HTTP/2": (answers(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "says HTTP/1.2": (answers(b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "speaks h2": (answers(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"), INVALID),
    "speaks TLS": (answers(b"\x15\x03\x01\x00\x02\x02\x16"), INVALID),
    "speaks SSH": (answers(b"SSH-2.0-OpenSSH_9.2\r\n"), INVALID),
    "has no status": (answers(b"HTTP/1.1 \r\n\r\n"), INVALID),
    "has a status of two digits": (answers(b"HTTP/1.1 99 OK\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "has status 000": (answers(b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "has status 999": (answers(b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "has a status of four digits": (answers(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "ends lines with a bare line feed": (answers(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi"), INVALID),
    "ends a header with a bare line feed": (answers(OK + b"A: b\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "has a bare carriage return": (answers(OK + b"A: b\rc\r\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "folds a header": (answers(OK + b"A: b\r\n c\r\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "has a NUL in a header": (answers(OK + b"A: b\x00c\r\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "has a NUL in a name": (answers(OK + b"A\x00: b\r\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "has a space before the colon": (answers(OK + b"Content-Length : 2\r\n\r\nhi"), INVALID),
    "has a header without a name": (answers(OK + b": b\r\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "has a header without a colon": (answers(OK + b"hello\r\nContent-Length: 2\r\n\r\nhi"), INVALID),
    "sends both lengths": (answers(OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi"), INVALID),
    "sends both lengths, turned": (
        answers(OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
        INVALID,
    ),
    "sends two lengths": (answers(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!"), INVALID),
    "sends its length as a list": (answers(OK + b"Content-Length: 2, 2\r\n\r\nhi"), INVALID),
    "sends a negative length": (answers(OK + b"Content-Length: -2\r\n\r\nhi"), INVALID),
    "sends a length with a sign": (answers(OK + b"Content-Length: +2\r\n\r\nhi"), INVALID),
    "sends a hexadecimal length": (answers(OK + b"Content-Length: 0x2\r\n\r\nhi"), INVALID),
    "sends a length beyond 64 bits": (answers(OK + b"Content-Length: 99999999999999999999\r\n\r\nhi"), INVALID),
    "sends an underscored length alone": (
        answers(OK + b"Content_Length: 2\r\n\r\nhi and more", wait=False),
        INVALID,
    ),
    "sends an underscored encoding": (
        answers(OK + b"Transfer_Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", wait=False),
        INVALID,
    ),
    "sends an underscored second length": (
        answers(OK + b"Content-Length: 2\r\nContent_Length: 3\r\n\r\nhi"),
        INVALID,
    ),
    "sends a broken chunk size": (answers(CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n"), INVALID),
    "sends a negative chunk": (answers(CHUNKED + b"-1\r\nhi\r\n0\r\n\r\n"), INVALID),
    "sends a chunk beyond 64 bits": (answers(CHUNKED + b"fffffffffffffffff\r\nhi"), INVALID),
    "sends a chunk longer than it said": (answers(CHUNKED + b"1\r\nhi\r\n0\r\n\r\n"), INVALID),
    "ends chunks with a bare line feed": (answers(CHUNKED + b"2\nhi\n0\n\n"), INVALID),
    "encodes the transfer": (answers(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), INVALID),
    "chunks twice": (
        answers(OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        INVALID,
    ),
    "chunks in HTTP/1.0": (
        answers(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", wait=False),
        INVALID,
    ),
    "switches protocols": (
        answers(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x05hello"),
        INVALID,
    ),
    "sends 101 without an upgrade": (answers(b"HTTP/1.1 101 S\r\n\r\nhello"), INVALID),
    "gives 1xx a body": (answers(b"HTTP/1.1 103 E\r\nContent-Length: 5\r\n\r\nhello" + sized(b"x")), INVALID),
    "floods with 1xx": (answers(b"HTTP/1.1 100 C\r\n\r\n" * 11 + sized(b"x")), INVALID),
    "floods with 1xx for ever": (floods(b"", b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n"), INVALID),
    "has a header of 70 KiB": (answers(OK + b"A: " + b"b" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n"), INVALID),
    "has 10,000 headers": (answers(OK + b"A: bcd\r\n" * 10_000 + b"Content-Length: 0\r\n\r\n"), INVALID),
    "has 300 headers": (answers(OK + b"A: b\r\n" * 300 + b"Content-Length: 0\r\n\r\n"), INVALID),
    "has an endless header": (floods(OK + b"A: ", b"b" * 1000), INVALID),
    "has endless headers": (floods(OK, b"A: b\r\n" * 100), INVALID),
    "has an endless reason": (floods(b"HTTP/1.1 200 ", b"b" * 1000), INVALID),
    "has an endless chunk extension": (floods(CHUNKED + b"1;", b"b" * 1000), INVALID),
    "has endless trailers": (floods(CHUNKED + b"1\r\nx\r\n0\r\n", b"A: b\r\n" * 100), INVALID),
    "has an endless trailer": (floods(CHUNKED + b"1\r\nx\r\n0\r\nA: ", b"b" * 1000), INVALID),
    "announces too much": (answers(OK + b"Content-Length: %d\r\n\r\n" % (LIMIT_BYTES + 1)), TOO_LARGE),
    "announces a terabyte": (answers(OK + b"Content-Length: 1099511627776\r\n\r\n"), TOO_LARGE),
    "sends one byte too many in chunks": (
        answers(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT_BYTES + 1, b"x" * (LIMIT_BYTES + 1))),
        TOO_LARGE,
    ),
    "sends one byte too many until it closes": (
        answers(OK + b"\r\n" + b"x" * (LIMIT_BYTES + 1), wait=False),
        TOO_LARGE,
    ),
    "chunks for ever": (floods(CHUNKED, b"3e8\r\n" + b"x" * 1000 + b"\r\n"), TOO_LARGE),
    "sends for ever": (floods(OK + b"\r\n", b"x" * 1000), TOO_LARGE),
}


def limits_of(code: Code) -> ForwardLimits:
    """What is refused for what it says is so however late it comes."""
    return IMPATIENT if code is TIMEOUT else PATIENT


@pytest.mark.parametrize("name", REFUSED)
async def test_a_target_that_breaks_the_rules_is_refused_with_its_code(name: str) -> None:
    behave, code = REFUSED[name]
    async with target(behave) as hostile, forwarder() as edge:
        with pytest.raises(ApiError) as refusal:
            await forward(edge, ForwardRequest(hostile.at(), "GET", []), b"", limits=limits_of(code))
        assert (refusal.value.code, refusal.value.status) == (code, 502)
        assert len(hostile.heads) <= 1
        # Nothing of it is left: no connection open, none kept for the next caller.
        await asyncio.wait_for(hostile.lost.wait(), 20)
        assert edge.pool.idle_count == 0
        assert edge.pool.open_count == 0


ANSWERED: dict[str, tuple[Behaviour, str, int, bytes]] = {
    "answers": (answers(sized(b"hello")), "GET", 200, b"hello"),
    "answers byte by byte": (byte_by_byte(CHUNKED + b"5;a=b\r\nhello\r\n0\r\nT: v\r\n\r\n"), "GET", 200, b"hello"),
    "answers in chunks": (answers(CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"), "GET", 200, b"hello"),
    "ends with the connection": (answers(OK + b"\r\nhello", wait=False), "GET", 200, b"hello"),
    "speaks HTTP/1.0": (answers(b"HTTP/1.0 200 OK\r\n\r\nhello", wait=False), "GET", 200, b"hello"),
    "says more than its length": (answers(sized(b"hello") + b" and more"), "GET", 200, b"hello"),
    "says a second answer": (answers(sized(b"hello") + sized(b"smuggled")), "GET", 200, b"hello"),
    "says more after close": (answers(sized(b"hello", b"Connection: close") + b"more"), "GET", 200, b"hello"),
    "sends 1xx first": (
        answers(b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\n" + sized(b"x")),
        "GET",
        200,
        b"x",
    ),
    **{
        f"sends 103 with {line.decode()}": (
            answers(b"HTTP/1.1 103 E\r\nLink: x\r\n%b\r\n\r\n" % line + sized(b"x")),
            "GET",
            200,
            b"x",
        )
        for line in (
            b"Connection: close",
            b"Transfer-Encoding: chunked",
            b"Content-Length: 11",
            b"Content_Length: 11",
            b"Upgrade: h2c",
            b"Content-Length: 1\r\nTransfer-Encoding: gzip",
        )
    },
    "sends 1xx byte by byte": (
        byte_by_byte(b"HTTP/1.1 103 E\r\nContent-Length: 3\r\n\r\nHTTP/1.0 102 P\r\n\r\n" + sized(b"x")),
        "GET",
        200,
        b"x",
    ),
    "sends ten 1xx": (answers(b"HTTP/1.1 100 C\r\n\r\n" * 10 + sized(b"x")), "GET", 200, b"x"),
    "redirects": (
        answers(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"),
        "GET",
        302,
        b"",
    ),
    "fails": (answers(b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops"), "GET", 500, b"oops"),
    "has no reason": (answers(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi"), "GET", 200, b"hi"),
    "gives HEAD a body": (answers(sized(b"hello")), "HEAD", 200, b""),
    "gives HEAD a body in chunks": (answers(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"), "HEAD", 200, b""),
    "gives HEAD a huge length": (answers(OK + b"Content-Length: 1099511627776\r\n\r\n"), "HEAD", 200, b""),
    "gives 204 a body": (answers(b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello"), "GET", 204, b""),
    "gives 304 a length": (answers(b"HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n"), "GET", 304, b""),
    "half-closes after its answer": (half_closes_after_its_answer, "GET", 200, b"done"),
    "fills the limit": (answers(sized(b"x" * LIMIT_BYTES)), "GET", 200, b"x" * LIMIT_BYTES),
    "compresses": (answers(sized(BOMB, b"Content-Encoding: gzip")), "GET", 200, BOMB),
    "has 60 KiB of headers": (answers(sized(b"x", b"A: " + b"b" * 60_000)), "GET", 200, b"x"),
}


@pytest.mark.parametrize("name", ANSWERED)
async def test_an_odd_but_clear_answer_comes_through(name: str) -> None:
    behave, method, status, body = ANSWERED[name]
    async with target(behave) as odd, forwarder() as edge:
        response = await forward(edge, ForwardRequest(odd.at(), method, []), b"", limits=PATIENT)
        assert (response.status, response.body) == (status, body)
        headers = dict(response.headers)
        if status in (204, 304):
            assert b"content-length" not in headers
        elif method != "HEAD":
            assert headers[b"content-length"] == b"%d" % len(body)
        assert b"transfer-encoding" not in headers


async def test_there_are_more_than_25_behaviours() -> None:
    assert len(REFUSED) + len(ANSWERED) >= 80


@pytest.mark.parametrize(
    "poison",
    [
        sized(b"hello") + sized(b"smuggled"),
        sized(b"hello") + b"HTTP/1.1 200 OK\r\n",
        sized(b"hello") + b"junk",
    ],
)
async def test_what_a_target_says_unasked_is_nobody_s_answer(poison: bytes) -> None:
    calls = 0

    async def behave(connection: Connection) -> None:
        nonlocal calls
        calls += 1
        await connection.request()
        await connection.send(poison if calls == 1 else sized(b"second"))
        await connection.wait_closed()

    async with target(behave) as odd, forwarder() as edge:
        first = await forward(edge, ForwardRequest(odd.at(), "GET", []), b"")
        second = await forward(edge, ForwardRequest(odd.at(), "GET", []), b"")
        assert (first.body, second.body, odd.connections) == (b"hello", b"second", 2)


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "first", "connections"),
    [
        ("GET", CHUNKED + b"5\r\nhello\r\n0\r\nA: b\r\n\r\n", 1),
        ("GET", CHUNKED + b"5\r\nhello\r\n0\r\nConnection: close\r\n\r\n", 2),
        ("GET", CHUNKED + b"5\r\nhello\r\n0\r\nProxy-Connection: close\r\n\r\n", 2),
        ("HEAD", OK + b"Content-Length: 5\r\n\r\n", 1),
        ("HEAD", CHUNKED, 2),
        ("HEAD", CHUNKED + b"5\r\n", 2),
        ("HEAD", CHUNKED + b"0\r\nA", 2),
    ],
)
async def test_a_connection_of_which_the_parser_would_read_no_more_carries_no_further_exchange(
    method: str, first: bytes, connections: int
) -> None:
    calls = 0

    async def behave(connection: Connection) -> None:
        nonlocal calls
        while True:
            await connection.request()
            calls += 1
            await connection.send(first if calls == 1 else sized(b"second"))

    async with target(behave) as odd, forwarder() as edge:
        assert (await forward(edge, ForwardRequest(odd.at(), method, []), b"")).status == 200
        second = await forward(edge, ForwardRequest(odd.at(), "GET", []), b"")
        assert (second.body, odd.connections) == (b"second", connections)


async def test_a_body_to_head_that_comes_late_is_nobody_s_answer() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK + b"Content-Length: 60\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(sized(b"smuggled"))
        await connection.wait_closed()

    async with target(behave) as odd, forwarder() as edge:
        head = await forward(edge, ForwardRequest(odd.at(), "HEAD", []), b"")
        assert (head.status, head.body) == (200, b"")
        assert (b"content-length", b"60") in head.headers
        await asyncio.wait_for(odd.lost.wait(), 20)
        assert edge.pool.open_count == 0


@pytest.mark.parametrize("shape", ["length", "chunked", "close"])
async def test_exactly_10_485_760_bytes_pass_and_one_more_fails(shape: str) -> None:
    def whole(size: int) -> bytes:
        body = bytes(size)
        if shape == "length":
            return sized(body)
        return CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if shape == "chunked" else OK + b"\r\n" + body

    async with forwarder() as edge:
        async with target(answers(whole(10_485_760), wait=False)) as fitting:
            response = await forward(edge, ForwardRequest(fitting.at(), "GET", []), b"")
            assert not isinstance(response.body, bytes)
            assert sum([len(part) async for part in response.body]) == 10_485_760
            assert (b"content-length", b"10485760") in response.headers
        async with target(answers(whole(10_485_761), wait=False)) as exceeding:
            with pytest.raises(ApiError) as refusal:
                await forward(edge, ForwardRequest(exceeding.at(), "GET", []), b"")
            assert refusal.value.code is Code.UPSTREAM_TOO_LARGE
            assert refusal.value.details == {"sizeBytes": 10_485_761, "limitBytes": 10_485_760} or shape != "length"
