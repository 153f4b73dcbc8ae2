"""A small HTTP server of the tests' own: a real target behind a gate, or a counterpart with answers set down here."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class Request:
    """One request as it came; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, which must be JSON."""
        return json.loads(self.body)


@dataclasses.dataclass(frozen=True)
class Reply:
    """A JSON answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LocalServer:
    """A running server: its address without a trailing slash, and every request that it has had."""

    url: str
    received: list[Request]

    @property
    def forwarded(self) -> list[Request]:
        """The calls of a gate: a gateway also looks whether the target of a new one answers."""
        return [request for request in self.received if "x-paygate-slug" in request.headers]


@contextmanager
def serving(answer: Callable[[Request], Reply]) -> Iterator[LocalServer]:
    """Answer requests on a free port of the loopback address, each in a thread of its own, until the block ends."""
    received: list[Request] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            received.append(request)
            reply = answer(request)
            content = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_any  # noqa: N815  names that http.server calls

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's own name
            """Nothing: the tests read `received` instead."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield LocalServer(f"http://127.0.0.1:{server.server_port}", received)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
