"""Paid calls on the program's own listener, to a target over TLS and without: what crosses, in which framing, and when.

Connections are kept by checked address and name, a body goes on once it is paid for, and a caller's end is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.targets import HEAD_END, OK, Behaviour, Connection, Target, certificate, serves, sized, target
from tests.gateway.composed import composed
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PAYEE = "0x" + "77" * 20
LIMIT_BYTES = 10_485_760
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n2;a=b\r\n!!\r\n0\r\nX-Trailer: a\r\n\r\n"


@dataclass
class Wire:
    """A gate with credits, the payment that holds them, and its target."""

    buyer: Buyer
    url: str
    gate: dict[str, Any]
    payment: str
    there: Target

    @property
    def path(self) -> str:
        return f"/{self.gate['slug']}"

    def head(self, method: str, *lines: str) -> bytes:
        """A paid request's head."""
        said = (f"{method} {self.path} HTTP/1.1", "Host: gate", f"X-Payment: {self.payment}", *lines, "", "")
        return "\r\n".join(said).encode()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self.url.removeprefix("http://").split(":"), limit=1 << 25)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def used(self) -> int:
        """Credits spent."""
        answer = await self.buyer.ask("GET", self.url + "/api/v1/credits", headers={"X-Payment": self.payment})
        (held,) = answer.json()["data"]
        used: int = held["used"]
        return used


