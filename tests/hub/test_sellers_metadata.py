"""What clients and sellers of the field send beside, or instead of, what the hub's own examples show (contract 5.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.counterfactual import FACTORY, FutureWallet, plant_factory
from tests.engines import beside
from tests.hub.hub_under_test import HubUnderTest, TestPayment, new_payment, run_hub, settle_body
from tests.hub.test_contract_wallets import in_thread


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for level in range(levels):
        schema = {"type": "object", "properties": {f"level{level}": schema}}
    return schema


METADATA: dict[str, dict[str, Any]] = {
    "a schema of a nested object": {"outputSchema": {"input": {"bodyFields": {"order": nested(2)}}, "output": None}},
    "a schema as deep as may be": {"outputSchema": nested(30)},
    "a long description": {"description": "d" * 40_000},
    "half an emoji at the end of a cut description": {"description": "shop \ud83d"},
    "a description that is no text": {"description": {"en": "shop"}, "mimeType": ["text/html"]},
    "a long resource": {"resource": "https://shop.example/quote?q=" + "a" * 30_000},
    "a resource that is no text": {"resource": 5},
    "half an emoji in the resource": {"resource": "https://shop.example/\ud83d"},
    "an extra that is a list": {"extra": ["USDC", "2"]},
    "an extra with more in it": {
        "extra": {"name": "USD Coin", "version": "2", "more": nested(3), "much": "m" * 40_000}
    },
    "unknown members": {"x-trace": {"a": [[[[[[[[[[1]]]]]]]]]]}, "max": 10**100, "share": 0.1},
}


async def test_a_seller_s_metadata_never_refuses_a_payment_and_is_not_kept(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, tmp_path: Path
) -> None:
    for name, metadata in METADATA.items():
        payment = new_payment(embedded_chain)
        verified = await hub.post("/verify", payment.requiring(**metadata))
        assert (verified.status, verified.body.get("isValid")) == (200, True), (name, verified.body)
        settled = await hub.post("/settle", {**payment.requiring(**metadata), "confirm": True})
        assert settled.body.get("success") is True, (name, settled.body)
    with beside(tmp_path / "hub.db") as database:
        kept = [json.loads(row[0]) for row in database.execute("SELECT requirements FROM settlements")]
    assert len(kept) == len(METADATA)
    assert max(len(json.dumps(one)) for one in kept) < 3_000
    assert {name for one in kept for name in one["extra"]} == {"name", "version"}


async def test_the_same_requirements_are_the_same_whatever_a_seller_says_beside_them(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    again = payment.requiring(description="another text", outputSchema={"a": 1})
    assert (await hub.post("/settle", {**again, "confirm": True})).body["success"] is True


@pytest.mark.parametrize("path", ["/verify", "/settle"])
async def test_a_member_that_takes_part_and_comes_twice_is_refused(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, path: str
) -> None:
    text = json.dumps(new_payment(embedded_chain).body)
    for member in ('"payTo"', '"maxAmountRequired"', '"nonce"', '"paymentRequirements"'):
        twice = text.replace(member, f'{member}: "0x1", {member}', 1)
        answer = await hub.send("POST", path, data=twice.encode())
        assert answer.status == 400, (member, answer.body)


async def test_what_is_deeper_than_64_is_not_read(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    answer = await hub.post("/verify", new_payment(embedded_chain).requiring(outputSchema=nested(40)))
    assert (answer.status, answer.code) == (400, "INVALID_PARAMETER")


@pytest.mark.parametrize("by", ["verify", "settle", "transfer"])
async def test_a_signature_with_a_v_of_0_or_1_is_as_good_as_any(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, by: str
) -> None:
    seen: set[int] = set()
    while len(seen) < 2:
        authorization = embedded_chain.authorization()
        signature = embedded_chain.sign(authorization)
        plain = signature[:-1] + bytes([signature[-1] - 27])
        if plain[-1] in seen:
            continue
        seen.add(plain[-1])
        payment = TestPayment(authorization, settle_body(embedded_chain, authorization, plain))
        if by == "verify":
            assert (await hub.post("/verify", payment.body)).body["isValid"] is True
            continue
        if by == "settle":
            assert (await hub.settle(payment)).body["success"] is True
            again = new_payment(embedded_chain, signature=signature, **_fields(authorization))
            assert (await hub.settle(again)).reason == "duplicate_settlement"
            continue
        body = {
            "network": "base-sepolia",
            "payload": payment.body["paymentPayload"]["payload"],
            "asset": payment.body["paymentRequirements"]["asset"],
            "amount": authorization.value,  # a JSON integer
            "confirm": True,
        }
        assert (await hub.post("/transfer", body)).body["success"] is True


def _fields(authorization: Any) -> dict[str, Any]:
    return {name: getattr(authorization, name) for name in ("value", "valid_after", "valid_before", "nonce")}


@pytest.mark.parametrize("path", ["/verify", "/settle", "/transfer"])
async def test_a_deployed_wallet_s_signature_may_be_wrapped_whoever_its_factory_is(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, path: str
) -> None:
    chain = anvil_fiat_token
    await in_thread(plant_factory, chain)
    async with run_hub(tmp_path, chain) as hub:
        wallet = FutureWallet(chain)
        await in_thread(chain.mint, wallet.address, 100_000)
        authorization = await in_thread(wallet.authorization)
        signature = await in_thread(wallet.sign, authorization)
        payment = TestPayment(authorization, settle_body(chain, authorization, signature))
        payload = payment.body["paymentPayload"]["payload"]
        transfer = {
            "network": "base-sepolia",
            "payload": payload,
            "asset": payment.body["paymentRequirements"]["asset"],
        }
        body = transfer if path == "/transfer" else payment.body
        refused = await hub.post(path, body)
        assert "eip6492" in str(refused.body)
        await in_thread(wallet.deploy)
        answer = (await hub.post(path, {**body, "confirm": True})).body
        assert answer.get("isValid", answer.get("success")) is True, (answer, FACTORY)


@pytest.mark.parametrize("path", ["//verify", "//api/v1/verify"])
async def test_a_doubled_slash_below_the_hub_s_root_is_one(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, path: str
) -> None:
    payment = new_payment(embedded_chain)
    assert (await hub.post(path, payment.body)).body["isValid"] is True
    assert (await hub.get("//supported")).body["kinds"]
    assert (await hub.get("///supported")).status == 400
    assert (await hub.post("/api/v1//verify", payment.body)).status == 400


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize("where", ["request", "payment", "both"])
async def test_an_unknown_version_is_a_reason_whatever_members_it_has(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, version: int, where: str
) -> None:
    body = new_payment(embedded_chain).body
    if where in {"request", "both"}:
        body = {**body, "x402Version": version}
    if where in {"payment", "both"}:
        payment = {"x402Version": version, "accepted": {"scheme": "exact"}, "payload": {}}
        requirements = {"scheme": "exact", "network": "eip155:84532", "amount": "10000", "payTo": "0x"}
        body = {**body, "paymentPayload": payment, "paymentRequirements": requirements}
    verified = await hub.post("/verify", body)
    assert (verified.status, verified.body["isValid"], verified.reason) == (200, False, "invalid_x402_version")
    settled = await hub.post("/settle", body)
    assert (settled.status, settled.body["success"], settled.reason) == (200, False, "invalid_x402_version")
    assert (settled.body["transaction"], settled.body["amount"]) == ("", "10000")


@pytest.mark.parametrize("members", [{}, {"payment": {}}, {"paymentPayload": "0x", "paymentRequirements": []}])
async def test_an_unknown_version_is_a_reason_where_the_members_that_we_know_are_missing(
    hub: HubUnderTest, members: dict[str, Any]
) -> None:
    verified = await hub.post("/verify", {"x402Version": 3, **members})
    assert (verified.status, verified.reason) == (200, "invalid_x402_version")
    settled = await hub.post("/settle", {"x402Version": 3, **members})
    assert (settled.status, settled.body["success"], settled.reason) == (200, False, "invalid_x402_version")
