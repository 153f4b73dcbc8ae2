"""Specification 4.4: supported, verify and settle, field by field, for the EVM networks."""

from __future__ import annotations

import asyncio

from tests.specification.client import Json, Wallet
from tests.specification.program import Program
from tests.specification.rows import row, row_on_both
from tests.specification.settling import nonce_of, paused_mining
from tests.specification.world import World

BASE_SEPOLIA_USDC = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"


@row_on_both("4.4-all-work")
async def test_all_protocol_endpoints_work_on_each_family_at_both_of_their_paths(program: Program) -> None:
    for prefix in ("", "/api/v1"):
        kinds = (await program.hub("GET", prefix + "/supported")).body["kinds"]
        assert program.network in {kind["network"] for kind in kinds}
        asking = await program.sale()
        verified = await program.hub("POST", prefix + "/verify", json=asking)
        assert (verified.status, verified.body["isValid"]) == (200, True)
        settled = await program.hub("POST", prefix + "/settle", json=asking)
        assert (settled.status, settled.body["status"]) == (200, "success")
        moved = await program.hub("POST", prefix + "/transfer", json=await program.direct_transfer())
        assert (moved.status, moved.body["status"]) == (200, "success")
        for answer in (settled, moved):  # "endpoints and response formats are the same"
            assert {"status", "transaction", "network", "amount"} <= answer.body.keys()
            assert (answer.body["network"], answer.body["amount"]) == (program.network, "10000")


async def kind(world: World) -> Json:
    """The one kind that a sandbox has on EVM networks."""
    answer = await world.hub("GET", "/supported")
    assert answer.status == 200
    (found,) = [one for one in answer.body["kinds"] if one["network"] == "base-sepolia"]
    kind: Json = found
    return kind


@row("4.4-supported-kinds")
async def test_supported_lists_kinds(world: World) -> None:
    assert {"scheme", "network", "assets"} <= (await kind(world)).keys()
    refused = await world.hub("POST", "/supported")
    assert refused.refusal == (405, "METHOD_NOT_ALLOWED", "validation")


@row("4.4-supported-scheme", "4.4-supported-network")
async def test_a_kind_is_a_scheme_on_a_network(world: World, row_id: str) -> None:
    name = row_id.rpartition("-")[2]
    assert (await kind(world))[name] == {"scheme": "exact", "network": "base-sepolia"}[name]


@row(
    "4.4-supported-assets.address",
    "4.4-supported-assets.name",
    "4.4-supported-assets.symbol",
    "4.4-supported-assets.decimals",
)
async def test_a_kind_has_its_assets(world: World, row_id: str) -> None:
    (asset,) = (await kind(world))["assets"]
    expected = {"address": BASE_SEPOLIA_USDC, "name": "USD Coin", "symbol": "USDC", "decimals": 6}
    assert asset.keys() == expected.keys()
    name = row_id.rpartition(".")[2]
    assert (type(asset[name]), asset[name]) == (type(expected[name]), expected[name])


@row("4.4-verify-x402Version", "4.4-settle-x402Version")
async def test_the_version_of_a_request_is_one(world: World, row_id: str) -> None:
    path, reason = {"4.4-verify-x402Version": ("/verify", "invalidReason")}.get(row_id, ("/settle", "errorReason"))
    asking = world.asking()
    for version in (2, 0):
        answer = await world.hub("POST", path, json={**asking, "x402Version": version})
        assert (answer.status, answer.body[reason]) == (200, "invalid_x402_version")
    for no_integer in ("1", 1.5, True):
        answer = await world.hub("POST", path, json={**asking, "x402Version": no_integer})
        assert answer.refusal == (400, "INVALID_PARAMETER", "validation")
    del asking["x402Version"]
    answer = await world.hub("POST", path, json=asking)
    assert answer.refusal == (400, "MISSING_PARAMETER", "validation")


@row(
    "4.4-verify-paymentPayload",
    "4.4-verify-paymentRequirements",
    "4.4-settle-paymentPayload",
    "4.4-settle-paymentRequirements",
)
async def test_payload_and_requirements_are_objects_with_all_their_members(world: World, row_id: str) -> None:
    _, operation, name = row_id.split("-")
    asking = world.asking()

    async def refused(body: Json, code: str) -> None:
        answer = await world.hub("POST", f"/{operation}", json=body)
        assert answer.refusal == (400, code, "validation"), (body, answer.content)

    await refused({key: value for key, value in asking.items() if key != name}, "MISSING_PARAMETER")
    no_objects: tuple[object, ...] = ("text", [], 5)
    for wrong in no_objects:
        await refused({**asking, name: wrong}, "INVALID_PARAMETER")
    required = {
        "paymentPayload": ("x402Version", "scheme", "network", "payload"),
        "paymentRequirements": ("scheme", "network", "maxAmountRequired", "payTo", "asset"),
    }[name]
    for member in required:
        without = {key: value for key, value in asking[name].items() if key != member}
        await refused({**asking, name: without}, "MISSING_PARAMETER")
    mismatch = {
        "paymentPayload": world.asking()["paymentPayload"],
        "paymentRequirements": world.requirements(Wallet().address, 10_000),
    }[name]
    answer = (await world.hub("POST", f"/{operation}", json={**asking, name: mismatch})).body
    reason = answer["invalidReason" if operation == "verify" else "errorReason"]
    assert reason == "invalid_exact_evm_payload_recipient_mismatch"


