"""A facilitator that is not ours: it carries payments out with an account of its own, and misbehaves on command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tollkeeper.core.evm import transfer_calldata
from tollkeeper.core.wire import EvmPayload, parse_payload
from tollkeeper.sandbox.genesis import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet

Settling = Callable[["Foreign", EvmPayload], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Foreign:
    """`settling` answers `/settle`; `signers` is what it advertises; `sender` is who really sends."""

    chain: ChainUnderTest
    sender: TestWallet
    signers: list[str]
    settling: Settling
    url: str = ""
    settles: list[dict[str, Any]] = field(default_factory=list)
    connection: asyncio.WriteTransport | None = None

    async def send(self, payload: EvmPayload) -> str:
        """Carries the payment out; the hash of the mined transaction, which may have reverted."""
        data = transfer_calldata(payload.authorization, payload.signature)
        receipt = await asyncio.to_thread(self.chain.send_and_wait, self.sender, USDC_ADDRESS, data)
        sent: str = receipt["transactionHash"]
        return sent


def success(transaction: str, **changes: object) -> web.Response:
    """What every facilitator says of a settled payment."""
    body = {"success": True, "transaction": transaction, "network": "base-sepolia", "payer": "0x" + "00" * 20}
    return web.json_response({**body, **changes})


async def honest(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends, and says so."""
    return success(await foreign.send(payload))


async def says_success_and_sends_nothing(_foreign: Foreign, _payload: EvmPayload) -> web.StreamResponse:
    """Never sends."""
    return success("0x" + "ab" * 32)


async def answers_late(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends at once, and says so when nobody listens any more."""
    transaction = await foreign.send(payload)
    await asyncio.sleep(6)
    return success(transaction)


async def settles_late(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends after a while."""
    await asyncio.sleep(4)
    return success(await foreign.send(payload))


async def sends_twice(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends two transactions of which one must revert, and names that one."""
    await foreign.send(payload)
    return success(await foreign.send(payload))


async def another_shape(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends, and says so in words of its own."""
    return web.json_response({"result": {"ok": True, "hash": await foreign.send(payload)}})


async def success_as_a_string(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends, and says "true"."""
    return success(await foreign.send(payload), success="true")


async def string_and_sends_nothing(_foreign: Foreign, _payload: EvmPayload) -> web.StreamResponse:
    """Says "true" of nothing."""
    return success("0x" + "ab" * 32, success="true")


async def error_after_sending(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends, and breaks."""
    await foreign.send(payload)
    return web.Response(status=500, text="oops")


async def failure_after_sending(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends, and says that it failed."""
    await foreign.send(payload)
    return web.json_response({"success": False, "errorReason": "unexpected_settle_error", "transaction": ""})


async def never(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends, and never says a word."""
    await foreign.send(payload)
    await asyncio.Event().wait()
    raise AssertionError


async def answers_twice(foreign: Foreign, payload: EvmPayload) -> web.StreamResponse:
    """Sends once, and writes a second answer into the same connection, for whoever asks next."""
    body = success(await foreign.send(payload)).body
    assert isinstance(body, bytes)
    second = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert foreign.connection is not None
    asyncio.get_running_loop().call_later(0.05, foreign.connection.write, second)
    return web.Response(body=body, content_type="application/json")


async def refuses(_foreign: Foreign, _payload: EvmPayload) -> web.StreamResponse:
    """Sends nothing, and says why."""
    return web.json_response({"success": False, "errorReason": "insufficient_funds", "transaction": ""})


@asynccontextmanager
async def run_foreign(chain: ChainUnderTest, settling: Settling = honest) -> AsyncIterator[Foreign]:
    """The facilitator on a free port; it sends from the chain's relayer."""
    foreign = Foreign(chain, chain.wallets.relayer, [chain.wallets.relayer.address], settling)

    def supported() -> dict[str, Any]:
        kind = {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "extra": None}
        return {"kinds": [kind], "extensions": [], "signers": {"eip155:*": foreign.signers}}

    async def settle(request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        foreign.settles.append(asked)
        assert isinstance(request.transport, asyncio.WriteTransport)
        foreign.connection = request.transport
        payload = parse_payload(asked["paymentPayload"]["payload"])
        assert isinstance(payload, EvmPayload)
        return await foreign.settling(foreign, payload)

    async with facilitating(supported, settle) as foreign.url:
        yield foreign


@asynccontextmanager
async def facilitating(
    supported: Callable[[], dict[str, Any]], settle: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[str]:
    """The URL of a facilitator that calls every payment valid."""

    async def tell(_request: web.Request) -> web.Response:
        return web.json_response(supported())

    async def verify(_request: web.Request) -> web.Response:
        return web.json_response({"isValid": True, "invalidReason": None, "payer": "0x" + "00" * 20})

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
