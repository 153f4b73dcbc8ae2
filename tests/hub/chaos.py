"""An HTTP proxy between a hub and its node that loses, delays and falsifies on command."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import aiohttp
from aiohttp import web

LATE_SECONDS: Final = 0.8


class Act(Enum):
    """What becomes of one HTTP request."""

    PASS = auto()
    CUT = auto()  # the connection breaks; the node never sees it
    LOSE_ANSWER = auto()  # the node carries it out; the connection breaks before its answer
    LATE = auto()  # the node sees it after LATE_SECONDS
    HANG = auto()  # nothing happens until the caller gives up; the node never sees it
    SERVER_ERROR = auto()  # HTTP 500
    TOO_MANY = auto()  # HTTP 429
    SWALLOW = auto()  # the node never sees it; `falsify` makes an answer of nothing


_ONE_CALL: Final = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "one call at a time"}}


def _pass(_methods: list[str]) -> Act:
    return Act.PASS


def _unchanged(_call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return answer


def recording(asked: list[list[str]], act: Act = Act.PASS) -> Callable[[list[str]], Act]:
    """Does that to everything, and keeps the methods of each HTTP request."""

    def judge(methods: list[str]) -> Act:
        asked.append(methods)
        return act

    return judge


@dataclass
class ChaosNode:
    """`act` judges each HTTP request by its methods; `falsify` may change each answer; `calls` counts methods.

    `judged` are the calls that `act` is asked about, and of whose answers `falsify` is. Where it does not take batches
    each call is a request of its own, as of some nodes; others refuse more calls in a batch than `batches_max`.
    """

    url: str = ""
    act: Callable[[list[str]], Act] = _pass
    falsify: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = _unchanged
    after_pass: Callable[[list[str]], object] = lambda _methods: None
    calls: Counter[str] = field(default_factory=Counter)
    judged: list[dict[str, Any]] = field(default_factory=list)
    takes_batches: bool = True
    batches_max: int = 1_000

    def on(self, method: str, act: Act, *, times: int = 1_000_000) -> None:
        """Do that to the next requests that hold this method."""
        left = times

        def judge(methods: list[str]) -> Act:
            nonlocal left
            if method not in methods or left == 0:
                return Act.PASS
            left -= 1
            return act

        self.act = judge

    def calm(self) -> None:
        """Pass everything as it is."""
        self.act, self.falsify = _pass, _unchanged


def _refusal(chaos: ChaosNode, act: Act, asked: Any) -> web.Response | None:
    """The answer of a node that fails, or takes no such batch."""
    if act is Act.TOO_MANY:
        return web.Response(text="daily request count exceeded, request rate limited", status=429)
    if act is Act.SERVER_ERROR or (isinstance(asked, list) and not chaos.takes_batches):
        return web.json_response(_ONE_CALL, status=500 if act is Act.SERVER_ERROR else 200)
    if isinstance(asked, list) and len(asked) > chaos.batches_max:
        words = f"Batch of more than {chaos.batches_max} requests are not allowed on free tier"
        return web.json_response([{"id": asked[0]["id"], "error": {"code": 31, "message": words}}], status=500)
    return None


@asynccontextmanager
async def run_chaos(node_url: str) -> AsyncIterator[ChaosNode]:
    """The proxy in front of that node, on a free port."""
    chaos = ChaosNode()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body)
        calls = asked if isinstance(asked, list) else [asked]
        methods = [call["method"] for call in calls]
        chaos.calls.update(methods)
        chaos.judged = calls
        act = chaos.act(methods)
        assert request.transport is not None
        refusal = _refusal(chaos, act, asked)
        if refusal is not None:
            return refusal
        if act in {Act.LATE, Act.HANG}:
            await asyncio.sleep(LATE_SECONDS if act is Act.LATE else 30)
        if act in {Act.CUT, Act.HANG}:
            request.transport.abort()
            return web.Response()
        if act is Act.SWALLOW:
            made_up = [chaos.falsify(call, {"jsonrpc": "2.0", "id": call["id"], "result": None}) for call in calls]
            return web.json_response(made_up if isinstance(asked, list) else made_up[0])
        async with http.post(node_url, data=body, headers={"Content-Type": "application/json"}) as response:
            answered = json.loads(await response.read())
        chaos.after_pass(methods)
        if act is Act.LOSE_ANSWER:
            request.transport.abort()
            return web.Response()
        chaos.judged = calls  # another request may have come meanwhile
        if isinstance(answered, list):
            by_id = {call["id"]: call for call in calls}
            return web.json_response([chaos.falsify(by_id[answer["id"]], answer) for answer in answered])
        return web.json_response(chaos.falsify(calls[0], answered))

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await site.start()
        host, port = runner.addresses[0][:2]
        chaos.url = f"http://{host}:{port}/"
        try:
            yield chaos
        finally:
            await runner.cleanup()
