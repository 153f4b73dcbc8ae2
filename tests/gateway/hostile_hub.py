"""An HTTP proxy between a gateway and its facilitator that loses and falsifies settle answers on command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

Forward = Callable[[], Awaitable[web.Response]]
Settling = Callable[[web.Request, Forward], Awaitable[web.StreamResponse]]


async def pass_on(_request: web.Request, forward: Forward) -> web.StreamResponse:
    """As the hub answers."""
    return await forward()


async def lose_answer(request: web.Request, forward: Forward) -> web.StreamResponse:
    """The hub settles; the gateway never hears of it."""
    await forward()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cut(request: web.Request, _forward: Forward) -> web.StreamResponse:
    """The hub never hears of it."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def settles_but_says(status: int, body: str) -> Settling:
    """The hub settles; the gateway gets another answer."""

    async def answer(_request: web.Request, forward: Forward) -> web.StreamResponse:
        await forward()
        return web.Response(status=status, text=body, content_type="application/json")

    return answer


def says(status: int, body: str) -> Settling:
    """Nothing is settled; the gateway gets this answer."""

    async def answer(_request: web.Request, _forward: Forward) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type="application/json")

    return answer


@dataclass(slots=True)
class HostileHub:
    """`settling` answers `/settle` and `/transfer`, whose requests `settles` keeps; `verifying` answers `/verify`.

    `telling` answers `/payments/`. `supported` may replace the answer of `/supported`.
    While it `is_down` every connection is cut.
    """

    url: str = ""
    settling: Settling = pass_on
    verifying: Settling = pass_on
    telling: Settling = pass_on
    supported: str | None = None
    is_down: bool = False
    settles: list[bytes] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # of every request all that it says


@asynccontextmanager
async def run_hostile_hub(hub_url: str | Callable[[], str]) -> AsyncIterator[HostileHub]:
    """The proxy in front of that hub, wherever it is by then, on a free port."""
    hostile = HostileHub()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        hostile.asked.append(f"{request.method} {request.path_qs} {[*request.headers.items()]} {body.decode()}")

        async def forward() -> web.Response:
            names = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
            where = hub_url if isinstance(hub_url, str) else hub_url()
            async with http.request(request.method, where + request.path_qs, data=body, headers=names) as answer:
                passed = {name: value for name, value in answer.headers.items() if name.lower() == "x-correlation-id"}
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type="application/json", headers=passed
                )

        if hostile.is_down:
            return await cut(request, forward)
        if request.path in {"/settle", "/transfer"}:
            hostile.settles.append(body)
            hostile.signatures.append(request.headers.get("Signature", ""))
            return await hostile.settling(request, forward)
        if request.path == "/verify":
            return await hostile.verifying(request, forward)
        if request.path.startswith("/payments/"):
            return await hostile.telling(request, forward)
        if request.path == "/supported" and hostile.supported is not None:
            return web.Response(text=hostile.supported, content_type="application/json")
        return await forward()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await site.start()
        host, port = runner.addresses[0][:2]
        hostile.url = f"http://{host}:{port}"
        try:
            yield hostile
        finally:
            await runner.cleanup()
