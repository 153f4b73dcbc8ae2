"""What a 402 costs on this event loop, step by step, with nothing of a gateway around it. Prints {"url": ...}.

    unpaid answer BYTES    whatever is read is answered with the same bytes; nothing reads it
    unpaid parsed BYTES    every head is read by llhttp, its headers kept, as a server does that keeps no heads
    unpaid known BYTES     in place of that, a head is looked up by its bytes among those that came before
    unpaid counted BYTES   as `known`, with what each 402 has of its own and leaves behind: a date and a timestamp of
                           its millisecond, an id, whether its caller's requests are counted, whether its gate is
                           there, the count of its gate

Each answers in the one method that the loop calls. Bodies have BYTES. One read is taken for one request.
"""

from __future__ import annotations

import asyncio
import sys
from time import time
from typing import ClassVar, Final, cast

from httptools import HttpRequestParser

from bench.servers.listening import serve_protocol
from tollkeeper.api import iso
from tollkeeper.core.client_addresses import rate_key
from tollkeeper.edge.ready import ID_ENDS, ReadyAnswer
from tollkeeper.gateway.unpaid import UNPAID_LINES
from tollkeeper.serving.http_server import run, until_signalled

_HEAD: Final = b"HTTP/1.1 402 Payment Required\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class Answering(asyncio.Protocol):
    """Reads nothing."""

    body_bytes: ClassVar[int]
    answer: ClassVar[bytes]
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        del data
        self.transport.write(self.answer)


class Parsing(Answering):
    """Reads every head."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._parser = HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """What the parser calls."""
        self._target = url
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """What the parser calls."""
        self._headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
        """What the parser calls."""
        self.transport.write(self.answer)


class Knowing(Answering):
    """Knows heads that came before."""

    known: ClassVar[dict[bytes, str]] = {}

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self.known.get(data) is None:
            self.known[data] = "slug"
        self.transport.write(self.answer)


class Made(ReadyAnswer):
    """The answer around its id, and what was counted."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        super().__init__(402, UNPAID_LINES, lambda now_ms: iso(now_ms).encode().ljust(Answering.body_bytes, b"x"))
        self.count = 0


class Counting(Knowing):
    """Does what no 402 goes without."""

    gates: ClassVar[dict[str, object]] = {"slug": object()}
    made: ClassVar[Made] = Made()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._peer: str = transport.get_extra_info("peername")[0]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        slug = self.known.get(data)
        if slug is None:
            slug = self.known[data] = "slug"
        if self.gates.get(slug) is None or rate_key(self._peer):
            raise RuntimeError("the callers of this benchmark are this machine's own")
        made, now = self.made, time()
        if not (ID_ENDS and made.since <= now < made.until):
            made.make()
        made.count += 1
        self.transport.write(b"".join((made.before, ID_ENDS.pop(), made.after)))


KINDS: Final[dict[str, type[Answering]]] = {
    "answer": Answering,
    "parsed": Parsing,
    "known": Knowing,
    "counted": Counting,
}


async def serve(stop: asyncio.Event) -> None:
    """The server, until `stop` is set."""
    protocol, Answering.body_bytes = KINDS[sys.argv[1]], int(sys.argv[2])
    Answering.answer = _HEAD % (Answering.body_bytes, b"x" * Answering.body_bytes)
    await serve_protocol(protocol, stop)


if __name__ == "__main__":
    run(until_signalled(serve))
