"""Targets that break the rules, at a real gate of a running program: its resident memory stays where it was.

Several calls at a time for each behaviour. What a target keeps open is left by its callers after a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import Scene, scene
from tests.edge.targets import Behaviour, answers, sized, target
from tests.edge.test_hostile_targets import ANSWERED, REFUSED, floods
from tollkeeper.core.limits import PROXY_RESPONSE_SIZE_BYTES

CALLERS = 6
PATIENCE_SECONDS = 1.0
# Over what the program takes at rest: some MiB for each caller (1 MiB of an answer stays in memory), as much again, and
# what the allocator keeps of both, which is another amount in each run (36 to 41 in all).
GROWTH_MB = 50
LATER_GROWTH_MB = 15  # of the same floods, again and again
OK = b"HTTP/1.1 200 OK\r\n"
MIB = b"x" * 1024 * 1024


def bomb() -> bytes:
    """A gigabyte of zeros, compressed to a megabyte: passed on as it is."""
    return gzip.compress(bytes(1 << 20)) * 1024  # one member after the other, as the format allows


async def redirects_to_itself(connection: object) -> None:
    await answers(OK.replace(b"200 OK", b"302 F") + b"Location: /\r\nContent-Length: 0\r\n\r\n")(connection)  # type: ignore[arg-type] # a connection


# At the gate's own limit of 10 MiB; those of the edge's tests have a smaller one.
AT_THE_LIMIT: dict[str, Behaviour] = {
    "sends 10 MiB": answers(sized(b"x" * PROXY_RESPONSE_SIZE_BYTES)),
    "sends one byte more": answers(OK + b"\r\n" + b"x" * (PROXY_RESPONSE_SIZE_BYTES + 1), wait=False),
    "sends megabytes for ever": floods(OK + b"\r\n", MIB),
    "chunks megabytes for ever": floods(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + MIB + b"\r\n"),
    "lies about 10 MiB": answers(OK + b"Content-Length: 10485760\r\n\r\n" + MIB, wait=False),
    "sends a gzip bomb": answers(sized(bomb(), b"Content-Encoding: gzip")),
    "redirects to itself": redirects_to_itself,
}
FLOODS = ["sends megabytes for ever", "chunks megabytes for ever"]


def resident_mb(pid: int) -> float:
    """What the process holds in memory, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.asynccontextmanager
async def watched(pid: int) -> AsyncIterator[list[float]]:
    """Samples of the process's resident memory."""
    samples = [resident_mb(pid)]

    async def watch() -> None:
        while True:
            samples.append(resident_mb(pid))
            await asyncio.sleep(0.01)

    task = asyncio.create_task(watch())
    try:
        yield samples
    finally:
        task.cancel()


def session_of_patience() -> aiohttp.ClientSession:
    """Of callers who read large heads, and do not wait for long."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    return aiohttp.ClientSession(timeout=timeout, max_line_size=1 << 17, max_field_size=1 << 17)


async def call(session: aiohttp.ClientSession, url: str, method: str, payment: str) -> int | None:
    """One call; None where its caller lost patience."""
    try:
        async with session.request(
            method, url, headers={"X-Payment": payment}, allow_redirects=False, auto_decompress=False
        ) as answer:
            async for _ in answer.content.iter_chunked(65_536):
                pass
            return answer.status
    except TimeoutError:
        return None


async def suffer(shop: Scene, gate: dict[str, object], payment: str, behave: Behaviour, method: str) -> set[int | None]:
    """What the callers of a gate with such a target were answered."""
    url = f"{shop.program.url}/{gate['slug']}"
    async with target(behave) as hostile, session_of_patience() as session:
        await shop.change(gate, targetUrl=f"http://127.0.0.1:{hostile.port}/")
        return set(await asyncio.gather(*(call(session, url, method, payment) for _ in range(CALLERS))))


async def test_memory_stays_flat_whatever_targets_do(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    behaviours = {name: (behave, "GET") for name, (behave, _) in REFUSED.items()}
    behaviours |= {name: (behave, method) for name, (behave, method, _, _) in ANSWERED.items()}
    behaviours |= {name: (behave, "GET") for name, behave in AT_THE_LIMIT.items()}
    assert len(behaviours) >= 100
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=1_000_000, method="GET, HEAD")
        payment, _ = await shop.buy(gate)
        for _ in range(50):
            assert (await shop.buyer.call(gate["url"], payment)).status == 200
        rest_mb = resident_mb(shop.program.pid)
        grown: dict[str, float] = {}
        seen: set[int | None] = set()
        for name, (behave, method) in behaviours.items():
            async with watched(shop.program.pid) as samples:
                seen |= await suffer(shop, gate, payment, behave, method)
            grown[name] = max(samples) - rest_mb
        assert {name: mb for name, mb in grown.items() if mb > GROWTH_MB} == {}
        assert seen <= {200, 204, 302, 304, 500, 502, None}
        before_mb = resident_mb(shop.program.pid)
        for _ in range(4):
            for name in FLOODS:
                assert await suffer(shop, gate, payment, AT_THE_LIMIT[name], "GET") <= {502, None}
        assert resident_mb(shop.program.pid) - before_mb < LATER_GROWTH_MB
