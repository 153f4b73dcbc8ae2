"""A facilitator that is not ours, on any family: it carries payments out itself, and misbehaves on command."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiohttp import web

from tollkeeper.core.networks import NETWORKS

Settling = Callable[[Any, Any], Awaitable[web.StreamResponse]]


@dataclass(slots=True, kw_only=True)
class Foreign(ABC):
    """`settling` answers `/settle`. A payload is what its family's facilitator reads of a payment.

    `NOBODYS` names a transaction that is none. `versions` are those of x402 that it says it speaks.
    """

    NETWORK: ClassVar[str]
    NOBODYS: ClassVar[str]

    settling: Settling
    versions: tuple[int, ...] = (1,)
    refusing: str | None = None  # what it says of every payment that it is to verify
    url: str = ""
    pending: str = ""
    settles: list[dict[str, Any]] = field(default_factory=list)
    connection: asyncio.WriteTransport | None = None

    def kinds(self, network: str, extra: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Of that network, one for each version."""
        names = {1: network, 2: NETWORKS[network].caip2}
        return [
            {"x402Version": version, "scheme": "exact", "network": names[version], "extra": extra}
            for version in self.versions
        ]

    @abstractmethod
    def supported(self) -> dict[str, Any]:
        """What it says that it settles."""

    @abstractmethod
    def read(self, payload: dict[str, Any]) -> Any:
        """A payment's payload."""

    @abstractmethod
    async def hand_over(self, payload: Any) -> str:
        """Gives the payment to its node; the name of the transaction."""

    @abstractmethod
    async def send(self, payload: Any) -> str:
        """Carries the payment out, perhaps with an error; the name of the transaction."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """On a free port until the block ends."""

        async def settle(request: web.Request) -> web.StreamResponse:
            asked = json.loads(await request.read())
            self.settles.append(asked)
            assert isinstance(request.transport, asyncio.WriteTransport)
            self.connection = request.transport
            return await self.settling(self, self.read(asked["paymentPayload"]["payload"]))

        async with facilitating(self.supported, settle, lambda: self.refusing) as self.url:
            yield


def success(foreign: Foreign, transaction: str, **changes: object) -> web.Response:
    """What every facilitator says of a settled payment."""
    body = {"success": True, "transaction": transaction, "network": foreign.NETWORK, "payer": "1" * 32}
    return web.json_response({**body, **changes})


def pending(foreign: Foreign) -> web.Response:
    """What one of version 2 says while its transaction is on its way."""
    return success(foreign, foreign.pending, success=False, errorReason="settlement_pending")


def failure(reason: str, status: int = 200) -> web.Response:
    """What it says of one that it did not settle."""
    return web.json_response({"success": False, "errorReason": reason, "transaction": ""}, status=status)


async def honest(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and says so."""
    return success(foreign, await foreign.send(payload))


async def pending_and_then_success(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, knows no outcome yet, and tells it to who asks again with the very same."""
    if foreign.settles.count(foreign.settles[-1]) > 1:
        return success(foreign, foreign.pending)
    foreign.pending = await foreign.send(payload)
    return pending(foreign)


async def pending_for_ever(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and never knows the outcome."""
    if foreign.settles.count(foreign.settles[-1]) == 1:
        foreign.pending = await foreign.send(payload)
    return pending(foreign)


async def pending_without_a_transaction(_foreign: Foreign, _payload: Any) -> web.StreamResponse:
    """Has sent nothing, and does not know whether it will."""
    return failure("settlement_pending")


async def hands_over(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Gives it to its node, and says that it was carried out."""
    return success(foreign, await foreign.hand_over(payload))


async def says_success_and_sends_nothing(foreign: Foreign, _payload: Any) -> web.StreamResponse:
    """Never sends."""
    return success(foreign, foreign.NOBODYS)


async def string_and_sends_nothing(foreign: Foreign, _payload: Any) -> web.StreamResponse:
    """Says "true" of nothing."""
    return success(foreign, foreign.NOBODYS, success="true")


async def answers_late(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends at once, and says so when nobody listens any more."""
    transaction = await foreign.send(payload)
    await asyncio.sleep(6)
    return success(foreign, transaction)


async def settles_late(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends after a while."""
    await asyncio.sleep(4)
    return success(foreign, await foreign.send(payload))


async def another_shape(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and says so in words of its own."""
    return web.json_response({"result": {"ok": True, "hash": await foreign.send(payload)}})


async def success_as_a_string(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and says "true"."""
    return success(foreign, await foreign.send(payload), success="true")


async def error_after_sending(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and breaks."""
    await foreign.send(payload)
    return web.Response(status=500, text="oops")


def status_after_sending(status: int) -> Settling:
    """Sends, and answers as if the request had been wrong."""

    async def answer(foreign: Foreign, payload: Any) -> web.StreamResponse:
        await foreign.send(payload)
        return web.json_response({"error": "timed out while waiting for the receipt"}, status=status)

    answer.__name__ = f"status_{status}_after_sending"
    return answer


async def failure_after_sending(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and says that it failed."""
    await foreign.send(payload)
    return failure("unexpected_settle_error")


async def never(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends, and never says a word."""
    await foreign.send(payload)
    await asyncio.Event().wait()
    raise AssertionError


async def answers_twice(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Sends once, and writes a second answer into the same connection, for whoever asks next."""
    body = success(foreign, await foreign.send(payload)).body
    assert isinstance(body, bytes)
    second = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert foreign.connection is not None
    asyncio.get_running_loop().call_later(0.05, foreign.connection.write, second)
    return web.Response(body=body, content_type="application/json")


async def refuses(_foreign: Foreign, _payload: Any) -> web.StreamResponse:
    """Sends nothing, and says why."""
    return failure("insufficient_funds")


async def refuses_and_sends(foreign: Foreign, payload: Any) -> web.StreamResponse:
    """Says why it will send nothing, and sends."""
    await foreign.send(payload)
    return failure("insufficient_funds")


async def refuses_with_400(_foreign: Foreign, _payload: Any) -> web.StreamResponse:
    """The same, with a status of its own."""
    return failure("insufficient_funds", status=400)


async def wrong_request(_foreign: Foreign, _payload: Any) -> web.StreamResponse:
    """Sends nothing, and does not say why."""
    return web.json_response({"error": "invalid request"}, status=400)


@asynccontextmanager
async def facilitating(
    supported: Callable[[], dict[str, Any]],
    settle: Callable[[web.Request], Awaitable[web.StreamResponse]],
    refusing: Callable[[], str | None] = lambda: None,
) -> AsyncIterator[str]:
    """The URL of a facilitator that calls every payment valid, unless it is refusing them."""

    async def tell(_request: web.Request) -> web.Response:
        return web.json_response(supported())

    async def verify(_request: web.Request) -> web.Response:
        reason = refusing()
        return web.json_response({"isValid": reason is None, "invalidReason": reason, "payer": "0x" + "00" * 20})

    app = web.Application()
    app.router.add_get("/supported", tell)
    app.router.add_post("/verify", verify)
    app.router.add_post("/settle", settle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
