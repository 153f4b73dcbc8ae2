"""A target of the tests' own: a raw asyncio HTTP server that keeps what it was sent and answers as it is told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Writer = asyncio.StreamWriter


@dataclass(frozen=True, slots=True)
class Received:
    """One request as its bytes said; header names in lower case."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    raw_head: bytes
    reader: asyncio.StreamReader

    def header(self, name: str) -> str | None:
        """The value of a header that is there once."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, values
        return values[0] if values else None


async def answer_ok(_request: Received, writer: Writer) -> None:
    """A small JSON answer."""
    body = b'{"served":true}'
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()


@dataclass(slots=True)
class RecordingTarget:
    """`requests` is everything that came; `answer` may be replaced by a test."""

    url: str
    requests: list[Received] = field(default_factory=list)
    answer: Callable[[Received, Writer], Awaitable[None]] = answer_ok

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head[:-4].decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = [
                    (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])
                ]
                request = Received(method, path, headers, await _body(reader, dict(headers)), head, reader)
                if method != "HEAD" or request.header("x-purchase-id"):
                    self.requests.append(request)
                    await self.answer(request, writer)
                else:  # whether there is a target at all, asked when a gate is made
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while size := int((await reader.readline()).strip(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)
    return await reader.readexactly(int(headers.get("content-length", "0")))


@asynccontextmanager
async def recording_target(tls: ssl.SSLContext | None = None) -> AsyncIterator[RecordingTarget]:
    """A running target on a free port of the loopback address; with `tls` behind TLS, for the name localhost."""
    target = RecordingTarget("")
    serve = target._serve  # noqa: SLF001 - its own server
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    target.url = f"http://127.0.0.1:{port}" if tls is None else f"https://localhost:{port}"
    try:
        yield target
    finally:
        server.close()
