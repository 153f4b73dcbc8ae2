"""Specification 4 and 4.1: what all answers have in common, and the gateway's operations."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tests.specification.client import Answer, Wallet
from tests.specification.program import PAYGATES, Program, bearer_header
from tests.specification.rows import row, row_on_both
from tests.specification.world import World


async def some_answers(program: Program) -> list[Answer]:
    """JSON answers of every kind of operation that is built, at gateway and hub, and some refusals."""
    gate = await program.gate()
    wallet = program.new_wallet()
    message = "/api/v1/auth/message"
    asking = await program.sale()
    tokens = await program.login(wallet)
    bearer = {"headers": bearer_header(tokens["accessToken"])}
    return [
        await program.create(),
        await program.update(gate, title="x"),
        await program.gateway("GET", PAYGATES),
        await program.gateway("GET", f"{PAYGATES}/{gate['id']}"),
        await program.gateway("DELETE", f"{PAYGATES}/{gate['id']}"),
        await program.gateway("GET", message, params={"walletAddress": wallet.address}),
        await program.hub("GET", message, params={"walletAddress": wallet.address}),
        await program.hub("GET", "/api/v1/auth/me", **bearer),
        await program.hub("GET", "/api/v1/history", params={"limit": "1"}, **bearer),
        await program.hub("POST", "/api/v1/auth/refresh", json={"refreshToken": tokens["refreshToken"]}),
        await program.hub("POST", "/api/v1/auth/logout", **bearer),
        await program.hub("GET", "/supported"),
        await program.verify(asking),
        await program.settle(asking),
        await program.call(await program.gate()),
        await program.call(await program.gate(), "unreadable"),
        await program.gateway("GET", "/no-such-gate"),
        await program.gateway("POST", PAYGATES, data=b"{"),
        await program.gateway("GET", "/api/v1/nothing"),
        await program.hub("GET", "/nothing"),
        await program.hub("GET", "/api/v1/auth/me"),
        await program.verify({}),
    ]


@row_on_both("4-JSON")
async def test_bodies_are_json(program: Program) -> None:
    for answer in await some_answers(program):
        assert answer.headers["content-type"] == "application/json"
        assert isinstance(json.loads(answer.content), dict)
    for body in (b"", b"{", b"[]", b"price=1", b'{"price":NaN}'):
        answer = await program.gateway("POST", PAYGATES, data=body)
        assert answer.refusal == (400, "INVALID_PARAMETER", "validation")


@row_on_both("4-apiVersion")
async def test_json_answers_carry_the_api_version(program: Program) -> None:
    assert {answer.body["apiVersion"] for answer in await some_answers(program)} == {"v1"}


@row_on_both("4-timestamp")
async def test_json_answers_carry_an_iso_8601_timestamp(program: Program) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    answers = await some_answers(program)
    for answer in answers:
        assert isinstance(answer.body["timestamp"], str)
        assert before <= datetime.fromisoformat(answer.body["timestamp"]) <= datetime.now(UTC)


@row("4.1-access")
async def test_a_paygate_is_accessed_by_its_slug_with_its_methods(world: World) -> None:
    gate = await world.gate(method="GET,POST", credits=2)
    assert gate["accessUrl"] == f"{world.gateway_url}/{gate['slug']}"
    for method in ("GET", "POST"):
        assert (await world.call(gate, method=method)).status == 402
    assert (await world.call(gate, method="PUT")).status == 405
    paid = await world.payment(gate)
    answer = await world.call(gate, paid, "POST", data=b"\x00 passes \xff", headers={"Content-Type": "x/y"})
    assert (answer.status, answer.content) == (200, b'{"served":true}')
    (request,) = world.target.requests
    assert (request.method, request.body, request.header("content-type")) == ("POST", b"\x00 passes \xff", "x/y")
    confirmation = answer.confirmation
    assert confirmation["success"] is True
    assert confirmation.keys() == {"success", "transaction", "network", "payer", "amount", "purchaseId"}
    closed = await world.gate(requireAuth=True)
    assert (await world.call(closed)).refusal == (401, "AUTH_REQUIRED", "authentication")
    bearer = bearer_header((await world.login(world.buyer, world.gateway_url))["accessToken"])
    unpaid = await world.call(closed, headers=bearer)
    assert unpaid.status == 402
    signed = await world.payment(await world.gate(paymentAddress=closed["paymentAddress"]))
    assert (await world.call(closed, signed, headers=bearer)).status == 200


@row("4.1-create")
async def test_create_takes_json_with_the_fields_and_yields_the_public_url(world: World) -> None:
    fields = {
        "targetUrl": world.target.url + "/",
        "price": "0.25",
        "credits": 5,
        "method": "GET,PUT",
        "title": "T",
        "description": "D",
        "assumeValid": True,
        "requireAuth": False,
        "paymentAddress": Wallet().address,
        "headerAuthMode": "none",
    }
    answer = await world.create(**fields)
    assert answer.status == 201
    assert {name: answer.body[name] for name in fields} == fields
    assert (await world.http.send("GET", answer.body["accessUrl"])).status == 402
    unknown = await world.create(colour="red")
    assert unknown.refusal == (400, "INVALID_PARAMETER", "validation")
    assert unknown.error["details"] == {"field": "colour"}


@row("4.1-update")
async def test_update_takes_any_subset_at_the_numeric_id(world: World) -> None:
    gate = await world.gate()
    answer = await world.gateway("PUT", f"{PAYGATES}/{gate['id']}", json={"price": "0.5"})
    assert (answer.status, answer.body["price"], answer.body["id"]) == (200, "0.5", gate["id"])
    assert answer.body.keys() == gate.keys()
    unknown = await world.gateway("PUT", f"{PAYGATES}/999999999", json={"price": "0.5"})
    assert unknown.refusal == (404, "NOT_FOUND", "validation")
    strange = await world.gateway("PUT", f"{PAYGATES}/{gate['id']}", json={"colour": "red"})
    assert strange.refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.1-list")
async def test_list_shows_gates_newest_first(world: World) -> None:
    bearer = bearer_header((await world.login(Wallet(), world.gateway_url))["accessToken"])
    made = []
    for _ in range(3):
        body = {"targetUrl": world.target.url + "/", "price": "1"}
        made.append((await world.gateway("POST", PAYGATES, json=body, headers=bearer)).body["id"])
    page = await world.gateway("GET", PAYGATES, params={"limit": "2", "offset": "1"}, headers=bearer)
    assert (page.status, [gate["id"] for gate in page.body["data"]]) == (200, made[1::-1])
    expected = {"totalCount": 3, "limit": 2, "offset": 1, "hasNext": False, "hasPrev": True}
    assert page.body["pagination"] == expected


@row("4.1-delete")
async def test_delete_ends_a_gate(world: World) -> None:
    gate = await world.gate(credits=3)
    paid, _ = await world.buy(gate)
    path = f"{PAYGATES}/{gate['id']}"
    answer = await world.gateway("DELETE", path)
    assert (answer.status, answer.body["success"], answer.body["outstandingCredits"]) == (200, True, 2)
    assert answer.body["message"]
    for after in (await world.call(gate), await world.call(gate, paid), await world.gateway("DELETE", path)):
        assert after.refusal == (404, "NOT_FOUND", "validation")


@row("4.1-auth-message", "4.1-login")
async def test_login_at_the_gateway_is_the_hubs(world: World, row_id: str) -> None:
    wallet = Wallet()
    query = {"walletAddress": wallet.address}
    messages = [
        await world.http.send("GET", base + "/api/v1/auth/message", params=query)
        for base in (world.gateway_url, world.hub_url)
    ]
    assert {tuple(answer.body) for answer in messages} == {("message", "apiVersion", "timestamp")}
    if row_id == "4.1-auth-message":
        lines = [answer.body["message"].splitlines() for answer in messages]
        assert [line.partition(":")[0] for line in lines[0]] == [line.partition(":")[0] for line in lines[1]]
        refused = await world.gateway("GET", "/api/v1/auth/message")
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")
        return
    message = messages[0].body["message"]
    proof = {"message": message, "signature": wallet.sign_text(message)}
    answer = await world.gateway("POST", "/api/v1/auth/login", json=proof)
    assert answer.status == 200
    assert answer.body.keys() == {"accessToken", "refreshToken", "user", "apiVersion", "timestamp"}
    again = await world.gateway("POST", "/api/v1/auth/login", json=proof)
    assert again.refusal == (401, "INVALID_SIGNATURE", "authentication")
    mine = await world.gateway("GET", PAYGATES, headers=bearer_header(answer.body["accessToken"]))
    assert (mine.status, mine.body["data"]) == (200, [])
