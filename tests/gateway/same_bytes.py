"""Requests that come again in the same bytes, on connections that are kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.described_answers import seen_raw


def request(gate: dict[str, Any], method: str = "GET", more: str = "") -> bytes:
    """A request for the gate without a body; `more` are lines of its head, each with its end."""
    parts = urlsplit(gate["accessUrl"])
    return f"{method} {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{more}\r\n".encode()


@dataclass(frozen=True, slots=True)
class Caller:
    """One kept connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Send these bytes; status, headers and JSON body of the answer."""
        self.writer.write(data)
        return await self.answer(data)

    async def answer(self, data: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
        """The next answer; `data` is what it answers."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b"" if data.startswith(b"HEAD") else await self.reader.readexactly(int(headers["content-length"]))
        method, target, _ = data.decode("latin-1").split(" ", 2)
        seen_raw(method, target, head.encode(), body)
        return int(first.split(" ")[1]), headers, json.loads(body or b"{}")


@contextlib.asynccontextmanager
async def kept(gate: dict[str, Any], source: str | None = None) -> AsyncIterator[Caller]:
    """A connection to the gate's gateway; `source` is this machine's address that it comes from."""
    parts = urlsplit(gate["accessUrl"])
    local = None if source is None else (source, 0)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=local)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):  # one too many is reset
            await writer.wait_closed()
