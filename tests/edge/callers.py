"""Raw callers, and a listener whose application records what reached it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from tollkeeper.api import error_envelope
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.call import CallHandler
from tollkeeper.edge.server.protocol import StrictProtocol
from tollkeeper.edge.server.protocol_class import strict_protocol

LONG_SIZE_BYTES = 2 * 1024 * 1024
JSON_HEADERS: list[Header] = [(b"content-type", b"application/json"), (b"x402-version", b"1")]


def render(error: ApiError) -> tuple[int, list[Header], bytes]:
    return error.status, JSON_HEADERS, error_envelope(error, "request-1")


@dataclass
class Seen:
    """A request as the application got it."""

    method: str
    path: bytes
    query: bytes
    headers: list[Header]
    body: bytes = b""


@dataclass
class Listening:
    """A listener and its application, which answers each request with what it saw of it."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    gone: int = 0
    connections: set[Any] = field(default_factory=set)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        seen = Seen(scope["method"], scope["raw_path"], scope["query_string"], scope["headers"])
        self.seen.append(seen)
        if seen.path.endswith(b"/early"):
            await answer(send, b"early")
            return
        if seen.path.endswith(b"/long"):
            await answer(send, bytes(LONG_SIZE_BYTES))
            return
        if seen.path.endswith(b"/begun"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            seen.body += message["body"]
            more = message["more_body"]
        if seen.path.endswith(b"/wait"):
            await self.go.wait()
        if seen.path.endswith(b"/endless"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
                await asyncio.sleep(0)
        await answer(send, b"%b %b %b" % (seen.method.encode(), seen.path, seen.body))


async def answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def listener(
    patience: Patience | None = None,
    keep_alive_seconds: int = 5,
    tls: ssl.SSLContext | None = None,
    descriptors_max: int | None = None,
    calls: CallHandler | None = None,
) -> AsyncIterator[Listening]:
    """A strict listener on a port of its own."""
    listening = Listening()
    protocol: type[StrictProtocol] = strict_protocol(render, patience, calls, descriptors_max=descriptors_max)
    config = Config(
        listening,
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=keep_alive_seconds,
    )
    config.load()
    state = ServerState()
    listening.connections = state.connections
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}, _loop=loop), "127.0.0.1", 0, ssl=tls
    )
    listening.port = server.sockets[0].getsockname()[1]
    try:
        yield listening
    finally:
        server.close()
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def caller(listening: Listening) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection to the listener."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port, limit=1 << 22)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def say(listening: Listening, data: bytes, *, seconds: float = 5) -> bytes:
    """Send `data` in one piece and read until the listener closes."""
    async with caller(listening) as (reader, writer):
        writer.write(data)
        return await asyncio.wait_for(everything(reader), seconds)


async def everything(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the end, or until a reset."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65_536):
            parts.append(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Answer:
    """One response, taken apart."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    rest: bytes

    @property
    def error(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.body)
        assert body["apiVersion"] == "v1"
        assert body["timestamp"]
        error: dict[str, Any] = body["error"]
        return error


def first_answer(data: bytes) -> Answer:
    """The first response in `data`, which has a Content-Length."""
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
    size = int(headers[b"content-length"])
    return Answer(int(lines[0].split(b" ")[1]), headers, rest[:size], rest[size:])
