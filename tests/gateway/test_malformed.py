"""Whatever stands in X-Payment: a 402 or a 431, never a 500 (security A-33)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.core.malformed import malformed_headers
from tests.described_answers import seen_raw
from tests.gateway.market import Market

CONNECTIONS = 16


def request(slug: str, header: bytes) -> bytes:
    return b"GET /%b HTTP/1.1\r\nHost: gate\r\nX-Payment: %b\r\n\r\n" % (slug.encode(), header)


def fits_in_a_header(header: bytes) -> bool:
    """A CR, LF or NUL would end the header line: that is the HTTP parser's refusal, tested at the edge."""
    return not set(header) & {0, 10, 13}


async def statuses(market: Market, slug: str, headers: Iterable[bytes]) -> Counter[int]:
    """The status of each request, over a few connections that are kept alive."""
    waiting = asyncio.Queue[bytes]()
    for header in headers:
        waiting.put_nowait(header)
    counted: Counter[int] = Counter()
    host, port = market.stack.gateway_url.removeprefix("http://").split(":")

    async def work() -> None:
        reader = writer = None
        while not waiting.empty():
            header = waiting.get_nowait()
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection(host, port)
            writer.write(request(slug, header))
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                counted[0] += 1
                reader = None
                continue
            counted[int(head.split(b" ", 2)[1])] += 1
            length = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length:" in line
            )
            body = await reader.readexactly(length)
            seen_raw("GET", f"{market.stack.gateway_url}/{slug}", head, body)
            if b"connection: close" in head.lower():
                writer.close()
                reader = None
        if writer is not None:
            writer.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return counted


async def test_malformed_payment_is_refused_and_never_a_fault(market: Market) -> None:
    gate = await market.gate()
    headers = [header for header in malformed_headers(1, 2000) if fits_in_a_header(header)]
    assert len(headers) > 1500
    counted = await statuses(market, gate["slug"], headers)
    assert set(counted) <= {400, 402, 431}, counted
    assert market.target.requests == []


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_malformed_payments_are_refused(market: Market) -> None:
    gate = await market.gate()
    headers = (header for header in malformed_headers(2, 100_000) if fits_in_a_header(header))
    counted = await statuses(market, gate["slug"], headers)
    assert set(counted) <= {400, 402, 431}, counted
    assert market.target.requests == []
