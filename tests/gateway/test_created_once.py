"""Creating with an Idempotency-Key: once, however often it is sent; and reads that say what is known already."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import aiohttp

from tests.engines import beside
from tests.gateway.market import Market
from tollkeeper.sandbox.buyer import Answer

GATES = "/api/v1/paygates"


async def create(market: Market, key: str, bearer: str | None = None, **fields: object) -> Answer:
    headers = {"Idempotency-Key": key, **({} if bearer is None else {"Authorization": f"Bearer {bearer}"})}
    body = {"targetUrl": market.target.url, "price": "0.01", **fields}
    return await market.ask("POST", GATES, body=body, headers=headers)


def kept_in(home: Path) -> list[Any]:
    with beside(home / "sandbox.db") as books:
        return list(books.execute("SELECT * FROM creations"))


def without_time(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name != "timestamp"}


async def test_a_create_that_is_sent_again_makes_one_gate_and_has_one_answer(market: Market) -> None:
    key = secrets.token_hex(16)
    first = await create(market, key, headerAuthMode="hmac")
    assert first.status == 201
    again = await create(market, key, headerAuthMode="hmac")
    assert (again.status, without_time(again)) == (201, without_time(first))
    assert again.json()["secret"] == first.json()["secret"]
    other = await create(market, secrets.token_hex(16), headerAuthMode="hmac")
    assert other.json()["id"] != first.json()["id"]


async def test_a_price_that_is_a_json_number_is_created_once_too(market: Market) -> None:
    key = secrets.token_hex(16)
    first, again = await create(market, key, price=0.25), await create(market, key, price=0.25)
    assert (first.status, first.json()["price"]) == (201, "0.25")
    assert (again.status, again.json()["id"]) == (201, first.json()["id"])
    assert (await create(market, key, price=0.5)).status == 409


async def test_creates_at_the_same_time_make_one_gate(market: Market) -> None:
    key = secrets.token_hex(16)
    answers = await asyncio.gather(*(create(market, key) for _ in range(20)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_key_with_another_request_is_a_conflict_and_makes_nothing(market: Market) -> None:
    key = secrets.token_hex(16)
    first = await create(market, key)
    changed = await create(market, key, price="0.02")
    assert (changed.status, changed.error_code) == (409, "CONFLICT")
    assert without_time(await create(market, key)) == without_time(first)


async def test_a_create_that_was_refused_leaves_its_key_free(market: Market) -> None:
    key = secrets.token_hex(16)
    assert (await create(market, key, price="x")).status == 400
    assert (await create(market, key)).status == 201


async def test_a_key_is_its_wallets_own(market: Market) -> None:
    bearer = await market.buyer.login(market.stack.gateway_url)
    key = secrets.token_hex(16)
    mine, nobodys = await create(market, key, bearer), await create(market, key)
    assert mine.json()["id"] != nobodys.json()["id"]
    short = secrets.token_hex(4)  # nobody else can try it
    assert (await create(market, short, bearer)).status == 201
    assert (await create(market, short, bearer, title="other")).status == 409


async def test_a_key_that_is_none_or_could_be_guessed_is_refused(market: Market) -> None:
    for key in ("x" * 256, "a b", "1"):
        answer = await create(market, key)
        assert (answer.status, answer.error_code) == (400, "INVALID_PARAMETER")
        assert answer.json()["error"]["details"]["field"] == "Idempotency-Key"


async def test_two_keys_name_no_create(market: Market) -> None:
    key = secrets.token_hex(16)
    url, body = market.stack.gateway_url + GATES, {"targetUrl": market.target.url, "price": "0.01"}
    for second in (key, secrets.token_hex(16)):
        headers = [("Idempotency-Key", key), ("Idempotency-Key", second)]
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["details"]["field"]) == (
            400,
            "INVALID_PARAMETER",
            "Idempotency-Key",
        )
    before = (await market.ask("GET", GATES)).json()["data"][0]["id"]
    assert (await create(market, key)).json()["id"] > before


async def test_what_is_kept_of_a_create_is_sealed(market: Market, sandbox_home: Path) -> None:
    payee = "0x" + secrets.token_hex(20)
    answer = await create(market, secrets.token_hex(16), paymentAddress=payee, headerAuthMode="hmac")
    assert answer.status == 201
    rows = kept_in(sandbox_home)
    assert rows
    for secret in (payee, payee[2:], answer.json()["secret"]):
        assert secret.lower().encode() not in repr(rows).lower().encode()


async def test_a_read_that_is_known_is_304_until_something_changes(market: Market) -> None:
    gate = await market.gate()
    for path in (f"{GATES}/{gate['id']}", GATES):
        read = await market.ask("GET", path)
        known = {"If-None-Match": f'"other", {read.headers["etag"]}'}
        same = await market.ask("GET", path, headers=known)
        assert (same.status, same.body) == (304, b"")
        assert same.headers["etag"] == read.headers["etag"]
        assert same.headers["x402-version"] == "1"
        await market.ask("PUT", f"{GATES}/{gate['id']}", body={"title": path})
        changed = await market.ask("GET", path, headers=known)
        assert changed.status == 200
        assert changed.headers["etag"] != read.headers["etag"]


async def test_statistics_and_history_have_tags_too(market: Market) -> None:
    gate = await market.gate()
    hub = {"Authorization": "Bearer " + await market.buyer.login(market.stack.hub_url)}
    for url, headers in (
        (f"{GATES}/{gate['id']}/requests", {}),
        (f"{market.stack.hub_url}/api/v1/history?limit=1&offset=100000", hub),
    ):
        read = await market.ask("GET", url, headers=headers)
        same = await market.ask("GET", url, headers={**headers, "If-None-Match": read.headers["etag"]})
        assert (read.status, same.status) == (200, 304)
