"""What is below a slug: one reading of every path, no unpaid hit, no way out of the target's folder (contract 3.4)."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.described_answers import seen_raw
from tests.gateway.market import Market
from tests.gateway.path_tricks import GOOD, escapes, tricks

# What a path that is not forwarded is told: that it cannot be read in one way only, or that nothing is there.
REFUSED = {(400, "INVALID_PARAMETER"), (404, "NOT_FOUND")}


async def raw(url: str, target: bytes, *lines: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer to a request line that no client would send."""
    status, headers, _ = await told(url, target, *lines)
    return status, headers


async def told(url: str, target: bytes, *lines: bytes) -> tuple[int, dict[str, str], str | None]:
    """The same, with the error's code where there is one."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        head = [b"GET %b HTTP/1.1" % target, b"Host: %b" % parts.netloc.encode(), b"Connection: close", *lines]
        writer.write(b"\r\n".join(head) + b"\r\n\r\n")
        head_bytes = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        body = await asyncio.wait_for(reader.read(), 20)
        seen_raw("GET", url, head_bytes, body)
    finally:
        writer.close()
    answer = head_bytes.decode("latin-1")
    status, *rest = answer[:-4].split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    error = json.loads(body).get("error") if headers.get("content-type") == "application/json" else None
    return int(status.split(" ")[1]), headers, error["code"] if isinstance(error, dict) else None


async def balance(market: Market, payment: str) -> int:
    (held,) = (await market.ask("GET", "/api/v1/credits", headers={"X-Payment": payment})).json()["data"]
    remaining: int = held["remaining"]
    return remaining


async def folder_gate(market: Market, **fields: object) -> dict[str, Any]:
    return await market.gate(targetUrl=market.target.url + "/base/dir", credits=5000, **fields)


async def test_no_path_reaches_the_target_unpaid(market: Market) -> None:
    gate = await folder_gate(market, allowSubpaths=True)
    slug = gate["slug"].encode()
    paths = tricks(slug)
    assert len(paths) >= 300
    for path in [*paths, *(b"/" + slug + good for good in GOOD)]:
        status, _, code = await told(gate["accessUrl"], path)
        assert (status, code) in REFUSED | {(402, None)}, path
    assert market.target.requests == []


@pytest.mark.parametrize("below", [True, False])
async def test_no_path_leaves_the_targets_folder(market: Market, below: bool) -> None:  # noqa: FBT001 - a case
    gate = await folder_gate(market, allowSubpaths=below)
    payment = await market.payment(gate)
    assert (await market.pay(gate, payment)).status == 200
    line = b"X-Payment: " + payment.encode()
    market.target.requests.clear()
    served = 0
    for path in tricks(gate["slug"].encode()):
        status, headers, code = await told(gate["accessUrl"], path, line)
        assert (status, code) in REFUSED | {(200, None)}, path
        served += status == 200
        assert len(market.target.requests) == served, path
        if status == 200:
            seen = market.target.requests[-1].path
            assert seen.split("?")[0].startswith("/base/dir"), path
            assert not escapes(seen, "/base/dir"), (path, seen)
        else:
            assert "x-purchase-id" not in headers
    assert await balance(market, payment) == 4999 - served  # what was refused cost nothing


async def test_plain_paths_below_the_slug_are_forwarded_as_they_came(market: Market) -> None:
    gate = await folder_gate(market, allowSubpaths=True)
    payment = await market.payment(gate)
    line = b"X-Payment: " + payment.encode()
    for path in GOOD:
        status, headers = await raw(gate["accessUrl"], b"/" + gate["slug"].encode() + path, line)
        assert status == 200, path
        assert headers["x-purchase-id"]
        assert market.target.requests[-1].path == "/base/dir" + path.decode()


async def test_the_callers_query_follows_the_targets_own_below_the_slug_too(market: Market) -> None:
    gate = await market.gate(targetUrl=market.target.url + "/v1/?key=1", allowSubpaths=True, credits=3)
    payment = await market.payment(gate)
    await market.ask("GET", gate["accessUrl"] + "/a/b?x=2", headers={"X-Payment": payment})
    await market.ask("GET", gate["accessUrl"], headers={"X-Payment": payment})
    assert [request.path for request in market.target.requests] == ["/v1/a/b?key=1&x=2", "/v1/?key=1"]


async def test_without_the_setting_there_is_nothing_below_a_slug(market: Market) -> None:
    gate = await folder_gate(market)
    payment = await market.payment(gate)
    for path in ("/", "/a", "/a/b"):
        answer = await market.ask("GET", gate["accessUrl"] + path, headers={"X-Payment": payment})
        assert (answer.status, answer.error_code) == (404, "NOT_FOUND")
    changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"allowSubpaths": True})
    assert changed.json()["allowSubpaths"] is True
    assert (await market.ask("GET", gate["accessUrl"] + "/a", headers={"X-Payment": payment})).status == 200
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"allowSubpaths": False})
    again = await market.ask("GET", gate["accessUrl"] + "/a", headers={"X-Payment": payment})
    assert (again.status, again.error_code) == (404, "NOT_FOUND")
    assert [request.path for request in market.target.requests] == ["/base/dir/a"]


UPGRADES = {
    "handshake": (
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "without a key": (b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket"),
    "without the option of Connection": (b"Upgrade: websocket/13",),
    "one of several": (b"Upgrade: h2c, websocket", b"Upgrade: TLS/1.0", b"Connection: upgrade"),
}


@pytest.mark.parametrize("kind", ["target", "stream", "file"])
async def test_a_websocket_is_refused_before_anything_is_paid(market: Market, kind: str) -> None:
    if kind == "file":
        form = aiohttp.FormData({"price": "0.01", "resourceType": "file", "credits": "5"}, default_to_multipart=True)
        form.add_field("file", b"content", filename="a.bin")
        token = await market.buyer.login(market.stack.gateway_url)
        created = await market.ask("POST", "/api/v1/paygates", form=form, headers={"Authorization": f"Bearer {token}"})
        gate = created.json()
    else:
        gate = await market.gate(credits=5, stream=kind == "stream")
    payment, _ = await market.buy(gate)
    slug = gate["slug"].encode()
    unused = await market.payment(gate)
    for lines in UPGRADES.values():
        for paid in ((), (b"X-Payment: " + payment.encode(),), (b"X-Payment: " + unused.encode(),)):
            status, headers, code = await told(gate["accessUrl"], b"/" + slug, *lines, *paid)
            assert (status, code) == (400, "INVALID_PARAMETER"), (lines, paid)
            assert not {name for name in headers if name.startswith(("x-credits", "x-purchase", "x-payment-"))}
    assert await balance(market, payment) == 4
    assert (await market.ask("GET", "/api/v1/credits", headers={"X-Payment": unused})).json()["data"] == []
    assert len(market.target.requests) == (kind != "file")
    other = await told(
        gate["accessUrl"], b"/" + slug, b"Connection: Upgrade", b"Upgrade: h2c", b"X-Payment: " + payment.encode()
    )
    assert other[0] == 200  # another protocol is not taken up, and nothing is refused for it


# Headers of the owner's own


async def test_the_owners_headers_are_sent_and_never_shown_again(market: Market) -> None:
    secret = "sk_live_51-hush"
    gate = await market.gate(credits=9, targetHeaders={"X-Api-Key": secret, "accept": "application/json"})
    assert gate["targetHeaders"] == ["X-Api-Key", "accept"]
    path = f"/api/v1/paygates/{gate['id']}"
    for answer in (await market.ask("GET", path), await market.ask("PUT", path, body={"title": "x"})):
        assert answer.json()["targetHeaders"] == ["X-Api-Key", "accept"]
        assert secret.encode() not in answer.body
    payment = await market.payment(gate)
    answer = await market.pay(gate, payment, x_api_key="forged", X_API_KEY="forged", Accept="text/html")
    assert answer.status == 200
    assert secret not in str(answer.headers)
    spoofed = await raw(
        gate["accessUrl"],
        b"/" + gate["slug"].encode(),
        b"X-Payment: " + payment.encode(),
        b"x_api_key: forged",
        b"X_Api-Key: forged",
        b"ACCEPT: */*",
    )
    assert spoofed[0] == 200
    for request in market.target.requests:
        assert request.header("x-api-key") == secret
        assert request.header("accept") == "application/json"
        assert b"forged" not in request.raw_head


async def test_the_owners_headers_can_be_replaced_and_taken_away(market: Market) -> None:
    gate = await market.gate(credits=9)
    payment = await market.payment(gate)
    path = f"/api/v1/paygates/{gate['id']}"
    for headers in ({}, {"X-Key": "1"}, {"X-Key": "2", "X-Other": ""}, {}):
        await market.ask("PUT", path, body={"targetHeaders": headers})
        assert (await market.pay(gate, payment, x_key="the caller's")).status == 200
    seen = [(request.header("x-key"), request.header("x-other")) for request in market.target.requests]
    assert seen == [("the caller's", None), ("1", None), ("2", ""), ("the caller's", None)]


async def test_the_owners_headers_stand_beside_a_signature(market: Market) -> None:
    gate = await market.gate(targetHeaders={"X-Key": "1"}, headerAuthMode="hmac")
    assert (await market.buy(gate))[1].status == 200
    (request,) = market.target.requests
    assert request.header("x-key") == "1"
    assert request.header("signature") is not None


async def test_every_path_has_one_spelling_and_another_is_refused(market: Market) -> None:
    """Whoever stands in front judges paths as they are sent: what he keeps out must not come in under another name."""
    gate = await market.gate()
    slug = gate["slug"]
    other = f"%{ord(slug[0]):02x}{slug[1:]}"
    for path in (
        "//api/v1/paygates",
        "/api//v1/paygates",
        "/api/v1/paygates/",
        "/api/v1/auth/message/",
        "/hub/api/v1/auth/me/",
        "/%61pi/v1/paygates",
        "/api%2Fv1/paygates",
        "/api/v1/paygates%2f1",
        "/api/v1/pay%67ates",
        "//hub/supported",
        "/%68ub/supported",
        "/hub%2Fsupported",
        "/hub/%73upported",
        "/hub///supported",
        "/hub/api/v1//auth/me",
        "//healthz",
        "/health%7A",
        "/files%5c1",
        f"//{slug}",
        f"/{other}",
        f"/{other}/below",
        f"/{slug}%2Fbelow",
        f"/x/%2E%2E/{slug}",
    ):
        refused, _, code = await told(gate["accessUrl"], path.encode())
        assert (refused, code) == (400, "INVALID_PARAMETER"), path
    for path, status in (
        ("/api/v1/paygates", 200),
        ("/hub/supported", 200),
        ("/hub//supported", 200),  # as clients join a URL that ends with a slash
        ("/healthz?a=%61//b", 200),
        ("/hub/payments/eip155%3A84532/0x1/0x2", 400),
        (f"/{slug}", 402),
    ):
        assert (await told(market.stack.gateway_url + path.partition("?")[0], path.encode()))[0] == status, path
