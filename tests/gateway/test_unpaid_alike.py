"""A request that shows nothing is told to pay at once; one that comes in two pieces goes the way of every call.

What both are answered is the same, whatever the gate and however odd the head.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re

from tests.edge.odd_heads import odd_head
from tests.gateway.market import Market

HEADS = 300
TOGETHER = 8
NEXT = b"GET /nothing-here-1 HTTP/1.1\r\nHost: gw.example\r\nConnection: close\r\n\r\n"
# A caller who sends no more is asked by a 100 whether it is there.
IN_PASSING = re.compile(
    rb'^(?:date|x-request-id|connection): .*\r\n|"(?:timestamp|requestId)": ?"[^"]*"|HTTP/1\.1 100 Continue\r\n\r\n',
    re.MULTILINE | re.IGNORECASE,
)
REFUSED = re.compile(rb"HTTP/1\.1 4(?:00|31) ")
TOO_LARGE_BYTES = 32 * 1024
TOO_MANY = 256


async def targets_of(market: Market) -> list[bytes]:
    """Paths at gates of each kind, whose copies are in memory."""
    url = market.target.url
    plain, owned = await market.gate(), await market.gate(targetUrl=f"{url}?key=1&a=2")
    below = await market.gate(allowSubpaths=True, method="GET, POST, DELETE")
    others = [
        await market.gate(requireAuth=True),
        await market.gate(creditBinding="wallet"),
        await market.gate(creditBinding="token", method="GET, HEAD, OPTIONS, PUT, PATCH"),
        closed := await market.gate(),
        gone := await market.gate(),
    ]
    for gate in (plain, owned, below, *others):
        await market.ask("GET", gate["accessUrl"])
    assert (await market.ask("PUT", f"/api/v1/paygates/{closed['id']}", body={"isEnabled": False})).status == 200
    assert (await market.ask("DELETE", f"/api/v1/paygates/{gone['id']}")).status in {200, 204}
    at = [b"/" + gate["slug"].encode() for gate in (plain, owned, below, *others)]
    ends = [b"", b"?a=b", b"?key=2", b"?k%65y=2", b"?a=%zz", b"?", b"/", b"/a/b", b"/../a", b"/a;b", b"/%2e%2e", b"//a"]
    return at * 12 + [slug + end for slug in at for end in ends] + [at[0].swapcase(), b"/" + at[0], b"/api/v1/networks"]


async def answer(market: Market, parts: list[bytes]) -> bytes:
    """All that is answered to a head in these parts, and to a request behind it if any is read."""
    host, port = market.stack.gateway_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = b""
    try:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.003)  # most are read one by one; no answer hangs on it
            with contextlib.suppress(TimeoutError):
                said = await asyncio.wait_for(reader.read(1), 0.3)  # what has no answer waits for more
            writer.write(NEXT)
            writer.write_eof()
            while part := await asyncio.wait_for(reader.read(65_536), 60):
                said += part
    finally:
        writer.close()
    return IN_PASSING.sub(b"", said)


def judged(head: bytes, said: bytes) -> bytes:
    """Of a head that is too large, and wrong besides, it hangs on the cut which of both is found first."""
    is_too_large = len(head) > TOO_LARGE_BYTES or head.count(b"\n") > TOO_MANY
    return b"refused" if is_too_large and REFUSED.match(said) else said


async def test_who_shows_nothing_is_told_the_same_in_one_piece_and_in_two(market: Market) -> None:
    chosen, told = random.Random(7), 0
    targets = await targets_of(market)
    heads = [odd_head(chosen, targets) for _ in range(HEADS)]
    for first in range(0, HEADS, TOGETHER):
        several = heads[first : first + TOGETHER]
        cuts = [chosen.randrange(1, len(head)) for head in several]
        in_two = [[head[:at], head[at:]] for head, at in zip(several, cuts, strict=True)]
        said = await asyncio.gather(*(answer(market, parts) for parts in ([[head] for head in several] + in_two)))
        for head, at, whole, cut in zip(several, cuts, said, said[len(several) :], strict=False):
            assert judged(head, whole) == judged(head, cut), (head[:2000], at)
            told += whole.startswith(b"HTTP/1.1 402 ")
    assert told > HEADS / 20
