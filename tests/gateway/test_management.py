"""Management of PayGates against the running program (specification 2.1, 4.1; contract 2, 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.configuration import AnonymousPaygates
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallet

PUBLIC_FIELDS = {
    "id",
    "slug",
    "accessUrl",
    "targetUrl",
    "price",
    "credits",
    "method",
    "title",
    "description",
    "assumeValid",
    "requireAuth",
    "paymentAddress",
    "headerAuthMode",
    "resourceType",
    "network",
    "accepts",
    "mimeType",
    "allowSubpaths",
    "stream",
    "payerProof",
    "creditBinding",
    "onFailure",
    "isEnabled",
    "targetHeaders",
    "creditsExpireAfter",
    "ownerWallet",
    "createdAt",
    "updatedAt",
    "counters",
    "apiVersion",
    "timestamp",
}


def code_of(answer: Answer) -> tuple[int, str]:
    body = answer.json()
    assert body["error"]["type"] in {"validation", "authentication", "payment", "server"}
    assert {"apiVersion", "timestamp"} <= body.keys()
    return answer.status, body["error"]["code"]


async def test_create_needs_only_price_and_target(market: Market) -> None:
    answer = await market.ask("POST", "/api/v1/paygates", body={"price": "0.01", "targetUrl": market.target.url})
    gate = answer.json()
    assert answer.status == 201
    assert gate.keys() == PUBLIC_FIELDS
    assert gate["accessUrl"] == f"{market.stack.gateway_url}/{gate['slug']}"
    assert len(gate["slug"]) == 8
    defaults = {
        "method": "GET",
        "credits": 1,
        "title": "",
        "description": "",
        "assumeValid": False,
        "requireAuth": False,
        "headerAuthMode": "none",
        "resourceType": "url",
        "paymentAddress": market.stack.pay_to,
        "network": "base-sepolia",
        "isEnabled": True,
        "ownerWallet": None,
        "counters": {"challenges": 0, "purchases": 0, "calls": 0, "failures": 0, "revenue": "0"},
    }
    assert {name: gate[name] for name in defaults} == defaults


async def test_price_may_be_a_json_number_whose_text_is_a_price(market: Market) -> None:
    assert (await market.gate(price=2))["price"] == "2"
    assert (await market.gate(price=0.25))["price"] == "0.25"


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"price": None}, "MISSING_PARAMETER", "price"),
    ({"price": ""}, "INVALID_AMOUNT", "price"),
    ({"price": " "}, "INVALID_AMOUNT", "price"),
    ({"price": []}, "INVALID_AMOUNT", "price"),
    ({"price": False}, "INVALID_AMOUNT", "price"),
    ({"targetUrl": None}, "MISSING_PARAMETER", "targetUrl"),
    ({"targetUrl": ""}, "MISSING_PARAMETER", "targetUrl"),
    ({"price": "0"}, "INVALID_AMOUNT", "price"),
    ({"price": "-1"}, "INVALID_AMOUNT", "price"),
    ({"price": "0.0000001"}, "INVALID_AMOUNT", "price"),
    ({"price": "1e3"}, "INVALID_AMOUNT", "price"),
    ({"price": True}, "INVALID_AMOUNT", "price"),
    ({"credits": 0}, "INVALID_PARAMETER", "credits"),
    ({"credits": "5"}, "INVALID_PARAMETER", "credits"),
    ({"method": "GET,FETCH"}, "INVALID_PARAMETER", "method"),
    ({"title": 5}, "INVALID_PARAMETER", "title"),
    ({"assumeValid": "yes"}, "INVALID_PARAMETER", "assumeValid"),
    ({"paymentAddress": "0x12"}, "INVALID_ADDRESS", "paymentAddress"),
    ({"paymentAddress": "0x" + "00" * 20}, "INVALID_ADDRESS", "paymentAddress"),
    ({"paymentAddress": "0x036CbD53842c5426634e7929541eC2318f3dCF7e"}, "INVALID_ADDRESS", "paymentAddress"),
    ({"paymentAddress": "0x036cBD53842c5426634e7929541eC2318f3dCF7e"}, "INVALID_ADDRESS", "paymentAddress"),
    ({"network": "nowhere"}, "INVALID_NETWORK", "network"),
    ({"network": "base"}, "INVALID_NETWORK", "network"),
    ({"accepts": [{"network": "base", "paymentAddress": "0x" + "71" * 20}]}, "INVALID_NETWORK", "accepts"),
    ({"network": "solana-devnet"}, "MISSING_PARAMETER", "paymentAddress"),
    ({"network": "solana-devnet", "paymentAddress": "0x" + "71" * 20}, "INVALID_ADDRESS", "paymentAddress"),
    ({"headerAuthMode": "sha256"}, "INVALID_PARAMETER", "headerAuthMode"),
    ({"resourceType": "file"}, "INVALID_PARAMETER", "resourceType"),
    ({"creditBinding": "bearer"}, "INVALID_PARAMETER", "creditBinding"),
    ({"onFailure": "refund"}, "INVALID_PARAMETER", "onFailure"),
    ({"allowSubpaths": "yes"}, "INVALID_PARAMETER", "allowSubpaths"),
    ({"stream": 1}, "INVALID_PARAMETER", "stream"),
    ({"targetHeaders": {"cookie": "b"}}, "INVALID_PARAMETER", "targetHeaders"),
    ({"creditsExpireAfter": 0}, "INVALID_PARAMETER", "creditsExpireAfter"),
    ({"slug": "api"}, "INVALID_PARAMETER", "slug"),
    ({"slug": "no spaces"}, "INVALID_PARAMETER", "slug"),
    ({"targetUrl": "ftp://example.org/"}, "INVALID_PARAMETER", "targetUrl"),
    ({"targetUrl": "http://user@example.org/"}, "INVALID_PARAMETER", "targetUrl"),
    ({"targetUrl": "http://"}, "INVALID_PARAMETER", "targetUrl"),
    ({"id": 7}, "INVALID_PARAMETER", "id"),
    ({"unknown": 7}, "INVALID_PARAMETER", "unknown"),
]


@pytest.mark.parametrize(("changed", "code", "field"), REFUSED, ids=[str(case[0])[:60] for case in REFUSED])
async def test_bad_field_is_named(market: Market, changed: dict[str, Any], code: str, field: str | None) -> None:
    body = {"price": "0.01", "targetUrl": market.target.url, **changed}
    answer = await market.ask("POST", "/api/v1/paygates", body=body)
    assert code_of(answer) == (400, code)
    assert answer.json()["error"]["details"]["field"] == field


@pytest.mark.parametrize(
    "sent", [b"", b"[]", b"{", b'"x"', b'{"price":"1","price":"1"}', b'{"title":"\\ud800"}', b"\xff{}", b"{}"]
)
async def test_a_body_that_is_no_object_with_fields_is_named_as_the_body(market: Market, sent: bytes) -> None:
    gate = await market.gate()
    path = f"{market.stack.gateway_url}/api/v1/paygates/{gate['id']}"
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session, session.put(path, data=sent, headers=headers) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["details"]) == (400, "INVALID_PARAMETER", {"field": "body"})


async def test_own_slug_is_taken_once_for_ever(market: Market) -> None:
    slug = "own-" + market.target.url.rpartition(":")[2]
    gate = await market.gate(slug=slug)
    assert gate["accessUrl"].endswith("/" + slug)
    body = {"price": "1", "targetUrl": market.target.url, "slug": slug}
    assert code_of(await market.ask("POST", "/api/v1/paygates", body=body)) == (409, "CONFLICT")
    assert (await market.ask("DELETE", f"/api/v1/paygates/{gate['id']}")).status == 200
    assert code_of(await market.ask("POST", "/api/v1/paygates", body=body)) == (409, "CONFLICT")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"price": "0.02"}, {"price": "0.02"}),
        ({"credits": 9}, {"credits": 9}),
        ({"method": "post, get"}, {"method": "POST,GET"}),
        ({"title": "a", "description": "b"}, {"title": "a", "description": "b"}),
        ({"assumeValid": True, "requireAuth": True}, {"assumeValid": True, "requireAuth": True}),
        ({"paymentAddress": "0x" + "ab" * 20}, {"paymentAddress": checksum_address("0x" + "ab" * 20)}),
        ({"isEnabled": False}, {"isEnabled": False}),
        ({"mimeType": "text/csv"}, {"mimeType": "text/csv"}),
        ({"headerAuthMode": "none", "resourceType": "url"}, {}),
    ],
)
async def test_update_takes_any_subset(market: Market, changed: dict[str, Any], expected: dict[str, Any]) -> None:
    gate = await market.gate()
    answer = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body=changed)
    assert answer.status == 200
    after = answer.json()
    same = gate.keys() - expected.keys() - {"updatedAt", "timestamp"}
    assert {name: after[name] for name in same} == {name: gate[name] for name in same}
    assert {name: after[name] for name in expected} == expected


async def test_one_bad_field_changes_nothing(market: Market) -> None:
    gate = await market.gate(title="before")
    path = f"/api/v1/paygates/{gate['id']}"
    for bad in ({"price": "x"}, {"credits": -1}, {"paymentAddress": "x"}, {"targetUrl": "x"}, {"slug": "other"}):
        answer = await market.ask("PUT", path, body={"title": "after", **bad})
        assert answer.status == 400
    assert (await market.ask("GET", path)).json()["title"] == "before"
    assert code_of(await market.ask("PUT", path, body={})) == (400, "INVALID_PARAMETER")


async def test_changed_credits_touch_only_new_purchases(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment, _ = await market.buy(gate)
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"credits": 50})
    answer = await market.pay(gate, payment)
    assert (answer.headers["x-credits-remaining"], answer.headers["x-credits-total"]) == ("0", "2")
    _, new = await market.buy(gate)
    assert new.headers["x-credits-total"] == "50"


async def test_former_price_still_buys_what_was_shown(market: Market) -> None:
    gate = await market.gate(credits=5)
    payment = await market.payment(gate)
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"price": "0.05", "credits": 1})
    answer = await market.pay(gate, payment)
    assert (answer.status, answer.headers["x-credits-total"]) == (200, "5")


async def test_disabled_gate_sells_nothing_and_serves_what_was_bought(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment, _ = await market.buy(gate)
    unspent = await market.payment(gate)
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"isEnabled": False})
    assert code_of(await market.ask("GET", gate["accessUrl"])) == (404, "NOT_FOUND")
    assert code_of(await market.pay(gate, unspent)) == (404, "NOT_FOUND")
    assert (await market.pay(gate, payment)).status == 200
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"isEnabled": True})
    assert (await market.pay(gate, unspent)).status == 200


async def test_deleted_gate_answers_404_and_says_what_it_voids(market: Market) -> None:
    gate = await market.gate(credits=5)
    payment, _ = await market.buy(gate)
    answer = await market.ask("DELETE", f"/api/v1/paygates/{gate['id']}")
    body = answer.json()
    assert (answer.status, body["success"], body["outstandingCredits"]) == (200, True, 4)
    assert (await market.ask("GET", gate["accessUrl"])).status == 404
    assert (await market.pay(gate, payment)).status == 404
    assert code_of(await market.ask("GET", f"/api/v1/paygates/{gate['id']}")) == (404, "NOT_FOUND")
    assert code_of(await market.ask("DELETE", f"/api/v1/paygates/{gate['id']}")) == (404, "NOT_FOUND")


@pytest.mark.parametrize("gate_id", ["0", "999999999", "x", "-1", "1.5", "٣", "9" * 40])
async def test_unknown_id_is_not_found(market: Market, gate_id: str) -> None:
    for method, body in (("GET", None), ("PUT", {"title": "x"}), ("DELETE", None)):
        answer = await market.ask(method, f"/api/v1/paygates/{gate_id}", body=body)
        assert code_of(answer) == (404, "NOT_FOUND")


async def test_list_is_newest_first_in_pages(market: Market) -> None:
    created = [(await market.gate())["id"] for _ in range(3)]
    first = (await market.ask("GET", "/api/v1/paygates?limit=2")).json()
    second = (await market.ask("GET", "/api/v1/paygates?limit=2&offset=1")).json()
    assert [gate["id"] for gate in first["data"]] == created[:0:-1]
    assert [gate["id"] for gate in second["data"]] == created[1::-1]
    assert first["pagination"]["hasNext"] is True
    assert first["pagination"]["hasPrev"] is False
    assert second["pagination"]["hasPrev"] is True


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "offset=-1", "limit=1e2", "offset=99999999999999999"]
)
async def test_pages_out_of_bounds_are_refused(market: Market, query: str) -> None:
    assert code_of(await market.ask("GET", f"/api/v1/paygates?{query}")) == (400, "INVALID_PARAMETER")


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"{} {}",
    b'{"price":NaN}',
    b'{"price":"1","price":"2"}',
    b"\xff\xfe{}",
    b"[" * 9,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=[repr(body) for body in BAD_BODIES])
async def test_bad_json_is_a_clear_refusal(market: Market, body: bytes) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.post(market.stack.gateway_url + "/api/v1/paygates", data=body) as answer:
            found = await answer.json()
            assert (answer.status, found["error"]["code"]) == (400, "INVALID_PARAMETER")
        async with session.post(market.stack.gateway_url + "/api/v1/paygates", data=b"x" * 70_000) as answer:
            found = await answer.json()
            assert (answer.status, found["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize("path", ["/", "/api", "/api/v1", "/api/v1/nothing", "/docs/x", "/.well-known/x", "/a", "/x y"])
async def test_unknown_path_has_the_error_body(market: Market, path: str) -> None:
    answer = await market.ask("GET", path)
    assert code_of(answer) == (404, "NOT_FOUND")
    assert answer.headers["x402-version"] == "1"
    assert answer.headers["x-request-id"]


async def test_wrong_method_of_a_management_path_says_which_are_right(market: Market) -> None:
    answer = await market.ask("PATCH", "/api/v1/paygates")
    assert code_of(answer) == (405, "METHOD_NOT_ALLOWED")
    assert set(answer.headers["allow"].replace(" ", "").split(",")) >= {"GET", "POST"}


async def test_management_answers_no_cross_origin_request(market: Market) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await market.ask("OPTIONS", "/api/v1/paygates", headers=headers)
    assert "access-control-allow-origin" not in answer.headers
    listed = await market.ask("GET", "/api/v1/paygates", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in listed.headers


class Place:
    """A program under one setting, and three people."""

    def __init__(self, url: str, target_url: str, people: list[Buyer]) -> None:
        self.url = url
        self.target_url = target_url
        self.people = people

    async def bearer(self, who: int) -> dict[str, str]:
        return {"Authorization": f"Bearer {await self.people[who].login(self.url)}"}

    async def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        return await self.people[0].ask(method, self.url + path, body=body, headers=headers)

    async def create(self, headers: dict[str, str] | None = None, **fields: object) -> Answer:
        body = {"price": "0.01", "targetUrl": self.target_url, **fields}
        return await self.ask("POST", "/api/v1/paygates", body, headers)


@pytest.fixture(params=list(AnonymousPaygates))
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> AsyncIterator[Place]:
    async with AsyncExitStack() as parts:
        people = [await parts.enter_async_context(Buyer(derive_wallet(f"person {who}"))) for who in range(3)]
        url = await parts.enter_async_context(
            composed(embedded_chain.url, tmp_path / "db", anonymous_paygates=request.param)
        )
        yield Place(url, target.url, people)


async def test_owned_gate_is_its_owners_alone(place: Place) -> None:
    owner, other = await place.bearer(0), await place.bearer(1)
    gate = (await place.create(owner)).json()
    assert gate["ownerWallet"] == checksum_address(place.people[0].wallet.address)
    assert gate["paymentAddress"] == gate["ownerWallet"]
    path = f"/api/v1/paygates/{gate['id']}"
    for method, body in (("GET", None), ("PUT", {"title": "x"}), ("DELETE", None)):
        assert code_of(await place.ask(method, path, body, other)) == (403, "FORBIDDEN")
        assert code_of(await place.ask(method, path, body)) == (401, "AUTH_REQUIRED")
        refused = await place.ask(method, path, body, {"Authorization": "Bearer x"})
        assert code_of(refused) == (401, "INVALID_TOKEN")
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert (await place.ask("GET", path, None, owner)).json()["title"] == ""
    assert [found["id"] for found in (await place.ask("GET", "/api/v1/paygates", None, owner)).json()["data"]] == [
        gate["id"]
    ]
    assert (await place.ask("GET", "/api/v1/paygates", None, other)).json()["data"] == []
    assert (await place.ask("DELETE", path, None, owner)).status == 200


@pytest.mark.parametrize("place", [AnonymousPaygates.OFF], indirect=True)
async def test_off_every_create_and_list_needs_a_bearer(place: Place) -> None:
    assert code_of(await place.create()) == (401, "AUTH_REQUIRED")
    assert code_of(await place.ask("GET", "/api/v1/paygates")) == (401, "AUTH_REQUIRED")


@pytest.mark.parametrize("place", [AnonymousPaygates.CREATE], indirect=True)
async def test_create_gives_a_management_token_that_is_good_for_that_gate_alone(place: Place) -> None:
    gate, neighbour = (await place.create()).json(), (await place.create()).json()
    token = {"Authorization": f"Bearer {gate['managementToken']}"}
    wrong = {"Authorization": f"Bearer {neighbour['managementToken']}"}
    path = f"/api/v1/paygates/{gate['id']}"
    assert (await place.ask("PUT", path, {"title": "mine"}, token)).json()["title"] == "mine"
    read = (await place.ask("GET", path, None, token)).json()
    assert "managementToken" not in read
    assert code_of(await place.ask("GET", path)) == (401, "AUTH_REQUIRED")
    assert code_of(await place.ask("GET", path, None, wrong)) == (403, "FORBIDDEN")
    assert code_of(await place.ask("GET", path, None, await place.bearer(0))) == (403, "FORBIDDEN")
    assert code_of(await place.ask("GET", "/api/v1/paygates", None, token)) == (403, "FORBIDDEN")
    assert (await place.ask("DELETE", path, None, token)).status == 200


async def test_a_management_token_that_is_none_is_refused_as_any_other_bearer(place: Place) -> None:
    gate = (await place.create(await place.bearer(0))).json()
    path = f"/api/v1/paygates/{gate['id']}"
    for token in ("mt_garbage", "mt_", "mt_" + "A" * 43, "mt_\xff", "garbage"):
        none = {"Authorization": f"Bearer {token}"}
        assert code_of(await place.create(none)) == (401, "INVALID_TOKEN")
        for method, asked, body in (
            ("GET", path, None),
            ("PUT", path, {"title": "x"}),
            ("DELETE", path, None),
            ("POST", path + "/claim", {}),
            ("GET", path + "/stats", None),
            ("GET", path + "/requests", None),
            ("POST", path + "/secret", None),
            ("GET", "/api/v1/paygates", None),
            ("GET", "/api/v1/paygates/99", None),
        ):
            assert code_of(await place.ask(method, asked, body, none)) == (401, "INVALID_TOKEN"), (method, asked)


@pytest.mark.parametrize("place", [AnonymousPaygates.CREATE], indirect=True)
async def test_a_deleted_gates_management_token_is_told_that_its_gate_is_no_more(place: Place) -> None:
    gate, neighbour = (await place.create()).json(), (await place.create()).json()
    token = {"Authorization": f"Bearer {gate['managementToken']}"}
    path = f"/api/v1/paygates/{gate['id']}"
    assert (await place.ask("DELETE", path, None, token)).status == 200
    assert code_of(await place.ask("GET", path, None, token)) == (404, "NOT_FOUND")
    assert code_of(await place.ask("GET", f"/api/v1/paygates/{neighbour['id']}", None, token)) == (403, "FORBIDDEN")


@pytest.mark.parametrize("place", [AnonymousPaygates.CREATE], indirect=True)
async def test_claim_takes_an_ownerless_gate_over_with_its_token(place: Place) -> None:
    gate = (await place.create()).json()
    path = f"/api/v1/paygates/{gate['id']}"
    owner = await place.bearer(0)
    token = {"managementToken": gate["managementToken"]}
    assert code_of(await place.ask("POST", path + "/claim", token)) == (401, "AUTH_REQUIRED")
    assert code_of(await place.ask("POST", path + "/claim", None, owner)) == (403, "FORBIDDEN")
    assert code_of(await place.ask("POST", path + "/claim", {"managementToken": "mt_x"}, owner)) == (403, "FORBIDDEN")
    claimed = await place.ask("POST", path + "/claim", token, owner)
    assert claimed.json()["ownerWallet"] == checksum_address(place.people[0].wallet.address)
    former = {"Authorization": f"Bearer {gate['managementToken']}"}
    assert code_of(await place.ask("GET", path, None, former)) == (401, "INVALID_TOKEN")
    assert (await place.ask("GET", path, None, owner)).status == 200
    assert code_of(await place.ask("POST", path + "/claim", token, await place.bearer(1))) == (409, "CONFLICT")


@pytest.mark.parametrize("place", [AnonymousPaygates.MANAGE], indirect=True)
async def test_manage_lets_anybody_manage_ownerless_gates_until_one_is_claimed(place: Place) -> None:
    gate = (await place.create()).json()
    path = f"/api/v1/paygates/{gate['id']}"
    assert "managementToken" not in gate
    assert (await place.ask("PUT", path, {"title": "anybody"})).status == 200
    assert [found["id"] for found in (await place.ask("GET", "/api/v1/paygates")).json()["data"]] == [gate["id"]]
    assert (await place.ask("POST", path + "/claim", None, await place.bearer(0))).status == 200
    assert code_of(await place.ask("GET", path)) == (401, "AUTH_REQUIRED")


async def test_private_target_is_refused_where_it_is_not_allowed(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "db", allow_private_targets=False) as url,
        Buyer(derive_wallet("person")) as person,
    ):
        for host in ("127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "[64:ff9b::7f00:1]", "0x7f.1"):
            body = {"price": "1", "targetUrl": f"http://{host}/"}
            answer = await person.ask("POST", url + "/api/v1/paygates", body=body)
            assert (host, *code_of(answer)) == (host, 400, "INVALID_PARAMETER")
            helps = host not in {"169.254.169.254", "0x7f.1"}  # a cloud's metadata, and no address
            assert ("allow_private_targets" in answer.json()["error"]["message"]) == helps, host


@pytest.mark.parametrize("place", [AnonymousPaygates.MANAGE], indirect=True)
async def test_every_json_body_under_api_has_one_size_limit(place: Place) -> None:
    gate = (await place.create()).json()
    large = {"managementToken": "x" * 70_000}
    for method, path in (
        ("POST", "/api/v1/paygates"),
        ("PUT", f"/api/v1/paygates/{gate['id']}"),
        ("POST", f"/api/v1/paygates/{gate['id']}/claim"),
        ("POST", "/api/v1/auth/login"),
        ("POST", "/api/v1/auth/introspect"),
        ("POST", "/api/v1/transfer"),
    ):
        assert code_of(await place.ask(method, path, large)) == (413, "PAYLOAD_TOO_LARGE"), path
