"""What a target's answer may say behind a gate: nothing that speaks for the gateway, or to whom it stands behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.gateway.market import Market
from tests.gateway.recording_target import Received, Writer, answer_ok

BODY = b'{"served":true}'


def says(
    *lines: bytes, status: bytes = b"200 OK", before: bytes = b""
) -> Callable[[Received, Writer], Awaitable[None]]:
    """Answers with these header lines."""

    async def answer(_request: Received, writer: Writer) -> None:
        head = b"".join(line + b"\r\n" for line in (b"content-type: application/json", *lines))
        writer.write(b"%bHTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (before, status, head, len(BODY), BODY))
        await writer.drain()

    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_target_that_asks_for_payment_failed_and_nobody_is_told_to_pay(
    market: Market,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    gate = await market.gate(credits=3, stream=stream)
    market.target.answer = says(b"x-payment-response: mine", status=b"402 Payment Required")
    payment, answer = await market.buy(gate)
    assert (answer.status, answer.error_code) == (502, "UPSTREAM_INVALID")
    assert answer.json()["error"]["details"]["reason"] == "target_asks_for_payment"
    assert answer.headers["x-credits-remaining"] == "2"
    assert "accepts" not in answer.json()
    market.target.answer = answer_ok
    assert (await market.pay(gate, payment)).headers["x-credits-remaining"] == "1"


async def test_a_credit_that_a_target_answered_by_asking_for_payment_is_given_back_where_the_gate_says_so(
    market: Market,
) -> None:
    gate = await market.gate(credits=3, onFailure="restore")
    market.target.answer = says(status=b"402 Payment Required")
    _, answer = await market.buy(gate)
    assert (answer.status, answer.headers["x-credits-remaining"]) == (502, "3")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_may_read_every_header_that_the_target_sent_beside_ours(
    market: Market,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    gate = await market.gate(credits=2, stream=stream)
    market.target.answer = says(
        b"Link: <https://x.example?page=2>; rel=next",
        b"Link: <https://x.example?page=9>; rel=last",
        b"X-Total-Count: 99",
        b"X-Internal: 1",
        b"Connection: x-internal",
        b"Set-Cookie: a=b",
        b"Access-Control-Expose-Headers: Link",
    )
    _, answer = await market.buy(gate)
    exposed = [name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")]
    assert len(exposed) == len(set(exposed))
    ours = {"x-payment-response", "x-credits-remaining", "x-credit-token", "x-request-id", "retry-after"}
    assert set(exposed) >= ours | {"link", "x-total-count", "content-type"}
    assert not {"set-cookie", "x-internal", "connection"} & set(exposed)


async def test_what_speaks_to_a_server_in_front_stays_with_the_gateway(market: Market) -> None:
    gate = await market.gate(credits=2)
    market.target.answer = says(
        b"X-Accel-Redirect: /internal/secrets", b"X-Sendfile: /etc/passwd", b"Vercel-CDN-Cache-Control: max-age=9"
    )
    _, answer = await market.buy(gate)
    assert (answer.status, answer.json()) == (200, json.loads(BODY))
    told = {name.lower() for name in answer.headers}
    assert not told & {"x-accel-redirect", "x-sendfile", "vercel-cdn-cache-control"}
    assert base64.b64decode(answer.headers["x-payment-response"])


@pytest.mark.parametrize(
    "line", [b"Connection: close", b"Transfer-Encoding: chunked", b"Content-Length: 11", b"Connection: keep-alive"]
)
async def test_an_informational_answer_is_skipped_whatever_headers_it_has(market: Market, line: bytes) -> None:
    gate = await market.gate(credits=3)
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n" + line + b"\r\n\r\n"
    market.target.answer = says(before=hints)
    payment, answer = await market.buy(gate)
    assert (answer.status, answer.json()) == (200, json.loads(BODY))
    assert (await market.pay(gate, payment)).status == 200
    assert len({received.reader for received in market.target.requests}) == 1, "its connection is kept"


@pytest.mark.parametrize("name", ["X.Payer", "X~Payer", "X!Payer", "X_Payer", "X-Paygate.Slug", "X.Forwarded.For"])
async def test_a_header_that_a_target_may_read_as_the_gateways_is_refused_and_uses_nothing(
    market: Market, name: str
) -> None:
    gate = await market.gate(credits=3)
    payment, _ = await market.buy(gate)
    refused = await market.ask("GET", gate["accessUrl"], headers={"X-Payment": payment, name: "liar"})
    assert (refused.status, refused.error_code) == (400, "INVALID_PARAMETER")
    assert len(market.target.requests) == 1
    assert (await market.pay(gate, payment)).headers["x-credits-remaining"] == "1"


async def test_a_callers_parameter_does_not_override_the_owners(market: Market) -> None:
    gate = await market.gate(targetUrl=market.target.url + "/t?key=OWNERS&plan=basic", credits=9, headerAuthMode="hmac")
    gate["accessUrl"] += "?city=Oslo&plan=pro&PLAN[]=pro&k%65y=mine&limit=10"
    _, answer = await market.buy(gate)
    assert answer.status == 200
    assert market.target.requests[-1].path == "/t?key=OWNERS&plan=basic&city=Oslo&limit=10"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_redirect_within_what_is_sold_leads_through_the_gate(
    market: Market,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    gate = await market.gate(
        targetUrl=market.target.url + "/items?key=OWNERS-KEY", credits=5, allowSubpaths=True, stream=stream
    )
    to = market.target.url.encode() + b"/items/?key=OWNERS-KEY&a=b"
    market.target.answer = says(b"Location: " + to, b"Content-Location: 7", status=b"307 Temporary Redirect")
    payment = await market.payment(gate)
    redirected = await market.pay(gate, payment)
    assert (redirected.status, redirected.headers["location"]) == (307, gate["accessUrl"] + "/?a=b")
    assert redirected.headers["content-location"] == market.target.url + "/7"
    market.target.answer = answer_ok
    followed = await market.ask("GET", redirected.headers["location"], headers={"X-Payment": payment})
    assert (followed.status, followed.headers["x-credits-remaining"]) == (200, "3")
    assert market.target.requests[-1].path == "/items/?key=OWNERS-KEY&a=b"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"Location: /login?key=OWNERS-KEY", "owner"),
        (b"Location: https://x.example/?t=sk-live-12345", "owner"),
        (b"Refresh: 0;url=/login?key=OWNERS-KEY", "owner"),
        (b"Content-Location: /v2/items?key=OWNERS-KEY", "owner"),
        (b"Location: /items", "leads back"),
        (b"Location: ?key=OWNERS-KEY", "leads back"),
        (b"Refresh: 5", "leads back"),
        (b"Location: http://[", "cannot be read"),
    ],
)
@pytest.mark.parametrize("on_failure", ["consume", "restore"])
async def test_a_location_that_shows_the_owners_secrets_or_leads_nowhere_else_is_a_502(
    market: Market, line: bytes, why: str, on_failure: str
) -> None:
    gate = await market.gate(
        targetUrl=market.target.url + "/items?key=OWNERS-KEY",
        credits=5,
        targetHeaders={"X-Api-Key": "sk-live-12345"},
        onFailure=on_failure,
    )
    market.target.answer = says(line, status=b"302 Found")
    _, answer = await market.buy(gate)
    assert (answer.status, answer.error_code) == (502, "UPSTREAM_INVALID")
    assert why in answer.json()["error"]["message"]
    assert b"OWNERS-KEY" not in answer.body
    assert answer.headers["x-credits-remaining"] == ("4" if on_failure == "consume" else "5")


async def test_a_redirect_elsewhere_is_passed_with_its_whole_address(market: Market) -> None:
    gate = await market.gate(targetUrl=market.target.url + "/items", credits=5)
    market.target.answer = says(b"Location: /v2/items", status=b"302 Found")
    payment = await market.payment(gate)
    answer = await market.pay(gate, payment)
    assert (answer.status, answer.headers["location"]) == (302, market.target.url + "/v2/items")
