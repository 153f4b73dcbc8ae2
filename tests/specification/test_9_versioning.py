"""Specification 9: one API version, one protocol version, one scheme."""

from __future__ import annotations

import asyncio
import base64
import json

from tests.gateway.recording_target import Received, Writer
from tests.specification.client import header
from tests.specification.program import PAYGATES, Program, bearer_header
from tests.specification.rows import row, row_on_both
from tests.specification.world import World


@row_on_both("9.1")
async def test_the_api_is_v1_in_paths_and_bodies(program: Program) -> None:
    bearer = bearer_header((await program.login(program.new_wallet()))["accessToken"])
    query = {"walletAddress": program.new_wallet().address}
    asking = await program.sale()
    answers = [
        await program.create(),
        await program.gateway("GET", PAYGATES),
        await program.gateway("GET", "/api/v1/auth/message", params=query),
        await program.hub("GET", "/api/v1/auth/message", params=query),
        await program.hub("GET", "/api/v1/auth/me", headers=bearer),
        await program.hub("GET", "/api/v1/history", params={"limit": "1"}, headers=bearer),
        await program.hub("GET", "/api/v1/supported"),
        await program.hub("POST", "/api/v1/verify", json=asking),
        await program.hub("POST", "/api/v1/settle", json=asking),
        await program.call(await program.gate()),
    ]
    assert [answer.status for answer in answers] == [201, *[200] * 8, 402]
    assert {answer.body["apiVersion"] for answer in answers} == {"v1"}
    others = [await program.gateway("GET", f"/api/{version}/paygates") for version in ("v2", "v0", "V1")]
    assert [answer.status for answer in others] == [404] * 3


@row("9.2")
async def test_the_protocol_is_version_1_in_payloads_requests_and_every_answer(world: World) -> None:
    gate = await world.gate(credits=9, method="GET,POST")
    signed = world.signed(await world.wanted(gate))

    async def boasting(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nx402-version: 2\r\ncontent-length: 2\r\n\r\nhi")

    preflight = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    dead = await world.gate(targetUrl="http://127.0.0.1:9/")
    answers = [
        await world.call(gate),
        await world.call(gate, header({**signed, "x402Version": 2})),
        await world.call(gate, header(signed)),
        await world.call(gate, header(signed), "PUT"),
        await world.call(gate, method="OPTIONS", headers=preflight),
        await world.call(gate, "A" * 60_000),
        await world.call(dead, await world.payment(dead)),
        await world.gateway("GET", "/nothing"),
        await world.gateway("POST", PAYGATES, data=b"{"),
        await world.gateway("GET", "/healthz"),
        await world.hub("GET", "/supported"),
        await world.hub("GET", "/verify"),
        await world.verify({**world.asking(), "x402Version": 2}),
        await world.settle({**world.asking(), "x402Version": 2}),
        await world.verify(world.asking()),
    ]
    assert [answer.status for answer in answers] == [
        *(402, 402, 200, 405, 204, 431, 502),
        *(404, 400, 200),
        *(200, 405, 200, 200, 200),
    ]
    assert [answer.headers.get("x402-version") for answer in answers] == ["1"] * len(answers)
    assert answers[1].error["code"] == "PAYMENT_INVALID"
    assert answers[0].body["x402Version"] == answers[1].body["x402Version"] == 1
    assert (answers[12].body["isValid"], answers[13].body["status"]) == (False, "failed")
    kinds = answers[10].body["kinds"]
    assert [kind["x402Version"] for kind in kinds if not kind["network"].count(":")] == [1, 1]
    world.target.answer = boasting
    reader, writer = await asyncio.open_connection(*world.gateway_url.removeprefix("http://").split(":"))
    request = f"GET /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {header(signed)}\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert body == b"hi"
    versions = [line.strip() for line in head.lower().split(b"\r\n") if line.startswith(b"x402-version")]
    assert versions == [b"x402-version: 1"]


@row_on_both("9.3")
async def test_the_scheme_is_exact(program: Program) -> None:
    gate = await program.gate()
    assert [entry["scheme"] for entry in (await program.asked(gate))["accepts"]] == ["exact"]
    assert {kind["scheme"] for kind in (await program.hub("GET", "/supported")).body["kinds"]} == {"exact"}
    paid = await program.payment(gate)
    refused = await program.call(gate, header({**json.loads(base64.b64decode(paid)), "scheme": "upto"}))
    assert refused.refusal == (402, "PAYMENT_INVALID", "payment")
    for name in ("paymentPayload", "paymentRequirements"):
        sale = await program.sale()
        sale[name]["scheme"] = "upto"
        assert (await program.verify(sale)).body["invalidReason"] == "unsupported_scheme"
        assert (await program.settle(sale)).body["errorReason"] == "unsupported_scheme"
    assert (await program.call(gate, paid)).status == 200
