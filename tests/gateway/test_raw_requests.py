"""Ambiguous requests at the running program: what a paid call hides behind one is never served (A-40; contract 4.2).

The vectors are the listener's own (`tests/edge/test_raw_requests.py`). Here they go to a PayGate's call, which is
answered without ASGI, and to `/api`: on a connection of their own, behind calls that the gateway remembers by their
bytes, and with a payment that holds credits. Behind each stands a whole paid call. No second reader could see it,
because nobody answers it, its credit is not spent and the target never gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.edge.test_raw_requests import HOST, MALFORMED, TOO_LARGE
from tests.edge.test_raw_requests import SMUGGLED as MARK
from tests.gateway.market import Market

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
GROUPS = sorted({name.partition(":")[0] for name in MALFORMED})
WARM = 3  # from the second one on, a call like the one before is answered from memory
# Of a broken body the head was whole: what it asked for may have begun, or been answered, before anybody could know.
HAS_WHOLE_HEAD = "chunk"
CREDITS = 9999


@dataclass
class Sale:
    """A gate whose purchase has credits left, and what reached its target."""

    market: Market
    gate: dict[str, Any]
    payment: bytes

    def paid(self, path_end: bytes = b"") -> bytes:
        """A whole paid call."""
        slug = self.gate["slug"].encode()
        return b"GET /%b%b HTTP/1.1\r\n%bX-Payment: %b\r\n\r\n" % (slug, path_end, HOST, self.payment)

    def raw(self, vector: bytes, path: bytes, *, is_paid: bool) -> bytes:
        """The vector at a path, with a paid call behind it and within it."""
        named = vector.replace(b"@", path).replace(MARK, self.paid(b"?smuggled"))
        if is_paid:
            named = named.replace(HOST, HOST + b"X-Payment: " + self.payment + b"\r\n", 1)
        return named + self.paid(b"?smuggled")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        host, port = self.market.stack.gateway_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def warm(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Calls that the gateway knows by their bytes from then on."""
        for _ in range(WARM):
            writer.write(self.paid())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            assert head.startswith(b"HTTP/1.1 200 ")
            size = re.search(rb"content-length: (\d+)", head.lower())
            assert size is not None
            await reader.readexactly(int(size[1]))

    async def left(self) -> int:
        """Credits left, by a call that spends one."""
        answer = await self.market.pay(self.gate, self.payment.decode())
        assert answer.status == 200
        return int(answer.headers["x-credits-remaining"])


@pytest.fixture
async def sale(market: Market) -> Sale:
    gate = await market.gate(credits=CREDITS, method="GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
    payment, bought = await market.buy(gate)
    assert bought.status == 200
    return Sale(market, gate, payment.encode())


async def everything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    """What is answered until the connection ends. It does end."""

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()

    sending = asyncio.create_task(send())
    said = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while part := await reader.read(65_536):
                said += part
    sending.cancel()
    return said


async def assert_refused(sale: Sale, vectors: dict[str, bytes], status: bytes, *, is_paid: bool) -> None:
    """Of each the answers, what its target saw of it, and the credits, at `/api` and at the gate."""
    slug = b"/" + sale.gate["slug"].encode()
    for name, vector in vectors.items():
        for path in (b"/api/v1/paygates", slug):
            for is_warm in (False, True):
                seen, left = len(sale.market.target.requests), await sale.left()
                async with sale.connection() as (reader, writer):
                    if is_warm:
                        await sale.warm(reader, writer)
                    answers = STATUS.findall(await everything(reader, writer, sale.raw(vector, path, is_paid=is_paid)))
                calls = 1 + WARM * is_warm
                began = sale.market.target.requests[seen + calls :]
                spent = left - 1 - await sale.left() - WARM * is_warm
                where = (name, path, is_warm, answers, [request.raw_head for request in began], spent)
                if name.startswith(HAS_WHOLE_HEAD):
                    assert len(answers) == 1, where
                    assert began[:-1] == [], where  # the last one is the call that asked what is left
                    assert spent in ({0, 1} if is_paid else {0}), where
                else:
                    assert answers == [status], where
                    assert began[:-1] == [], where
                    assert spent == 0, where
                assert not any("smuggled" in request.path for request in began), where


@pytest.mark.parametrize("is_paid", [False, True], ids=["unpaid", "paid"])
@pytest.mark.parametrize("group", GROUPS)
async def test_nothing_is_served_behind_an_ambiguous_request(sale: Sale, group: str, is_paid: bool) -> None:  # noqa: FBT001
    vectors = {name: raw for name, raw in MALFORMED.items() if name.partition(":")[0] == group}
    await assert_refused(sale, vectors, b"400", is_paid=is_paid)


@pytest.mark.parametrize("is_paid", [False, True], ids=["unpaid", "paid"])
async def test_nothing_is_served_behind_a_head_that_is_too_large(sale: Sale, is_paid: bool) -> None:  # noqa: FBT001
    vectors = {name: raw for name, raw in TOO_LARGE.items() if name != "trailers"}
    await assert_refused(sale, vectors, b"431", is_paid=is_paid)
    await assert_refused(sale, {"chunk: endless trailers": TOO_LARGE["trailers"]}, b"431", is_paid=is_paid)


async def test_no_credit_is_spent_for_a_call_behind_an_answer_that_ends_its_connection(sale: Sale) -> None:
    slug = b"/" + sale.gate["slug"].encode()
    unpaid = b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n" % (slug, HOST)
    left = await sale.left()
    async with sale.connection() as (reader, writer):
        answers = STATUS.findall(await everything(reader, writer, unpaid + sale.paid(b"?behind")))
    assert (answers, await sale.left()) == ([b"402"], left - 1)
    assert not any("behind" in request.path for request in sale.market.target.requests)
