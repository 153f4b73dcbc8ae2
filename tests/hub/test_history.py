"""History of a wallet: items, filters, limits, and who may see what (specification 2.5, 4.3; contract 7)."""

from __future__ import annotations

import csv
import io

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment, new_payment
from tests.hub.tables import cells, filled, read_table
from tests.hub.test_recovery import change
from tests.storage.plans import plan_of
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.storage.engine.database import load_queries


async def read_history(hub: HubUnderTest, bearer: str, query: str) -> Answer:
    return await hub.get(f"/api/v1/history?{query}", Authorization=bearer)


async def settle_some(hub: HubUnderTest, chain: ChainUnderTest, count: int) -> list[TestPayment]:
    payments = [new_payment(chain) for _ in range(count)]
    for payment in payments:
        assert (await hub.settle(payment)).body["success"] is True
    return payments


async def test_an_item_has_every_specified_field(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain)
    settled = await hub.settle(payment)
    bearer = await hub.login(embedded_chain.wallets.buyer)
    answer = await read_history(hub, bearer, "limit=10")
    assert (answer.status, answer.body["success"], answer.body["apiVersion"]) == (200, True, "v1")
    (item,) = answer.body["history"]
    authorization = payment.authorization
    assert item | {"id": "", "createdAt": "", "updatedAt": ""} == {
        "id": "",
        "createdAt": "",
        "updatedAt": "",
        "signerAddress": checksum_address(authorization.payer),
        "amount": "10000",
        "network": "base-sepolia",
        "chainId": 84532,
        "transactionHash": settled.body["transaction"],
        "status": "success",
        "error": None,
        "type": "purchase",
        "x402Data": {
            "x402Version": 1,
            "scheme": "exact",
            "network": "base-sepolia",
            "asset": checksum_address(payment.body["paymentRequirements"]["asset"]),
            "payer": checksum_address(authorization.payer),
            "payTo": checksum_address(authorization.pay_to),
            "value": "10000",
            "validAfter": str(authorization.valid_after),
            "validBefore": str(authorization.valid_before),
            "nonce": authorization.nonce,
            "resource": "https://gate.example/abc",
            "maxAmountRequired": "10000",
            "confirm": True,
        },
    }
    one = await hub.get(f"/api/v1/history/{item['id']}", Authorization=bearer)
    assert {key: one.body[key] for key in item} == item


async def test_a_pending_item_has_no_hash(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    accepted = await hub.settle(payment, confirm=False, prefer="wait=0")
    assert accepted.body["success"] is True
    bearer = await hub.login(embedded_chain.wallets.buyer)
    (item,) = (await read_history(hub, bearer, "limit=1")).body["history"]
    assert (item["status"], item["transactionHash"]) == ("pending", None)
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    (item,) = (await read_history(hub, bearer, "limit=1")).body["history"]
    assert (item["status"], item["transactionHash"]) == ("success", accepted.body["transaction"])


async def test_pages_are_newest_first_and_count_everything(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payments = await settle_some(hub, embedded_chain, 5)
    bearer = await hub.login(embedded_chain.wallets.buyer)
    nonces = []
    for offset, has_next, has_prev in ((0, True, False), (2, True, True), (4, False, True)):
        answer = await read_history(hub, bearer, f"limit=2&offset={offset}")
        assert answer.body["pagination"] == {
            "totalCount": 5,
            "limit": 2,
            "offset": offset,
            "hasNext": has_next,
            "hasPrev": has_prev,
        }
        nonces += [item["x402Data"]["nonce"] for item in answer.body["history"]]
    assert nonces == [payment.authorization.nonce for payment in reversed(payments)]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MISSING_PARAMETER"),
        ("limit=0", "INVALID_PARAMETER"),
        ("limit=101", "INVALID_PARAMETER"),
        ("limit=1&limit=2", "INVALID_PARAMETER"),
        ("limit=1&role=signer&role=recipient", "INVALID_PARAMETER"),
        ("limit=1e2", "INVALID_PARAMETER"),
        ("limit=1&offset=-1", "INVALID_PARAMETER"),
        ("limit=1&offset=9223372036854775808", "INVALID_PARAMETER"),
        ("limit=1&network=mars", "INVALID_NETWORK"),
        ("limit=1&role=owner", "INVALID_PARAMETER"),
    ],
)
async def test_a_wrong_parameter_is_refused(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, query: str, code: str
) -> None:
    bearer = await hub.login(embedded_chain.wallets.buyer)
    answer = await read_history(hub, bearer, query)
    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize("limit", [1, 100])
async def test_the_limits_of_limit_are_taken(hub: HubUnderTest, embedded_chain: ChainUnderTest, limit: int) -> None:
    bearer = await hub.login(embedded_chain.wallets.buyer)
    assert (await read_history(hub, bearer, f"limit={limit}")).status == 200


