"""What an idle connection takes of our own memory, whatever it asked before (performance, targets)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tracemalloc
from pathlib import Path

import pytest

import tollkeeper
from tests.edge.called import Called, called
from tollkeeper.core.http.timeouts import Patience

SWEEPS_MAX = 20
LIMIT_BYTES = 1024
CONNECTIONS = 100
OURS = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(tollkeeper.__file__).parent}/*")
SWEEP = Patience(sweep_seconds=0.05)


async def opened(server: Called, path: bytes, numbers: range) -> list[asyncio.StreamWriter]:
    """Connections that have each had an answer to a long head of its own."""
    writers = []
    for number in numbers:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.asgi.port)
        writers.append(writer)
        if path:
            own = b"X-Own: %d%b\r\n" % (number, b"x" * 20_000)
            writer.write(b"GET %b HTTP/1.1\r\nHost: gw.example\r\n%b\r\n" % (path, own))
            await reader.readuntil(b"\r\n\r\n")
    server.asgi.seen.clear()
    server.calls.begun.clear()
    await asyncio.sleep(0.5)  # several sweeps
    gc.collect()
    return writers


def ours_bytes() -> int:
    """What our own files hold."""
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([OURS]).traces)


@pytest.mark.parametrize("path", [b"", b"/call/early", b"/api/early"], ids=["silent", "call", "asgi"])
async def test_an_idle_connection_takes_less_than_a_kibibyte_of_ours(path: bytes) -> None:
    async with called(patience=SWEEP) as server:
        tracemalloc.start()
        try:
            writers = await opened(server, path, range(10))  # what all connections share is there, and counted, before
            before = ours_bytes()
            writers += await opened(server, path, range(10, 10 + CONNECTIONS))
            connections = list(server.server.server_state.connections)
            own_bytes = max(sys.getsizeof(connection) for connection in connections)
            for _ in range(SWEEPS_MAX):  # they forget a connection's last head; late, on a busy machine
                grown_bytes = ours_bytes() - before
                if grown_bytes / CONNECTIONS + own_bytes < LIMIT_BYTES:
                    break
                await asyncio.sleep(0.5)
                gc.collect()
        finally:
            tracemalloc.stop()
        assert len(connections) == len(writers)
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert grown_bytes / CONNECTIONS + own_bytes < LIMIT_BYTES