async def answer(reader: asyncio.StreamReader, *, is_head: bool = False) -> tuple[int, dict[str, str], bytes]:
    """The next answer."""
    head = (await asyncio.wait_for(reader.readuntil(HEAD_END), 30)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    size = 0 if is_head else int(headers["content-length"])
    return int(first.split(" ")[1]), headers, await asyncio.wait_for(reader.readexactly(size), 30)


Selling = Callable[[Behaviour], "contextlib.AbstractAsyncContextManager[Wire]"]


@pytest.fixture(params=["plain", "tls"])
def selling(
    request: pytest.FixtureRequest, tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> Selling:
    """A program whose one gate is at a target that behaves so."""
    server = None
    if request.param == "tls":
        server, _ = certificate(tmp_path, "localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "localhost.pem"))

    @asynccontextmanager
    async def sell(behave: Behaviour) -> AsyncIterator[Wire]:
        async with (
            target(behave, tls=server) as there,
            composed(embedded_chain.url, tmp_path / "gateway.db") as url,
            Buyer(derive_wallets().buyer) as buyer,
        ):
            scheme = "http" if server is None else "https"
            body = {
                "targetUrl": f"{scheme}://localhost:{there.port}/",
                "price": "0.01",
                "credits": 50,
                "method": "GET, HEAD, POST",
                "paymentAddress": PAYEE,
            }
            made = await buyer.ask("POST", url + "/api/v1/paygates", body=body)
            assert made.status == 201, made.body
            gate = made.json()
            payment = buyer.sign((await buyer.ask("GET", f"{url}/{gate['slug']}")).json())
            wire = Wire(buyer, url, gate, payment, there)
            async with wire.connection() as (reader, writer):
                writer.write(wire.head("HEAD"))
                status, _, _ = await answer(reader, is_head=True)
                assert status == 200
            there.heads.clear()
            there.bodies.clear()
            yield wire

    return sell


def after_the_first(behave: Callable[[Connection, bytes], Awaitable[None]]) -> Behaviour:
    """Answers HEAD, which is how each gate here is bought from; any other request's head goes to `behave`."""

    async def behaving(connection: Connection) -> None:
        while True:
            head = await connection.head()
            if head.startswith(b"HEAD "):
                await connection.body(head)
                await connection.send(sized(b""))
            else:
                await behave(connection, head)

    return behaving


def answering(response: bytes) -> Behaviour:
    async def respond(connection: Connection, head: bytes) -> None:
        await connection.body(head)
        await connection.send(response)

    return after_the_first(respond)


async def test_bodies_cross_both_ways_in_either_framing_over_one_kept_connection(selling: Selling) -> None:
    async with selling(answering(CHUNKED)) as wire, wire.connection() as (reader, writer):
        for framed in (
            wire.head("POST", "Content-Length: 5") + b"hello",
            wire.head("POST", "Transfer-Encoding: chunked") + b"2\r\nhe\r\n3;x\r\nllo\r\n0\r\nX-T: 1\r\n\r\n",
            wire.head("GET"),
        ):
            writer.write(framed)
            status, headers, body = await answer(reader)
            assert (status, body) == (200, b"yes!!")
            assert "transfer-encoding" not in headers
            assert "x-trailer" not in headers
        assert wire.there.bodies == [b"hello", b"hello", b""]
        assert wire.there.connections == 2  # one looked whether it answers, when the gate was made


async def test_head_has_the_length_and_no_body(selling: Selling) -> None:
    async with selling(serves(OK + b"Content-Length: 12345\r\n\r\n")) as wire, wire.connection() as (reader, writer):
        for left in (48, 47, 46):
            writer.write(wire.head("HEAD"))
            status, headers, _ = await answer(reader, is_head=True)
            assert (status, headers["content-length"], headers["x-credits-remaining"]) == (200, "12345", str(left))


async def test_a_payer_who_waits_for_100_is_asked_for_the_body_once_it_is_paid_for(selling: Selling) -> None:
    async with selling(answering(sized(b"yes"))) as wire, wire.connection() as (reader, writer):
        for number in (1, 2):
            writer.write(wire.head("POST", "Content-Length: 5", "Expect: 100-continue"))
            assert await asyncio.wait_for(reader.readexactly(len(CONTINUE)), 20) == CONTINUE
            assert await wire.used() == 1 + number
            writer.write(b"hello")
            assert (await answer(reader))[::2] == (200, b"yes")
        assert wire.there.bodies == [b"hello"] * 2
        assert not any(b"expect" in head.lower() for head in wire.there.heads)


async def test_calls_sent_ahead_are_answered_in_their_order(selling: Selling) -> None:
    async with selling(answering(sized(b"yes"))) as wire, wire.connection() as (reader, writer):
        writer.write(b"".join(wire.head("POST", "Content-Length: 1") + b"%d" % number for number in range(9)))
        left = [int((await answer(reader))[1]["x-credits-remaining"]) for _ in range(9)]
        assert left == list(range(48, 39, -1))
        assert wire.there.bodies == [b"%d" % number for number in range(9)]


async def test_a_payer_who_sends_no_more_gets_its_answer(selling: Selling) -> None:
    async def late(connection: Connection, head: bytes) -> None:
        await connection.body(head)
        await asyncio.sleep(1)
        await connection.send(sized(b"late"))

    async with selling(after_the_first(late)) as wire, wire.connection() as (reader, writer):
        writer.write(wire.head("GET"))
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 20)
        assert said.endswith(b"\r\n\r\nlate")
        assert await wire.used() == 2


@pytest.mark.parametrize("is_answered", [False, True], ids=["before the answer", "amid the answer"])
async def test_a_payer_who_leaves_ends_the_exchange_with_the_target_and_has_paid_for_it(
    selling: Selling,
    is_answered: bool,  # noqa: FBT001 - a case
) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def endless(connection: Connection, head: bytes) -> None:
        await connection.body(head)
        if is_answered:
            await connection.send(OK + b"Content-Length: 1000000\r\n\r\nbegun")
        begun.set()
        try:
            await connection.wait_closed()
        finally:
            over.set()

    async with selling(after_the_first(endless)) as wire:
        async with wire.connection() as (_, writer):
            writer.write(wire.head("GET"))
            await asyncio.wait_for(begun.wait(), 20)
            writer.transport.abort()
            await asyncio.wait_for(over.wait(), 20)
        assert await wire.used() == 2


@pytest.mark.parametrize("size", [3_000_000, LIMIT_BYTES, LIMIT_BYTES + 1])
async def test_an_answer_of_10_mib_comes_whole_and_one_byte_more_is_a_502(selling: Selling, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    async def large(connection: Connection, head: bytes) -> None:
        await connection.body(head)
        await connection.send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        for start in range(0, size, 60_000):
            part = content[start : start + 60_000]
            await connection.send(b"%x\r\n%b\r\n" % (len(part), part))
        await connection.send(b"0\r\n\r\n")

    async with selling(after_the_first(large)) as wire, wire.connection() as (reader, writer):
        writer.write(wire.head("GET"))
        status, headers, body = await answer(reader)
        assert (status, body == content) == ((200, True) if size <= LIMIT_BYTES else (502, False))
        assert headers["x-credits-remaining"] == "48"
