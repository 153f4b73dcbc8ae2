"""What the program itself sends: to targets, and to a facilitator that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.recording_target import Received, RecordingTarget, Writer, recording_target
from tests.golden.place import PAYEE, recorded_at
from tests.golden.recording import exchange
from tests.specification.client import Chain, Http, Json, Wallet
from tests.specification.world import World
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.settings.model import Role

CALLERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip",
    "User-Agent": "golden/1",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "Cookie": "a=b",
    "Forwarded": "for=1.2.3.4",
    "X-Forwarded-For": "1.2.3.4",
    "X_Own": "x",
    "X-Payment-Network": "base-sepolia",
    "X-Payer": "somebody",
    "Connection": "X-Hop",
    "X-Hop": "1",
    "X-Own": "1",
}


async def test_sent_to_targets(world: World, target: RecordingTarget) -> None:
    with recorded_at(world, "sent_to_targets") as place:

        async def sent(title: str, gate: Json, paid: str, method: str = "GET", below: str = "", **given: Any) -> None:
            headers = {"X-Payment": paid, **given.get("headers", {})}
            said = await exchange(method, gate["accessUrl"] + below, headers, given.get("content"))
            assert said.status == 200, said
            place.recording.keep(title, target.requests[-1].raw_head, target.requests[-1].body)

        plain = {"method": "GET, POST", "credits": 5}
        gate = await place.gate("golden-sent", allowSubpaths=True, targetUrl=target.url + "/base?plan=basic", **plain)
        paid = await world.payment(gate)
        await sent("a plain call", gate, paid)
        await sent("headers of the caller", gate, paid, headers=CALLERS)
        await sent("a path and a query", gate, paid, below="/a/b?c=d&plan=gold")
        await sent("a body", gate, paid, "POST", headers={"Content-Type": "text/plain"}, content=b"body")
        await sent("HEAD", gate, paid, "HEAD")
        own = await place.gate(
            "golden-sent-own", targetHeaders={"X-Api-Key": "secret", "Accept": "text/plain"}, **plain
        )
        await sent("headers of the owner", own, await world.payment(own), headers=CALLERS)
        signing = await place.gate("golden-sent-signed", headerAuthMode="hmac", **plain)
        await sent("signed", signing, await world.payment(signing), "POST", content=b"body")


@pytest.mark.parametrize(
    ("version", "network", "subject"),
    [
        (1, "base-sepolia", "sent_to_a_facilitator"),
        (2, "eip155:84532", "sent_to_a_facilitator_of_version_2"),
    ],
)
async def test_sent_to_a_facilitator(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    http: Http,
    version: int,
    network: str,
    subject: str,
) -> None:
    said: dict[str, object] = {
        "/supported": {
            "kinds": [{"x402Version": version, "scheme": "exact", "network": network}],
            "extensions": ["confirm"],
            "signers": {"eip155:*": [embedded_chain.wallets.relayer.address]},
        },
        "/verify": {"isValid": True, "payer": PAYEE},
        "/settle": {"success": True, "transaction": "0x" + "ab" * 32, "network": network, "payer": PAYEE},
    }

    async def answer(request: Received, writer: Writer) -> None:
        body = json.dumps(said[request.path]).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async with recording_target() as facilitator:
        facilitator.answer = answer
        settings: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": facilitator.url}
        async with composed(embedded_chain.url, tmp_path / "gateway.db", **settings) as url:
            chain, buyer = Chain(USDC_ADDRESS), Wallet(embedded_chain.wallets.buyer.private_key_hex)
            nothing = tmp_path / "nothing"
            world = World(url, url, target, http, nothing, nothing, embedded_chain.url, chain, buyer)
            with recorded_at(world, subject) as place:
                host = facilitator.url.removeprefix("http://")
                place.recording.names[host] = "facilitator.example"
                gate = await place.gate("golden-abroad", title="Sold", description="abroad")
                await world.call(gate, await world.payment(gate))
                trusting = await place.gate("golden-abroad-trusting", assumeValid=True)
                await world.call(trusting, await world.payment(trusting))
                wanted = [one for one in facilitator.requests if one.path != "/supported"]
                first = next(one for one in facilitator.requests if one.path == "/supported")
                for title, one in zip(
                    ("what it settles", "verify", "settle", "verify, trusted", "settle, trusted"),
                    (first, *wanted),
                    strict=True,
                ):
                    place.recording.keep(title, one.raw_head, one.body)
