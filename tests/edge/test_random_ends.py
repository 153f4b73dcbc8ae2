"""However connections end, and in whatever state, nothing that they held stays taken (security A-42, A-58)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.edge.called import Called, called
from tests.edge.callers import caller
from tests.edge.targets import OK, Connection, certificate, sized, target
from tests.edge.test_cut_requests import read_answer
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.listener import Listener
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.forwarder import Forwarder

NAME = "good.example"
PATHS = (*(b"/call/relay",) * 4, b"/call/take", b"/call/early", b"/call/large", b"/asgi")


async def here(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


def request(chosen: random.Random) -> bytes:
    path = chosen.choice(PATHS)
    version = chosen.choice([b"1.1"] * 5 + [b"1.0"])
    body = bytes(chosen.choice([0, 0, 0, 10, 5_000, 300_000, 12_000_000]))
    lines = [b"Host: a"]
    if body and version == b"1.1" and chosen.random() < 0.4:
        size = chosen.choice([1, 3, 1000, 70_000]) if len(body) < 400_000 else 70_000
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        lines.append(b"Transfer-Encoding: chunked")
    else:
        lines.append(b"Content-Length: %d" % len(body))
    if chosen.random() < 0.1:
        lines.append(b"Expect: 100-continue")
    if chosen.random() < 0.1:
        lines.append(b"Connection: " + chosen.choice([b"close", b"upgrade\r\nUpgrade: x"]))
    if chosen.random() < 0.03:
        lines.append(b"Content-Length: 7")  # refused
    method = b"POST" if body else chosen.choice([b"GET", b"HEAD", b"POST"])
    return b"%b %b HTTP/%b\r\n%b\r\n\r\n%b" % (method, path, version, b"\r\n".join(lines), body)


@dataclass(frozen=True)
class Way:
    """What a target does with a request: `early` before its body, then `parts`, each behind a wait; then it may end."""

    parts: tuple[bytes, ...] = ()
    early: bytes = b""
    takes_body: bool = True
    wait_seconds: float = 0.0
    ends: bool = False


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SPOOLED = OK + b"Content-Length: 1500000\r\n\r\n"
WAYS = (
    *(Way((sized(b"hello"),)),) * 3,
    *(Way((SPOOLED + bytes(300_000), bytes(400_000), bytes(800_000)), wait_seconds=0.1),) * 3,
    Way((sized(b"slow"),), wait_seconds=0.2),
    Way((CHUNKED, b"1\r\nx\r\n" * 20_000, b"0\r\n\r\n")),
    Way((OK + b"Content-Length: 9\r\n\r\nshort",), ends=True),
    Way((OK + b"\r\n", bytes(100_000)), ends=True),
    Way((sized(b"first") + sized(b"second"),)),
    Way(early=sized(b"early"), takes_body=False, wait_seconds=0.01),
    Way(takes_body=False),
    Way(takes_body=False, wait_seconds=0.5),
    Way((b"",), wait_seconds=1, ends=True),  # a caller who cannot be asked is waited for until the end
)


def behaves(chosen: random.Random) -> Callable[[Connection], Awaitable[None]]:
    """A target that does something else with each request."""

    async def behave(connection: Connection) -> None:
        way = Way()
        while not way.ends:
            head, way = await connection.head(), chosen.choice(WAYS)
            await connection.send(way.early)
            if not way.takes_body:
                await asyncio.sleep(way.wait_seconds)
                return
            try:
                await connection.body(head)
            except ValueError:  # its end stands where a chunk would
                return
            for part in way.parts[:1] if head.startswith(b"HEAD") else way.parts:
                await asyncio.sleep(chosen.random() * way.wait_seconds)
                await connection.send(part)

    return behave


async def visit(running: Called, chosen: random.Random) -> None:
    """One caller, who ends at any time in any way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.asgi.port)
    data = b"".join(request(chosen) for _ in range(chosen.choice([1, 1, 2, 5, 80])))[:16_000_000]
    reads = chosen.random() < 0.8

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                pass

    reading = asyncio.ensure_future(read()) if reads else None
    cut = chosen.choice([len(data), chosen.randrange(len(data) + 1), min(len(data), chosen.randrange(400))])
    try:
        async with asyncio.timeout(chosen.random() / 2):
            for part in (data[: cut // 2], data[cut // 2 : cut]):
                writer.write(part)
                await asyncio.sleep(chosen.choice([0, 0, 0.01]))
                await writer.drain()
            how = chosen.randrange(4)
            if how == 0:
                writer.transport.abort()
            elif how == 1:
                writer.close()
            elif how == 2:
                writer.write_eof()
            if reading is not None:
                await reading
    except (TimeoutError, OSError):
        pass
    finally:
        if reading is not None:
            reading.cancel()
        writer.transport.abort()


async def honest(running: Called) -> None:
    """Sends much at once, and gets every answer while the others come and go."""
    flood = [b"GET /call/early HTTP/1.1\r\nHost: a\r\n\r\n"] * 100
    crumbs = [b"POST /call/take HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"] + [b"1\r\nx\r\n"] * 3000
    async with caller(running.asgi) as (reader, writer):
        for _ in range(2):
            writer.write(b"".join(flood))
            assert [await read_answer(reader, 30) for _ in flood] == [b"early"] * 100
            writer.write(b"".join(crumbs))
            await asyncio.sleep(0.02)
            writer.write(b"0\r\n\r\n")
            assert await read_answer(reader, 30) == b"POST /call/take " + b"x" * 3000


def held(running: Called, forwarder: Forwarder) -> dict[str, int]:
    """What is taken of all that is counted."""
    # ruff: noqa: SLF001 - what is counted is nobody's to ask for but this test's
    state, pool = running.server.server_state, forwarder.pool
    protocol: Any = running.server.config.http_protocol_class
    listener: Listener = protocol.listener
    return {
        "callers": len(state.connections),
        "tasks": len(state.tasks),
        "watched": len(listener.sweep._watched),
        "ahead": listener.ahead.held,
        "places": forwarder.places.held,
        "open": pool.open_count - pool.idle_count,
        "lanes": sum(len(lane) for lane in pool._lanes.values()) - pool.idle_count,
        "spooled": forwarder.room.memory.held + forwarder.room.disk.held,
        "deadlines": len(forwarder.deadlines._due),
        "calls": len(running.calls.begun) - len(running.calls.ends),
    }


async def everything_comes_back(seed: int, seconds: float, scheme: str, folder: Path) -> None:
    chosen = random.Random(seed)
    patience = Patience(sweep_seconds=0.05, head_seconds=30, body_seconds=30, read_seconds=30, linger_seconds=0.2)
    server, client = certificate(folder, NAME)
    async with (
        target(behaves(chosen), tls=server if scheme == "https" else None) as there,
        called(TargetUrl(scheme, NAME, there.port, "/", ""), patience) as running,
    ):
        running.server.config.timeout_keep_alive = 60  # all of them share one loop, and may keep each other waiting
        running.calls.forwarder.close()
        forwarder = Forwarder(Resolver(allow_private=True, lookup=here), tls=client, places=16)
        running.calls.forwarder = forwarder
        until = time.monotonic() + seconds
        with structlog.testing.capture_logs() as logs:
            while time.monotonic() < until:
                await asyncio.gather(honest(running), *(visit(running, chosen) for _ in range(20)))
            for _ in range(300):
                if not any((taken := held(running, forwarder)).values()):
                    break
                await asyncio.sleep(0.1)
        assert not any(taken.values()), taken
        assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_whatever_ends_gives_back_what_it_held(scheme: str, tmp_path: Path) -> None:
    await everything_comes_back(1, 1, scheme, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_ends_gives_back_what_it_held_for_long(seed: int, scheme: str, tmp_path: Path) -> None:
    await everything_comes_back(seed, 30, scheme, tmp_path)
