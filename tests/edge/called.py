"""A listener that takes paths under `/call` without ASGI, and a handler that does what a path tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from uvicorn.config import Config
from uvicorn.server import Server

from tests.edge.callers import Listening, render
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.heads import RequestHead, ResponseHead, answer_lines, passed_on
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.call import AnsweredAtOnce, AnsweredRequest, InboundCall
from tollkeeper.edge.server.protocol_class import strict_protocol
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.relay import RelayRequest, TargetUse
from tollkeeper.edge.target.spool import SpooledBody

PLAIN = b"content-type: text/plain\r\n"


@dataclass
class Collected:
    """A body sink that answers with what came."""

    call: InboundCall
    parts: list[bytes] = field(default_factory=list)

    def on_request_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_request_end(self) -> None:
        body = b"".join(self.parts)
        self.call.answer(200, PLAIN, b"%b %b %b" % (self.call.method.encode(), self.call.head.target, body))

    def refuse(self, error: Exception) -> None:
        assert isinstance(error, ApiError)
        self.call.refuse(error, b"x-parts: %d\r\n" % len(self.parts))


@dataclass
class Relayed:
    """Gives the target's answer to the caller, and tells when it does."""

    call: InboundCall
    answered: list[int]
    passing_on: asyncio.Task[None] | None = None  # an answer that was too large for memory

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        self.answered.append(head.status)
        lines, names = answer_lines(head, head.values)
        has_date = b"date" in names
        if isinstance(body, list):
            self.call.answer_parts(head.status, lines, body, size_bytes, has_date=has_date)
        else:
            self.call.start(head.status, lines, size_bytes, has_date=has_date)
            self.passing_on = asyncio.ensure_future(self._pass_on(body))

    async def _pass_on(self, body: SpooledBody) -> None:
        async for data in body:
            await self.call.write(data)
        self.call.end()

    def on_refusal(self, error: BaseException) -> None:
        assert isinstance(error, ApiError)
        self.answered.append(error.status)
        self.call.refuse(error)


@dataclass
class Calls:
    """The handler. `go` lets waiting calls be answered; `gone` counts callers who left."""

    forwarder: Forwarder
    target: TargetUrl | None = None
    begun: list[InboundCall] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    gone: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: set[asyncio.Task[None]] = field(default_factory=set)

    def place_of(self, target: bytes) -> bytes | None:
        return target if target.startswith(b"/call") else None

    def at_once(self, head: RequestHead, place: bytes, peer: str) -> AnsweredAtOnce | None:
        """Nothing: what is tested here is a call."""

    def begin(self, call: InboundCall) -> None:
        self.begun.append(call)
        call.on_gone = self._gone
        what = call.head.target.rpartition(b"/")[2]
        if what == b"early":
            call.answer(200, PLAIN, b"early")
        elif what == b"fault":
            raise ZeroDivisionError
        elif what == b"refused":
            raise ApiError(Code.NOT_FOUND, "not here")
        elif what == b"large":
            call.answer(200, PLAIN, bytes(1_000_000))
        elif what == b"silent":
            pass
        elif what == b"started":
            call.start(200, PLAIN, 9, has_date=False)
        elif what in {b"wait", b"halves", b"cut", b"fails", b"much"}:
            self._do(self._later(call) if what == b"wait" else self._in_halves(call, what))
        elif what == b"relay":
            self._relay(call)
        else:
            call.body_to(Collected(call))

    def ended(self, call: AnsweredRequest) -> None:
        self.ends.append(call.status)

    def _gone(self) -> None:
        self.gone += 1

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.waiting.add(task)
        task.add_done_callback(self.waiting.discard)

    async def _in_halves(self, call: InboundCall, what: bytes) -> None:
        call.start(200, PLAIN, None, has_date=False)
        await call.write(bytes(8_000_000) if what == b"much" else b"half ")
        await self.go.wait()
        if what == b"cut":
            call.abort()
            return
        if what == b"fails":
            call.fail(ZeroDivisionError())
            return
        await call.write(b"half")
        call.end()

    async def _later(self, call: InboundCall) -> None:
        await self.go.wait()
        call.body_to(Collected(call))

    def _relay(self, call: InboundCall) -> None:
        assert self.target is not None
        length = call.head.content_length
        framing = b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length
        host = self.target.authority.encode()
        lines, _ = passed_on(call.head.shape, call.head.values, call.head.header.get(b"connection", b""))
        head = b"%b / HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (call.method.encode(), host, lines, framing)
        body = b"" if length == 0 else call
        relay = self.forwarder.relay(
            RelayRequest(TargetUse("owner"), self.target, call.method, head, body, length), Relayed(call, self.answered)
        )

        def gone() -> None:
            self._gone()
            relay.close()

        call.on_gone = gone
        relay.start()


@dataclass
class Called:
    """A running listener with its calls."""

    asgi: Listening
    calls: Calls
    server: Server
    stop: Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def called(target: TargetUrl | None = None, patience: Patience | None = None) -> AsyncIterator[Called]:
    """A listener on uvicorn's own server, with ASGI beside the calls."""
    asgi = Listening()
    calls = Calls(Forwarder(Resolver(allow_private=True)), target)
    protocol = strict_protocol(render, patience, calls)
    server = Server(Config(asgi, http=protocol, lifespan="off", log_config=None, access_log=False, port=0))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells it by this flag only
        await asyncio.sleep(0.01)
    asgi.port = server.servers[0].sockets[0].getsockname()[1]

    async def stop() -> None:
        server.should_exit = True
        await asyncio.wait_for(asyncio.shield(serving), 10)

    try:
        yield Called(asgi, calls, server, stop)
    finally:
        server.force_exit = server.should_exit = True
        for connection in list(server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await serving
        calls.forwarder.close()
        await asyncio.sleep(0.01)