@row("4.4-verify-isValid")
async def test_is_valid_is_a_boolean(world: World) -> None:
    asking = world.asking()
    good = await world.verify(asking)
    poor = await world.verify(world.asking(payer=Wallet()))
    assert (good.body["isValid"], poor.body["isValid"]) == (True, False)
    assert (await world.settle({**asking, "confirm": True})).body["status"] == "success"
    assert (await world.verify(asking)).body["isValid"] is False


@row("4.4-verify-invalidReason")
async def test_invalid_reason_is_null_when_valid_and_a_string_otherwise(world: World) -> None:
    asking = world.asking()
    assert (await world.verify(asking)).body["invalidReason"] is None
    required = asking["paymentRequirements"]
    more = {**asking, "paymentRequirements": {**required, "maxAmountRequired": "10001"}}
    foreign = {**asking, "paymentRequirements": {**required, "payTo": Wallet().address}}
    reasons = [(await world.verify(body)).body["invalidReason"] for body in (more, foreign)]
    reasons.append((await world.verify(world.asking(payer=Wallet()))).body["invalidReason"])
    assert reasons == [
        "invalid_exact_evm_payload_authorization_value",
        "invalid_exact_evm_payload_recipient_mismatch",
        "insufficient_funds",
    ]


@row("4.4-settle-confirm")
async def test_confirm_waits_for_the_chain_and_is_false_by_default(world: World) -> None:
    async with paused_mining(world):
        for body in (world.asking(), {**world.asking(), "confirm": False}):
            answer = await world.settle(body, Prefer="wait=0")
            assert answer.body["status"] == "success"
            assert await world.rpc("eth_getTransactionReceipt", answer.body["transaction"]) is None
        waiting = asyncio.create_task(world.settle({**world.asking(), "confirm": True}))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        unknown = await world.settle({**world.asking(), "confirm": True}, Prefer="wait=0")
        assert unknown.refusal == (503, "SETTLEMENT_PENDING", "payment")
    answer = await waiting
    assert answer.body["status"] == "success"
    assert (await world.rpc("eth_getTransactionReceipt", answer.body["transaction"]))["status"] == "0x1"
    for wrong in ("true", 1):
        refused = await world.settle({**world.asking(), "confirm": wrong})
        assert refused.refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.4-settle-useDbId")
async def test_use_db_id_gives_the_database_id_and_is_false_by_default(world: World) -> None:
    asking = world.asking()
    answer = await world.settle({**asking, "confirm": True, "useDbId": True})
    item = await world.item(world.buyer, nonce_of(asking))
    assert (answer.body["status"], answer.body["transaction"]) == ("success", item["id"])
    for plain in ({}, {"useDbId": False}):
        asking = world.asking()
        answer = await world.settle({**asking, "confirm": True, **plain})
        item = await world.item(world.buyer, nonce_of(asking))
        assert answer.body["transaction"] == item["transactionHash"] != item["id"]
    for wrong in ("true", 1):
        refused = await world.settle({**world.asking(), "useDbId": wrong})
        assert refused.refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.4-settle-status")
async def test_status_is_success_once_and_failed_otherwise(world: World) -> None:
    asking = {**world.asking(), "confirm": True}
    answers = [await world.settle(asking), await world.settle(asking), await world.settle(world.asking(payer=Wallet()))]
    assert [(answer.status, answer.body["status"]) for answer in answers] == [
        (200, "success"),
        (200, "failed"),
        (200, "failed"),
    ]
    assert [answer.body["success"] for answer in answers] == [True, False, False]


@row("4.4-settle-transaction")
async def test_transaction_is_the_hash(world: World) -> None:
    asking = {**world.asking(), "confirm": True}
    transaction = (await world.settle(asking)).body["transaction"]
    receipt = await world.rpc("eth_getTransactionReceipt", transaction)
    assert (receipt["status"], receipt["transactionHash"]) == ("0x1", transaction)
    assert (await world.settle(asking)).body["transaction"] == transaction  # a duplicate is told which one it repeats
    assert (await world.settle(world.asking(payer=Wallet()))).body["transaction"] == ""


@row("4.4-settle-network")
async def test_network_is_the_payments(world: World) -> None:
    for body in (world.asking(), world.asking(payer=Wallet())):
        assert (await world.settle(body)).body["network"] == "base-sepolia"


@row("4.4-settle-amount")
async def test_amount_is_in_base_units(world: World) -> None:
    for value in (1, 2_500_001):
        assert (await world.settle(world.asking(value))).body["amount"] == str(value)
    assert (await world.settle(world.asking(77, payer=Wallet()))).body["amount"] == "77"
