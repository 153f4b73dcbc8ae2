"""What goes out at a gate where something fails: the target, the hub, the caller's patience."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from sqlite3 import connect
from types import SimpleNamespace
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
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.settings.model import Role

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


async def test_limited(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    http: Http,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limits' clock stands still: else what is counted ages while a slow machine asks."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr("tollkeeper.gateway.limiting.time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    few = RequestLimits(unpaid=2, api=6, wallet=2, login=1)
    proxies = (ip_network("127.0.0.1"),)
    settings = {"request_limits": few, "trusted_proxies": proxies}
    async with apart(tmp_path, embedded_chain, target, http, **settings) as (world, _):
        with recorded_at(world, "limited") as place:
            gate = await place.gate("golden-limited")
            client: dict[str, Any] = {"headers": {"X-Forwarded-For": "203.0.113.1"}}
            for title in ("first", "second", "one too many"):
                await place.call(f"an unpaid call: {title}", gate, **client)
            await place.call("an unreadable payment then", gate, "?", **client)
            await place.call("a payment then", gate, await world.payment(gate), **client)
            query = f"?walletAddress={world.buyer.address}"
            for title in ("first", "one too many"):
                await place.gateway(f"a login: {title}", "GET", "/api/v1/auth/message" + query, **client)
            path = f"/api/v1/paygates/{gate['id']}"
            await place.gateway("management", "GET", path, **client)
            for _ in range(5):
                await world.http.send("GET", world.gateway_url + path, **client)
            await place.gateway("management: one too many", "GET", path, **client)


async def test_faults(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, http: Http) -> None:
    """Somebody took tables away."""
    async with apart(tmp_path, embedded_chain, target, http) as (world, _):
        with recorded_at(world, "faults") as place:
            gate = await place.gate("golden-fault", credits=3)
            paid, _answer = await world.buy(gate)
            with closing(connect(world.database)) as database:
                database.execute("ALTER TABLE credits RENAME TO gone")
                await place.call("a held credit cannot be spent", gate, paid)
                database.execute("ALTER TABLE gone RENAME TO credits")
                database.execute("ALTER TABLE paygates RENAME TO gone")
            await place.gateway("no gate can be read", "GET", f"/api/v1/paygates/{gate['id']}")
