"""Specification 7: the error body, the statuses in use, the codes, and what a failing target means.

What a PayGate says of a refused payment has status 402 in place of 400 (contract 4.5).
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.engines import beside
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.specification.client import Answer, Http, Wallet, header, payment
from tests.specification.other_network import base_world
from tests.specification.program import PAYGATES, Program, ProgramOfItsOwn, bearer_header
from tests.specification.rows import row, row_on_both
from tests.specification.world import World
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.edge.target.forwarder import Forwarder

SIZE_LIMIT_BYTES = 10_485_760


async def refusals(program: Program) -> list[Answer]:
    """Refusals of each type, by gateway and hub."""
    gate = await program.gate()
    dead = await program.gate(targetUrl="http://127.0.0.1:9/")
    return [
        await program.create(price="x"),
        await program.verify({}),
        await program.gateway("GET", "/no-such-gate"),
        await program.hub("GET", "/nothing"),
        await program.call(gate, method="PUT"),
        await program.hub("GET", "/api/v1/auth/me"),
        await program.gateway("GET", "/api/v1/auth/me", headers=bearer_header("x")),
        await program.call(gate, "unreadable"),
        await program.call(gate, await program.underpayment(gate)),
        await program.call(dead, await program.payment(dead)),
    ]


@row_on_both("7-error.type")
async def test_error_type_is_one_of_four(program: Program) -> None:
    types = [answer.error["type"] for answer in await refusals(program)]
    assert types == [*["validation"] * 5, *["authentication"] * 2, *["payment"] * 2, "server"]


@row_on_both("7-error.code")
async def test_error_code_is_a_string(program: Program) -> None:
    for answer in await refusals(program):
        assert re.fullmatch(r"[A-Z][A-Z_]+", answer.error["code"])


@row_on_both("7-error.message")
async def test_error_message_is_for_humans(program: Program) -> None:
    for answer in await refusals(program):
        assert " " in answer.error["message"]
        assert answer.error["message"] != answer.error["code"]


@row_on_both("7-apiVersion")
async def test_refusals_carry_the_api_version(program: Program) -> None:
    assert {answer.body["apiVersion"] for answer in await refusals(program)} == {"v1"}


@row_on_both("7-timestamp")
async def test_refusals_carry_a_timestamp(program: Program) -> None:
    for answer in await refusals(program):
        when = datetime.fromisoformat(answer.body["timestamp"])
        assert abs(datetime.now(UTC) - when) < timedelta(seconds=10)


@row_on_both("7-status-200")
async def test_what_is_read_or_changed_is_200(program: Program) -> None:
    gate = await program.gate()
    path = f"{PAYGATES}/{gate['id']}"
    answers = [
        await program.gateway("GET", path),
        await program.update(gate, title="x"),
        await program.gateway("DELETE", path),
    ]
    answers += [await program.hub("GET", "/supported"), await program.verify(await program.sale())]
    assert [answer.status for answer in answers] == [200] * 5


@row_on_both("7-status-201")
async def test_what_is_created_is_201(program: Program) -> None:
    assert (await program.create()).status == 201


@row_on_both("7-status-400")
async def test_invalid_parameters_are_400(program: Program) -> None:
    answers = [await program.create(credits=0), await program.gateway("GET", PAYGATES, params={"limit": "0"})]
    answers.append(await program.verify({**await program.sale(), "paymentPayload": 1}))
    assert [answer.refusal for answer in answers] == [(400, "INVALID_PARAMETER", "validation")] * 3


@row_on_both("7-status-401")
async def test_missing_authentication_is_401(program: Program) -> None:
    answers = [await program.hub("GET", "/api/v1/auth/me"), await program.call(await program.gate(requireAuth=True))]
    assert [answer.status for answer in answers] == [401, 401]


@row_on_both("7-status-402")
async def test_missing_payment_is_402(program: Program) -> None:
    gate = await program.gate()
    assert [(await program.call(gate)).status, (await program.call(gate, "x")).status] == [402, 402]


@row_on_both("7-status-403")
async def test_valid_authentication_of_somebody_else_is_403(program: Program) -> None:
    owner, other = [(await program.login(program.new_wallet(), program.gateway_url))["accessToken"] for _ in range(2)]
    gate = (await program.create(owner)).body
    path = f"{PAYGATES}/{gate['id']}"
    for method, body in (("GET", None), ("PUT", {"title": "mine"}), ("DELETE", None)):
        answer = await program.gateway(method, path, json=body, headers=bearer_header(other))
        assert answer.refusal == (403, "FORBIDDEN", "authentication")
    assert (await program.gateway("GET", path, headers=bearer_header(owner))).body["title"] == ""


@row_on_both("7-status-404")
async def test_what_is_not_there_is_404(program: Program) -> None:
    answers = [await program.gateway("GET", path) for path in ("/", "/nothing", "/api/v1/x", f"{PAYGATES}/999999999")]
    answers += [await program.hub("GET", path) for path in ("/", "/nothing", "/api/v1/x")]
    assert [answer.refusal for answer in answers] == [(404, "NOT_FOUND", "validation")] * 7


@row_on_both("7-status-429")
async def test_who_asks_too_often_without_paying_is_429(of_its_own: ProgramOfItsOwn) -> None:
    behind_proxy = {"trusted_proxies": (ip_network("127.0.0.1"),), "request_limits": RequestLimits(unpaid=3, api=3)}
    async with of_its_own(**behind_proxy) as program:
        gate = await program.gate()
        sender = {"X-Forwarded-For": "203.0.113.1"}
        calls = [await program.call(gate, headers=sender) for _ in range(4)]
        listings = [await program.gateway("GET", PAYGATES, headers=sender) for _ in range(4)]
        for answers, usual in ((calls, 402), (listings, 200)):
            assert [answer.status for answer in answers] == [usual] * 3 + [429]
            assert answers[3].refusal == (429, "RATE_LIMITED", "validation")
            assert int(answers[3].headers["retry-after"]) >= 1


@row_on_both("7-status-500")
async def test_a_fault_of_the_programs_own_is_500_and_tells_nothing(of_its_own: ProgramOfItsOwn) -> None:
    """Somebody took a table away: what asks for it fails, and says neither what failed nor why."""
    async with of_its_own() as program:
        gate = await program.gate()
        with beside(program.database) as database:
            database.execute("ALTER TABLE paygates RENAME TO secret_detail")
        answers = [await program.create(), await program.update(gate, title="x")]
    for answer in answers:
        assert answer.refusal == (500, "INTERNAL_ERROR", "server")
        assert answer.error["requestId"] == answer.headers["x-request-id"]
        assert b"secret" not in answer.content
        assert b"paygates" not in answer.content


@row_on_both("7-status-502")
async def test_a_failing_target_is_502(program: Program) -> None:
    gate = await program.gate(targetUrl="http://127.0.0.1:9/")
    answer = await program.call(gate, await program.payment(gate))
    assert answer.refusal == (502, "UPSTREAM_UNREACHABLE", "server")


@row_on_both("7-AUTH_REQUIRED")
async def test_absent_authentication_says_that_the_route_requires_it(program: Program) -> None:
    gate = await program.gate(requireAuth=True)
    answers = [await program.call(gate), await program.hub("GET", "/api/v1/auth/me")]
    answers.append(await program.hub("GET", "/api/v1/history", params={"limit": "1"}))
    for answer in answers:
        assert answer.refusal == (401, "AUTH_REQUIRED", "authentication")
        assert "requires user authentication" in answer.error["message"]


@row_on_both("7-INVALID_TOKEN")
async def test_a_token_that_is_not_in_force_is_invalid(program: Program) -> None:
    token = (await program.login(program.new_wallet()))["accessToken"]
    forged = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
    await program.hub("POST", "/api/v1/auth/logout", headers=bearer_header(token))
    gate = await program.gate(requireAuth=True)
    for wrong in (forged, token, "x"):
        answers = [await program.hub("GET", "/api/v1/auth/me", headers=bearer_header(wrong))]
        answers.append(await program.call(gate, headers=bearer_header(wrong)))
        answers.append(await program.create(wrong))
        assert [answer.refusal for answer in answers] == [(401, "INVALID_TOKEN", "authentication")] * 3


@row("7-INVALID_SIGNATURE-authentication")
async def test_a_failed_wallet_signature_is_401(world: World) -> None:
    wallet = Wallet()
    query = {"walletAddress": wallet.address}
    message = (await world.hub("GET", "/api/v1/auth/message", params=query)).body["message"]
    proof = {"message": message, "signature": Wallet().sign_text(message)}
    answer = await world.hub("POST", "/api/v1/auth/login", json=proof)
    assert answer.refusal == (401, "INVALID_SIGNATURE", "authentication")


@row("7-INVALID_SIGNATURE-payment")
async def test_a_failed_payment_signature_has_type_payment(world: World) -> None:
    gate = await world.gate()
    forged = payment(await world.wanted(gate), world.sign(await world.wanted(gate)))
    assert (await world.call(gate, header(forged))).refusal == (402, "INVALID_SIGNATURE", "payment")


@row("7-INVALID_ADDRESS")
async def test_an_invalid_address_is_400(world: World) -> None:
    asking = world.asking()
    asking["paymentPayload"]["payload"]["authorization"]["from"] = "0x12"
    answers = [await world.verify(asking), await world.create(paymentAddress="0x12")]
    query = {"walletAddress": "0x12"}
    answers += [await send("GET", "/api/v1/auth/message", params=query) for send in (world.hub, world.gateway)]
    assert [answer.refusal for answer in answers] == [(400, "INVALID_ADDRESS", "validation")] * 4


@row("7-INVALID_AMOUNT")
async def test_an_invalid_amount_is_400(world: World) -> None:
    asking = world.asking()
    asking["paymentRequirements"]["maxAmountRequired"] = "0.01"
    answers = [await world.create(price="-1"), await world.update(await world.gate(), price="1e3")]
    answers += [await world.verify(asking), await world.settle(asking)]
    assert [answer.refusal for answer in answers] == [(400, "INVALID_AMOUNT", "validation")] * 4


@row("7-INVALID_NETWORK")
async def test_an_unsupported_network_is_400(world: World) -> None:
    bearer = bearer_header((await world.login(Wallet()))["accessToken"])
    query = {"limit": "1", "network": "ethereum"}
    answers = [await world.create(network="ethereum"), await world.update(await world.gate(), network="ethereum")]
    answers.append(await world.hub("GET", "/api/v1/history", params=query, headers=bearer))
    assert [answer.refusal for answer in answers] == [(400, "INVALID_NETWORK", "validation")] * 3


@row("7-MISSING_PARAMETER")
async def test_a_missing_required_parameter_is_400_and_named(world: World) -> None:
    bearer = bearer_header((await world.login(Wallet()))["accessToken"])
    answers = {
        "price": await world.create(price=None),
        "targetUrl": await world.create(targetUrl=None),
        "walletAddress": await world.hub("GET", "/api/v1/auth/message"),
        "message": await world.hub("POST", "/api/v1/auth/login", json={}),
        "refreshToken": await world.hub("POST", "/api/v1/auth/refresh", json={}),
        "limit": await world.hub("GET", "/api/v1/history", headers=bearer),
        "paymentPayload": await world.verify({"x402Version": 1}),
    }
    for name, answer in answers.items():
        assert answer.refusal == (400, "MISSING_PARAMETER", "validation")
        assert answer.error["details"]["field"] == name


@row("7-PAYMENT_INVALID")
async def test_a_payment_that_fails_verification_is_invalid(world: World) -> None:
    gate = await world.gate()
    for wrong in ("unreadable", await world.payment(gate, to=Wallet().address)):
        assert (await world.call(gate, wrong)).refusal == (402, "PAYMENT_INVALID", "payment")
    elsewhere = await world.gateway("GET", "/api/v1/credits", headers={"X-Payment": "unreadable"})
    assert elsewhere.refusal == (400, "PAYMENT_INVALID", "payment")


@row("7-INSUFFICIENT_FUNDS")
async def test_too_small_a_balance_is_named(world: World) -> None:
    gate = await world.gate()
    poor = await world.funded(9_999)
    signed = world.asking(10_000, payer=poor, recipient=gate["paymentAddress"])["paymentPayload"]
    assert (await world.call(gate, header(signed))).refusal == (402, "INSUFFICIENT_FUNDS", "payment")


@row("7-NONCE_ALREADY_USED")
async def test_a_used_nonce_is_named_with_its_transaction(world: World) -> None:
    gate = await world.gate()
    asking = world.asking(recipient=gate["paymentAddress"])
    transaction = (await world.settle({**asking, "confirm": True})).body["transaction"]
    answer = await world.call(gate, header(asking["paymentPayload"]))
    assert answer.refusal == (402, "NONCE_ALREADY_USED", "payment")
    assert answer.error["details"]["transaction"] == transaction
    assert world.target.requests == []


@row("7-INSUFFICIENT_FUNDS-400", "7-NONCE_ALREADY_USED-400")
async def test_a_refused_transfer_is_a_bad_request_at_hub_and_gateway(world: World, row_id: str) -> None:
    code = row_id.removeprefix("7-").removesuffix("-400")
    body = world.moving(payer=Wallet()) if code == "INSUFFICIENT_FUNDS" else world.moving()
    if code == "NONCE_ALREADY_USED":
        assert (await world.transfer(body)).status == 200
    direct = {"network": body["network"], **body["payload"]}
    paid = {"x402Version": 1, "scheme": "exact", "network": body["network"], "payload": body["payload"]}
    for answer in (
        await world.transfer(body),
        await world.gateway("POST", "/api/v1/transfer", json=direct, headers={"X-Payment": header(paid)}),
    ):
        assert answer.refusal == (400, code, "payment")


@row("7-PAYMENT_INVALID-400")
async def test_a_transfer_that_is_not_what_was_signed_is_a_bad_request_at_hub_and_gateway(world: World) -> None:
    body = world.moving(10_000)
    assert (await world.transfer({**body, "amount": "10001"})).refusal == (400, "PAYMENT_INVALID", "payment")
    other = world.asking(9_999)["paymentPayload"]
    direct = {"network": body["network"], **body["payload"]}
    answer = await world.gateway("POST", "/api/v1/transfer", json=direct, headers={"X-Payment": header(other)})
    assert answer.refusal == (400, "PAYMENT_INVALID", "payment")
    assert (await world.transfer(body)).body["status"] == "success"


@row("7-INSUFFICIENT_AMOUNT")
async def test_too_small_a_payment_is_named(world: World) -> None:
    gate = await world.gate()
    answer = await world.call(gate, await world.payment(gate, value="9999"))
    assert answer.refusal == (402, "INSUFFICIENT_AMOUNT", "payment")


@row("7-PAYMENT_EXPIRED")
async def test_a_payment_whose_time_has_passed_is_named(world: World) -> None:
    gate = await world.gate()
    answer = await world.call(gate, await world.payment(gate, validBefore=str(int(time.time()) - 1)))
    assert answer.refusal == (402, "PAYMENT_EXPIRED", "payment")


async def silent(_request: Received, _writer: Writer) -> None:
    """Never an answer."""


@row("7-proxy-1")
async def test_a_target_that_takes_too_long_is_a_502_that_consumes_and_is_counted(
    tmp_path: Path, target: RecordingTarget, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = vars(Forwarder)["relay"].__kwdefaults__
    assert defaults["limits"].response_seconds == 600
    # The gateway's one limit, as it is but for its length: nobody waits ten minutes here.
    monkeypatch.setitem(defaults, "limits", replace(defaults["limits"], response_seconds=0.5))
    async with base_world(tmp_path, target, http) as world:
        gate = await world.gate(credits=2)
        paid = await world.payment(gate)
        target.answer = silent
        started = time.monotonic()
        answer = await world.call(gate, paid)
        assert 0.5 <= time.monotonic() - started < 60
        assert answer.refusal == (502, "UPSTREAM_TIMEOUT", "server")
        assert answer.headers["x-credits-remaining"] == "1"
        assert answer.confirmation["success"] is True
        assert (await world.call(gate, paid)).refusal == (502, "UPSTREAM_TIMEOUT", "server")
        assert (await world.call(gate, paid)).status == 402
        counted = await world.counters(gate, lambda found: bool(found["failures"] == 2))
        assert (counted["calls"], counted["failures"], counted["purchases"]) == (2, 2, 1)


@row("7-proxy-2")
async def test_too_large_a_response_is_a_502_that_consumes_and_is_logged(world: World) -> None:
    async def sized(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (SIZE_LIMIT_BYTES + 1))
        writer.write(bytes(SIZE_LIMIT_BYTES + 1))

    async def endless(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.write(bytes(SIZE_LIMIT_BYTES + 1))
        writer.close()

    gate = await world.gate(credits=2)
    paid = await world.payment(gate)
    before = len(world.warnings("upstream_too_large"))
    for kind, remaining in ((sized, "1"), (endless, "0")):
        world.target.answer = kind
        answer = await world.call(gate, paid)
        assert answer.refusal == (502, "UPSTREAM_TOO_LARGE", "server")
        assert answer.headers["x-credits-remaining"] == remaining
        assert len(answer.content) < 1000
    lines = world.warnings("upstream_too_large")[before:]
    assert [(line["level"], line["limit_bytes"]) for line in lines] == [("warning", SIZE_LIMIT_BYTES)] * 2
    assert all(line["size_bytes"] > SIZE_LIMIT_BYTES for line in lines)
    counted = await world.counters(gate, lambda found: bool(found["failures"] == 2))
    assert (counted["calls"], counted["failures"]) == (2, 2)
