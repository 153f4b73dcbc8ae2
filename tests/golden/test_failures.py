"""What goes out at a gate where something fails: the target, the hub, the caller's patience."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import HostileHub, lose_answer, run_hostile_hub, says
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.golden.place import PAYEE, recorded_at
from tests.specification.client import Chain, Http, Wallet, header
from tests.specification.world import World
from tollkeeper.core.rate_limits import RequestLimits
from tollkeeper.edge.forwarding import Forwarder
from tollkeeper.sandbox.genesis import USDC_ADDRESS
from tollkeeper.settings import Role

TOO_LARGE = 10_485_761


def answering(*parts: bytes) -> Callable[[Received, Writer], Awaitable[None]]:
    """These bytes, and the end."""

    async def answer(_request: Received, writer: Writer) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        writer.close()

    return answer


@asynccontextmanager
async def apart(
    folder: Path, chain: ChainUnderTest, target: RecordingTarget, http: Http, **settings: Any
) -> AsyncIterator[tuple[World, HostileHub]]:
    """A gateway whose hub is another program behind a proxy that loses its answers on command."""
    async with (
        composed(chain.url, folder / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hub,
        composed(chain.url, folder / "gateway.db", role=Role.GATEWAY, hub_url=hub.url, **settings) as url,
    ):
        buyer = Wallet(chain.wallets.buyer.private_key_hex)
        nothing = folder / "nothing.txt"
        token = Chain(USDC_ADDRESS)
        yield World(url, hub_url, target, http, nothing, folder / "gateway.db", chain.url, token, buyer), hub


async def test_upstream(world: World, target: RecordingTarget) -> None:
    with recorded_at(world, "upstream") as place:
        dead = await place.gate("golden-dead", targetUrl="http://127.0.0.1:9/", credits=2)
        paid = await world.payment(dead)
        await place.call("nobody listens", dead, paid)
        await place.call("nobody listens, by HEAD", dead, paid, method="HEAD")
        await place.call("after that, credits used up", dead, paid)
        restoring = await place.gate(
            "golden-restoring", targetUrl="http://127.0.0.1:9/", onFailure="restore", credits=2
        )
        await place.call("the credit is given back", restoring, await world.payment(restoring))
        gate = await place.gate("golden-upstream", credits=20, allowSubpaths=True)
        paid = await world.payment(gate)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % TOO_LARGE
        for title, answer in {
            "no HTTP": answering(b"hello\r\n\r\n"),
            "nothing": answering(),
            "cut in the body": answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
            "too large by its head": answering(head),
            "too large by its body": answering(b"HTTP/1.1 200 OK\r\n\r\n", bytes(TOO_LARGE)),
            "asks for payment itself": answering(b"HTTP/1.1 402 Payment Required\r\nContent-Length: 0\r\n\r\n"),
            "too long a head": answering(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000 + b"\r\n\r\n"),
            "leads back": answering(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
        }.items():
            target.answer = answer
            await place.call(f"the target answers: {title}", gate, paid)


async def test_upstream_in_time(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    http: Http,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A target that takes too long (nobody waits ten minutes here), and one that may not be asked."""
    limits = vars(Forwarder)["relay"].__kwdefaults__
    monkeypatch.setitem(limits, "limits", replace(limits["limits"], response_seconds=0.5))

    async def silent(_request: Received, _writer: Writer) -> None:
        """Never an answer."""

    async with apart(tmp_path, embedded_chain, target, http) as (world, _):
        with recorded_at(world, "upstream_in_time") as place:
            gate = await place.gate("golden-slow")
            target.answer = silent
            await place.call("the target takes too long", gate, await world.payment(gate))
            inside = await place.gate("golden-inside", credits=2)
            paid = await world.payment(inside)
    async with apart(tmp_path, embedded_chain, target, http, allow_private_targets=False) as (world, _):
        with recorded_at(world, "upstream_blocked") as place:
            inside = {**inside, "accessUrl": f"{world.gateway_url}/golden-inside"}
            await place.call("the target's address is not allowed", inside, paid)
            body = {"targetUrl": target.url, "price": "0.01"}
            await place.gateway("no gate there either", "POST", "/api/v1/paygates", body=body)


async def test_unknown_outcomes(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, http: Http
) -> None:
    async with apart(tmp_path, embedded_chain, target, http) as (world, hub):
        with recorded_at(world, "unknown_outcomes") as place:
            place.recording.names[urlsplit(hub.url).netloc] = "hub.example"
            gate = await place.gate("golden-unknown", credits=2)
            paid = await world.payment(gate)
            hub.settling = lose_answer
            await place.call("the hub's answer is lost", gate, paid)
            hub.settling = HostileHub().settling
            await place.call("the same payment again", gate, paid)
            other = await world.payment(gate)
            failed = {"success": False, "status": "failed", "errorReason": "insufficient_funds", "transaction": ""}
            hub.settling = says(200, json.dumps(failed))
            await place.call("the hub did not settle", gate, other)
            hub.settling = says(503, '{"error":{"code":"UNAVAILABLE","message":"no gas"}}')
            await place.call("the hub cannot", gate, await world.payment(gate))
            unpaid = await world.payment(gate)
            moved = world.asking(recipient=PAYEE)["paymentPayload"]
            body, with_payment = {"network": "base-sepolia", **moved["payload"]}, {"X-Payment": header(moved)}
            hub.settling = lose_answer
            await place.gateway("a direct transfer", "POST", "/api/v1/transfer", body=body, headers=with_payment)
            hub.is_down = True
            await place.gateway("the same, no hub", "POST", "/api/v1/transfer", body=body, headers=with_payment)
            await place.call("no hub", gate, unpaid)
            await place.call(
                "no hub, in shape A", gate, unpaid, headers={"Accept": 'application/json;profile="x402-a"'}
            )
            await place.call("no hub, and a held credit", gate, paid)
            await place.gateway("no hub: not ready", "GET", "/readyz")


async def test_limited(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, http: Http) -> None:
    few = RequestLimits(unpaid=2, api=3, wallet=2, login=1)
    async with apart(tmp_path, embedded_chain, target, http, request_limits=few) as (world, _):
        with recorded_at(world, "limited") as place:
            gate = await place.gate("golden-limited")
            for title in ("first", "second", "one too many"):
                await place.call(f"an unpaid call: {title}", gate)
            await place.call("an unreadable payment then", gate, "?")
            query = f"?walletAddress={world.buyer.address}"
            await place.gateway("a login: first", "GET", "/api/v1/auth/message" + query)
            await place.gateway("a login: one too many", "GET", "/api/v1/auth/message" + query)
            await place.gateway("management: last", "GET", f"/api/v1/paygates/{gate['id']}")
            await place.gateway("management: one too many", "GET", f"/api/v1/paygates/{gate['id']}")
