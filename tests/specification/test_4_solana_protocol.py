"""Specification 4.1, 4.3 and 4.4 on Solana: access, supported, verify, settle, transfer and history, field by field."""

from __future__ import annotations

import asyncio

from solders.keypair import Keypair

from tests.specification.client import Json
from tests.specification.rows import field_of, row
from tests.specification.solana_world import NETWORK, USDC_MINT, SolanaWorld
from tests.specification.world import World


@row("4.1-access-solana")
async def test_a_paygate_is_accessed_by_its_slug_with_its_methods(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate(method="GET,POST", credits=2)
    for method in ("GET", "POST"):
        assert (await world.call(gate, method=method)).status == 402
    assert (await world.call(gate, method="PUT")).status == 405
    paid = await solana.payment(gate)
    answer = await world.call(gate, paid, "POST", data=b"\x00 passes \xff", headers={"Content-Type": "x/y"})
    assert (answer.status, answer.content) == (200, b'{"served":true}')
    confirmed = answer.confirmation
    assert (confirmed["success"], confirmed["network"], confirmed["amount"]) == (True, NETWORK, "10000")
    assert world.target.requests[-1].body == b"\x00 passes \xff"
    assert [(await world.call(gate, paid)).status for _ in range(2)] == [200, 402]


@row("4.3-network-solana", "4.3-history-solana")
async def test_history_shows_solana_among_the_others_or_alone(solana: SolanaWorld, row_id: str) -> None:
    payer = await solana.funded(30_000)
    for value in (10_000, 20_000):
        assert (await solana.world.settle({**await solana.asking(value, payer=payer), "confirm": True})).status == 200
    if row_id == "4.3-history-solana":
        assert [item["amount"] for item in (await solana.history(payer))["history"]] == ["20000", "10000"]
        assert (await solana.history(payer, limit=1, offset=1))["history"][0]["amount"] == "10000"
        return
    for network, count in ((NETWORK, 2), ("base-sepolia", 0), ("solana-mainnet", 0)):
        found = await solana.history(payer, network=network)
        assert (found["pagination"]["totalCount"], len(found["history"])) == (count, count)


@row("4.4-supported-kinds-solana")
async def test_supported_lists_one_kind_of_the_network(solana: SolanaWorld) -> None:
    kinds = (await solana.world.hub("GET", "/supported")).body["kinds"]
    (kind,) = [one for one in kinds if one["network"] == NETWORK]
    assert {"scheme", "network", "assets"} <= kind.keys()


@row("4.4-supported-scheme-solana", "4.4-supported-network-solana")
async def test_a_kind_is_a_scheme_on_a_network(solana: SolanaWorld, row_id: str) -> None:
    name = field_of(row_id)
    assert (await solana.kind())[name] == {"scheme": "exact", "network": NETWORK}[name]


@row(
    *("4.4-supported-assets.address-solana", "4.4-supported-assets.name-solana"),
    *("4.4-supported-assets.symbol-solana", "4.4-supported-assets.decimals-solana"),
)
async def test_a_kind_has_its_assets(solana: SolanaWorld, row_id: str) -> None:
    (asset,) = (await solana.kind())["assets"]
    expected = {"address": USDC_MINT, "name": "USD Coin", "symbol": "USDC", "decimals": 6}
    assert asset.keys() == expected.keys()
    name = field_of(row_id)
    assert (type(asset[name]), asset[name]) == (type(expected[name]), expected[name])


def verdict(operation: str, body: Json) -> tuple[bool, str | None]:
    """What verify or settle says, and why not."""
    if operation == "verify":
        return body["isValid"], body["invalidReason"]
    return body["success"], body["errorReason"]


async def asks(world: World, operation: str, body: Json) -> tuple[bool, str | None]:
    answer = await world.hub("POST", f"/{operation}", json=body)
    assert answer.status == 200, answer.content
    return verdict(operation, answer.body)


@row("4.4-verify-x402Version-solana", "4.4-settle-x402Version-solana")
async def test_the_version_of_a_request_is_one(solana: SolanaWorld, row_id: str) -> None:
    world, operation = solana.world, row_id.split("-")[1]
    asking = await solana.asking()
    for version in (2, 0):
        assert await asks(world, operation, {**asking, "x402Version": version}) == (False, "invalid_x402_version")
    refused = await world.hub("POST", f"/{operation}", json={**asking, "x402Version": "1"})
    assert refused.refusal == (400, "INVALID_PARAMETER", "validation")
    del asking["x402Version"]
    refused = await world.hub("POST", f"/{operation}", json=asking)
    assert refused.refusal == (400, "MISSING_PARAMETER", "validation")


@row(
    *("4.4-verify-paymentPayload-solana", "4.4-settle-paymentPayload-solana"),
    *("4.4-verify-paymentRequirements-solana", "4.4-settle-paymentRequirements-solana"),
)
async def test_payload_and_requirements_are_objects_with_all_their_members(solana: SolanaWorld, row_id: str) -> None:
    world = solana.world
    _, operation, name, _ = row_id.split("-")
    asking = await solana.asking()

    def without(body: Json, member: str) -> Json:
        return {key: value for key, value in body.items() if key != member}

    for body, code in (
        (without(asking, name), "MISSING_PARAMETER"),
        ({**asking, name: "text"}, "INVALID_PARAMETER"),
        ({**asking, name: without(asking[name], "scheme")}, "MISSING_PARAMETER"),
        ({**asking, name: without(asking[name], "network")}, "MISSING_PARAMETER"),
    ):
        refused = await world.hub("POST", f"/{operation}", json=body)
        assert refused.refusal == (400, code, "validation")
    other = await solana.asking(20_000)
    assert (await asks(world, operation, {**asking, name: other[name]}))[0] is False
    assert (await asks(world, operation, asking))[0] is True


@row("4.4-verify-isValid-solana")
async def test_is_valid_is_a_boolean(solana: SolanaWorld) -> None:
    world = solana.world
    asking = await solana.asking()
    good, poor = await world.verify(asking), await world.verify(await solana.asking(payer=await solana.funded()))
    assert (good.body["isValid"], poor.body["isValid"]) == (True, False)
    assert (await world.settle({**asking, "confirm": True})).body["status"] == "success"
    assert (await world.verify(asking)).body["isValid"] is False


@row("4.4-verify-invalidReason-solana")
async def test_invalid_reason_is_null_when_valid_and_a_string_otherwise(solana: SolanaWorld) -> None:
    world = solana.world
    asking = await solana.asking()
    assert (await world.verify(asking)).body["invalidReason"] is None
    required = asking["paymentRequirements"]
    changed = [
        {**asking, "paymentRequirements": {**required, "maxAmountRequired": "10001"}},
        {**asking, "paymentRequirements": {**required, "payTo": str(Keypair().pubkey())}},
        await solana.asking(payer=await solana.funded()),
        await solana.asking(is_signed=False),
    ]
    assert [(await world.verify(body)).body["invalidReason"] for body in changed] == [
        "invalid_exact_svm_payload_amount_insufficient",
        "invalid_exact_svm_payload_transaction_transfer_to_incorrect_ata",
        "insufficient_funds",
        "invalid_exact_svm_payload_signature_invalid",
    ]


async def is_carried_out(solana: SolanaWorld, transaction: str) -> bool:
    """Whether the node shows the transaction as carried out."""
    return (await solana.node("getSignatureStatuses", [transaction]))["value"][0] is not None


@row("4.4-settle-confirm-solana", "4.4-transfer-confirm-solana")
async def test_confirm_waits_for_the_chain_and_is_false_by_default(solana: SolanaWorld, row_id: str) -> None:
    world = solana.world
    path = f"/{row_id.split('-')[1]}"

    async def body(**changes: object) -> Json:
        plain = await (solana.asking() if path == "/settle" else solana.moving())
        return {key: value for key, value in {**plain, "confirm": None, **changes}.items() if value is not None}

    async with solana.held():
        for unconfirmed in (await body(), await body(confirm=False)):
            answer = await world.hub("POST", path, json=unconfirmed, headers={"Prefer": "wait=0"})
            assert answer.body["status"] == "success"
            assert not await is_carried_out(solana, answer.body["transaction"])
        waiting = asyncio.create_task(world.hub("POST", path, json=await body(confirm=True)))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        unknown = await world.hub("POST", path, json=await body(confirm=True), headers={"Prefer": "wait=0"})
        assert unknown.refusal == (503, "SETTLEMENT_PENDING", "payment")
    answer = await waiting
    assert (answer.body["status"], await is_carried_out(solana, answer.body["transaction"])) == ("success", True)
    refused = await world.hub("POST", path, json=await body(confirm="true"))
    assert refused.refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.4-settle-useDbId-solana")
async def test_use_db_id_gives_the_database_id_and_is_false_by_default(solana: SolanaWorld) -> None:
    for options, name in (({"useDbId": True}, "id"), ({"useDbId": False}, "transactionHash"), ({}, "transactionHash")):
        payer = await solana.funded(10_000)
        answer = await solana.world.settle({**await solana.asking(payer=payer), "confirm": True, **options})
        assert (answer.body["status"], answer.body["transaction"]) == ("success", (await solana.item(payer))[name])
    refused = await solana.world.settle({**await solana.asking(), "useDbId": 1})
    assert refused.refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.4-settle-status-solana")
async def test_status_is_success_once_and_failed_otherwise(solana: SolanaWorld) -> None:
    world = solana.world
    asking = {**await solana.asking(), "confirm": True}
    poor = await solana.asking(payer=await solana.funded())
    answers = [await world.settle(body) for body in (asking, asking, poor)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.body["status"] for answer in answers] == ["success", "failed", "failed"]


@row("4.4-settle-transaction-solana")
async def test_transaction_is_the_signature(solana: SolanaWorld) -> None:
    world = solana.world
    asking = {**await solana.asking(), "confirm": True}
    transaction = (await world.settle(asking)).body["transaction"]
    assert await is_carried_out(solana, transaction)
    assert (await world.settle(asking)).body["transaction"] == transaction  # a duplicate is told which one it repeats
    poor = await solana.asking(payer=await solana.funded())
    assert (await world.settle(poor)).body["transaction"] == ""


@row("4.4-settle-network-solana", "4.4-settle-amount-solana")
async def test_network_and_amount_are_the_payments(solana: SolanaWorld, row_id: str) -> None:
    name = row_id.split("-")[2]
    for payer in (await solana.funded(12_345), await solana.funded()):
        answer = await solana.world.settle(await solana.asking(12_345, payer=payer))
        assert answer.body[name] == {"network": NETWORK, "amount": "12345"}[name]


@row(
    *("4.4-transfer-payload-solana", "4.4-transfer-network-solana", "4.4-transfer-asset-solana"),
    *("4.4-transfer-amount-solana", "4.4-transfer-recipient-solana"),
)
async def test_each_of_a_transfers_fields_is_required_and_that_of_the_transaction(
    solana: SolanaWorld, row_id: str
) -> None:
    world, name = solana.world, row_id.split("-")[2]
    recipient = str((await solana.funded()).pubkey())
    body = await solana.moving(1234, recipient=recipient)
    without = await world.transfer({key: value for key, value in body.items() if key != name})
    assert without.refusal == (400, "MISSING_PARAMETER", "validation")
    assert without.error["details"]["field"] == name
    unreadable, contrary = (
        {
            "payload": ({}, "MISSING_PARAMETER"),
            "network": ("solana-goerli", "INVALID_NETWORK"),
            "asset": ("0x036C", "INVALID_ADDRESS"),
            "amount": ("12.34", "INVALID_AMOUNT"),
            "recipient": ("somebody", "INVALID_ADDRESS"),
        }[name],
        {
            "payload": (
                {"transaction": await solana.transaction(1235, recipient=recipient)},
                "PAYMENT_INVALID",
                "payment",
            ),
            "network": ("solana-mainnet", "INVALID_NETWORK", "validation"),
            "asset": (str(Keypair().pubkey()), "PAYMENT_INVALID", "payment"),
            "amount": ("1233", "PAYMENT_INVALID", "payment"),
            "recipient": (solana.owner, "PAYMENT_INVALID", "payment"),
        }[name],
    )
    assert (await world.transfer({**body, name: unreadable[0]})).refusal == (400, unreadable[1], "validation")
    assert (await world.transfer({**body, name: contrary[0]})).refusal == (400, *contrary[1:])
    assert (await world.transfer(body)).body["status"] == "success"
    assert await solana.balance(recipient) == 1234


@row("4.4-transfer-response.status-solana")
async def test_status_is_success_and_failed_where_the_chain_failed_it(solana: SolanaWorld) -> None:
    payer = await solana.funded(20_000)
    bodies = [await solana.moving(payer=payer) for _ in range(2)]
    async with solana.held():
        waiting = [asyncio.create_task(solana.world.transfer(body)) for body in bodies]
        await solana.sent(2)
        await solana.node("sandbox_openAccount", str(payer.pubkey()), -10_000)  # half of it goes elsewhere
    await solana.node("sandbox_advance", 40)  # until then another branch may still carry out the other one
    answers = await asyncio.gather(*waiting)
    assert [answer.status for answer in answers] == [200, 200]
    assert sorted(answer.body["status"] for answer in answers) == ["failed", "success"]


@row(
    *("4.4-transfer-response.transaction-solana", "4.4-transfer-response.network-solana"),
    "4.4-transfer-response.amount-solana",
)
async def test_a_transfer_answers_with_signature_network_and_base_units(solana: SolanaWorld, row_id: str) -> None:
    answer = (await solana.world.transfer(await solana.moving(77))).body
    name = field_of(row_id)
    if name == "transaction":
        assert await is_carried_out(solana, answer["transaction"])
    else:
        assert answer[name] == {"network": NETWORK, "amount": "77"}[name]
