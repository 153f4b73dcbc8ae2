"""Bodies of known length that do not come with their head: whole and in order, however they are cut, or a failure."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.edge.targets import OK, Connection, Target, certificate, target
from tests.edge.test_connections import REQUEST, Recorder
from tollkeeper.core.api.errors import Code
from tollkeeper.edge.target.connection import TargetConnection
from tollkeeper.edge.target.pool import TargetPool

MIB = 1024 * 1024


def head(size_bytes: int, *lines: bytes) -> bytes:
    return OK + b"".join(line + b"\r\n" for line in (b"Content-Length: %d" % size_bytes, *lines)) + b"\r\n"


async def ask(connection: TargetConnection, recorder: Recorder, method: str = "GET") -> Recorder:
    connection.send(recorder, method, REQUEST)
    await asyncio.wait_for(recorder.over.wait(), 10)
    return recorder


async def connect(pool: TargetPool, there: Target) -> TargetConnection:
    """A kept connection, or a new one."""
    scheme = there.url.partition(":")[0]
    new = await pool.open(scheme, ["127.0.0.1"], there.port, "localhost")
    kept = pool.take([new.lane], pool.loop.time())
    if kept is None:
        return new
    new.abort()
    return kept


@pytest.fixture(params=["plain", "TLS"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[TargetPool, ssl.SSLContext | None]]:
    served, trusting = certificate(tmp_path, "localhost")
    pool = TargetPool(tls=trusting)
    yield pool, served if request.param == "TLS" else None
    pool.close()


def cut(data: bytes, dice: random.Random) -> list[bytes]:
    """In up to five pieces."""
    places = sorted(dice.randrange(len(data) + 1) for _ in range(dice.choice((0, 1, 2, 4))))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(4))
async def test_each_body_comes_whole_however_it_is_cut(
    place: tuple[TargetPool, ssl.SSLContext | None], seed: int
) -> None:
    dice = random.Random(seed)
    sizes = (1, 200, 65_535, 300_000, MIB, 3 * MIB)
    sent: list[bytes] = []

    async def behave(connection: Connection) -> None:
        while True:
            await connection.head()
            size_bytes = dice.choice(sizes)
            body = (dice.randbytes(999) + b"\r\n\r\n" * (size_bytes // 4))[:size_bytes].ljust(size_bytes)
            sent.append(body)
            whole = head(size_bytes) + body
            at_head = [whole[: len(head(size_bytes))], whole[len(head(size_bytes)) :]]
            for piece in dice.choice(([whole], at_head, cut(whole, dice))):
                await connection.send(piece)
                await asyncio.sleep(dice.choice((0, 0, 0.002)))

    pool, tls = place
    async with target(behave, tls) as there:
        connection = await connect(pool, there)
        for number in range(60):
            recorder = await ask(connection, Recorder())
            assert recorder.body == sent[number]
            assert (recorder.told[0], recorder.told[-1]) == ("head", "end")
            kept = pool.take([connection.lane], pool.loop.time())
            assert kept is connection, "its connection carries the next"
    assert len(sent) == 60


SIZE = 300_000
BODY = bytes(SIZE)


@pytest.mark.parametrize(
    ("pieces", "ends", "code"),
    [
        ([head(SIZE), BODY[1:]], "close", Code.UPSTREAM_INVALID),
        ([head(SIZE) + BODY[1:]], "close", Code.UPSTREAM_INVALID),
        ([head(SIZE)], "close", Code.UPSTREAM_INVALID),
        ([head(SIZE), BODY[1:]], "reset", Code.UPSTREAM_INVALID),
        ([head(SIZE), BODY + b"x"], "wait", None),
        ([head(SIZE), BODY, head(SIZE)], "wait", None),
        ([head(SIZE) + BODY + b"x"], "wait", None),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_body_that_is_cut_short_fails_and_what_stands_behind_one_is_nobodys(
    place: tuple[TargetPool, ssl.SSLContext | None],
    pieces: list[bytes],
    ends: str,
    code: Code | None,
    is_known: bool,  # noqa: FBT001 - a case
) -> None:
    pool, tls = place
    asked = 0

    async def behave(connection: Connection) -> None:
        nonlocal asked
        while True:
            await connection.head()
            asked += 1
            if asked <= is_known:
                await connection.send(head(SIZE), BODY)
                continue
            for piece in pieces:
                await connection.send(piece)
                await asyncio.sleep(0.01)
            if ends == "reset":
                connection.reset()
            if ends != "wait":
                return

    async with target(behave, tls) as there:
        connection = await connect(pool, there)
        if is_known:
            assert (await ask(connection, Recorder())).body == BODY
            assert pool.take([connection.lane], pool.loop.time()) is connection
        recorder = await ask(connection, Recorder())
        if code is None:
            assert recorder.body == BODY
            assert recorder.told[-1] == "end"
        else:
            assert recorder.failure is not None
            assert recorder.failure.code is code
            assert not recorder.failure.untouched
        await asyncio.sleep(0.05)
        assert pool.take([connection.lane], pool.loop.time()) is None


async def test_what_stands_before_a_head_is_not_taken_for_a_head() -> None:
    """The table of heads is one for all targets: what one of them says must not change how another is read."""
    pool = TargetPool()
    tricks = [
        b"\r\n\r\n" + head(500) + b"x" * 300,  # as if the empty lines were a head before 500 bytes
        b"HTTP/1.1 100 Continue\r\n\r\n" + head(500) + b"x" * 300,
        head(500)[:-2] + b"\n" + b"\r\n\r\n" + b"x" * 300,
    ]
    for trick in tricks:

        async def behave(connection: Connection, trick: bytes = trick) -> None:
            await connection.head()
            await connection.send(trick)
            await connection.wait_closed()

        async with target(behave) as there:
            connection = await connect(pool, there)
            connection.send(Recorder(), "GET", REQUEST)
            await asyncio.sleep(0.05)
            connection.abort()

    async def honest(connection: Connection) -> None:
        await connection.head()
        await connection.send(b"\r\n\r\n" + head(5) + b"hello")
        await connection.wait_closed()

    async with target(honest) as there:
        recorder = await ask(await connect(pool, there), Recorder())
        assert (recorder.told, recorder.body) == (["head", "body", "end"], b"hello"), "as the parser has it"
    pool.close()


@pytest.mark.parametrize("makes", [lambda: head(SIZE), lambda: head(SIZE, b"Connection: close")])
async def test_an_answer_to_head_has_no_body_also_where_its_head_is_known(makes: Callable[[], bytes]) -> None:
    pool = TargetPool()
    asked = 0

    async def behave(connection: Connection) -> None:
        nonlocal asked
        while True:
            await connection.head()
            asked += 1
            await connection.send(makes() if asked % 2 == 0 else makes() + BODY)

    async with target(behave) as there:
        for number in range(6):
            method = "HEAD" if number % 2 else "GET"
            recorder = await ask(await connect(pool, there), Recorder(), method)
            assert recorder.body == (b"" if number % 2 else BODY)
            assert recorder.told[-1] == "end"
    pool.close()


async def test_a_reader_who_pauses_gets_no_more_until_he_goes_on() -> None:
    pool = TargetPool()

    async def behave(connection: Connection) -> None:
        while True:
            await connection.head()
            await connection.send(head(8 * MIB), bytes(8 * MIB))

    class Slow(Recorder):
        def on_body(self, data: bytes | memoryview) -> None:
            super().on_body(data)
            connection.pause_reading()

    async with target(behave) as there:
        connection = await connect(pool, there)
        for _ in range(2):
            recorder = Slow()
            connection.send(recorder, "GET", REQUEST)
            while not recorder.over.is_set():
                before, parts = len(recorder.body), recorder.told.count("body")
                await asyncio.sleep(0.005)
                assert len(recorder.body) <= before + 256 * 1024
                assert recorder.told.count("body") <= parts + 1, "one part, and then a pause"
                connection.resume_reading()
            assert len(recorder.body) == 8 * MIB
            assert pool.take([connection.lane], pool.loop.time()) is connection
    pool.close()