async def test_filters_narrow_by_network_and_role(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    await settle_some(hub, embedded_chain, 2)
    counts = {}
    for role, wallet in (("buyer", embedded_chain.wallets.buyer), ("owner", embedded_chain.wallets.owner)):
        bearer = await hub.login(wallet)
        roles, networks = ("&role=signer", "&role=recipient"), ("base-sepolia", "base", "solana")
        for query in ("", *roles, *(f"&network={network}" for network in networks)):
            answer = await read_history(hub, bearer, f"limit=10{query}")
            counts[role + query] = answer.body["pagination"]["totalCount"]
    assert counts == {
        "buyer": 2,
        "buyer&role=signer": 2,
        "buyer&role=recipient": 0,
        "buyer&network=base-sepolia": 2,
        "buyer&network=base": 0,
        "buyer&network=solana": 0,
        "owner": 2,
        "owner&role=signer": 0,
        "owner&role=recipient": 2,
        "owner&network=base-sepolia": 2,
        "owner&network=base": 0,
        "owner&network=solana": 0,
    }


async def test_who_paid_himself_sees_it_once(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    await settle_some(hub, embedded_chain, 2)
    await hub.database.run(change("UPDATE settlements SET pay_to = payer"))
    bearer = await hub.login(embedded_chain.wallets.buyer)
    for role in ("", "&role=signer", "&role=recipient"):
        answer = await read_history(hub, bearer, f"limit=100{role}")
        assert len(answer.body["history"]) == answer.body["pagination"]["totalCount"] == 2


@pytest.mark.sqlite_only("it reads SQLite's plan")
async def test_a_page_of_a_long_history_is_read_without_the_rest(hub: HubUnderTest) -> None:
    query = load_queries("settlements.sql").list_history(
        wallet="0x", as_signer=1, as_recipient=1, network="", limit=100, offset=0
    )
    plan = await plan_of(hub.database, query)
    for index in ("settlements_by_payer", "settlements_by_recipient"):
        assert any(f"USING COVERING INDEX {index} " in step for step in plan)
    assert "USE TEMP B-TREE FOR ORDER BY" not in plan[: plan.index("SCAN page")], "all of it would be sorted"


async def test_a_stranger_sees_nothing_of_others(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain)
    settled = await hub.settle(payment, useDbId=True)
    stranger = await hub.login(embedded_chain.wallets.second_buyer)
    assert (await read_history(hub, stranger, "limit=10")).body["history"] == []
    one = await hub.get(f"/api/v1/history/{settled.body['transaction']}", Authorization=stranger)
    assert (one.status, one.code) == (404, "NOT_FOUND")


async def test_history_takes_a_bearer_and_no_other(hub: HubUnderTest) -> None:
    for path in ("/api/v1/history?limit=1", "/history?limit=1", "/api/v1/history/1"):
        assert (await hub.get(path)).code == "AUTH_REQUIRED"
        assert (await hub.get(path, Authorization="Bearer x")).code == "INVALID_TOKEN"


async def test_every_path_is_served_with_and_without_the_prefix(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment)).body["success"] is True
    bearer = await hub.login(embedded_chain.wallets.buyer)
    paths = ("/supported", "/history?limit=1", "/auth/me", payment.status_path, "/healthz", "/readyz")
    for path in (*paths, "/.well-known/jwks.json", f"/auth/message?walletAddress={payment.authorization.payer}"):
        for prefix in ("", "/api/v1"):
            answer = await hub.get(prefix + path, Authorization=bearer)
            assert answer.status == 200, prefix + path
            assert answer.headers["X402-Version"] == "1"


async def test_public_status_follows_a_payment_by_any_name_of_its_network(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    assert (await hub.get(payment.status_path)).code == "NOT_FOUND"
    settled = await hub.settle(payment)
    shouting = payment.status_path.replace(payment.authorization.nonce, "0x" + payment.authorization.nonce[2:].upper())
    answer = await hub.get(shouting)
    assert answer.status == 200
    assert answer.body["status"] == "success"
    assert answer.body["transaction"] == settled.body["transaction"]
    assert answer.body["amount"] == "10000"
    assert answer.body["payer"].lower() == payment.authorization.payer
    assert answer.body["payTo"].lower() == payment.authorization.pay_to


async def test_history_is_a_table_for_who_prefers_csv(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    await settle_some(hub, embedded_chain, 3)
    bearer = await hub.login(embedded_chain.wallets.buyer)
    items = (await read_history(hub, bearer, "limit=2")).body["history"]
    headers = {"Authorization": bearer, "Accept": "text/csv"}
    async with hub.http.get(f"{hub.url}/api/v1/history?limit=2", headers=headers) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
        assert (answer.headers["X-Total-Count"], answer.headers["Vary"]) == ("3", "Accept")
        assert answer.headers["X402-Version"] == "1"
        rows = list(csv.DictReader(io.StringIO(await answer.text(), newline="")))
    assert [(row["id"], row["transactionHash"], row["x402Data.nonce"]) for row in rows] == [
        (item["id"], item["transactionHash"], item["x402Data"]["nonce"]) for item in items
    ]
    async with hub.http.get(f"{hub.url}/api/v1/history/{items[0]['id']}", headers=headers) as answer:
        (row,) = csv.DictReader(io.StringIO(await answer.text(), newline=""))
    assert row["amount"] == "10000"
    refused = await hub.get("/api/v1/history", Authorization=bearer, Accept="text/csv")
    assert (refused.status, refused.code) == (400, "MISSING_PARAMETER")


async def test_every_member_of_a_purchase_and_of_a_transfer_is_in_the_table(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    await settle_some(hub, embedded_chain, 1)
    payment = new_payment(embedded_chain)
    payload = payment.body["paymentPayload"]
    asset = payment.body["paymentRequirements"]["asset"]
    moved = await hub.post("/transfer", {"network": payload["network"], "payload": payload["payload"], "asset": asset})
    assert moved.body["success"] is True
    bearer = await hub.login(embedded_chain.wallets.buyer)
    items = (await read_history(hub, bearer, "limit=10")).body["history"]
    assert [item["type"] for item in items] == ["transfer", "purchase"]
    assert [filled(row) for row in await read_table(hub, bearer)] == [cells(item) for item in items]
