"""Specification 2.1 to 2.4 on Solana: the recipient, the 402 in both shapes, the payment payload, the node."""

from __future__ import annotations

import base64
import binascii
import json

from solders.keypair import Keypair

from tests.specification.client import Json, header
from tests.specification.rows import row
from tests.specification.solana_world import NETWORK, USDC_MINT, SolanaWorld, payload
from tests.specification.test_2_requirements import PROFILES, at


@row("2.1-paymentAddress-solana")
async def test_the_recipient_is_a_solana_wallet_is_stored_encrypted_and_changes_at_once(solana: SolanaWorld) -> None:
    world = solana.world
    unseen = str(Keypair().pubkey())
    gate = await solana.gate(paymentAddress=unseen)
    assert gate["paymentAddress"] == unseen
    assert not [name for name, rows in world.dump().items() if unseen in repr(rows)]
    former, latter = str((await solana.funded()).pubkey()), str((await solana.funded()).pubkey())
    gate = await solana.gate(paymentAddress=former)
    paid = await solana.payment(gate)
    assert (await world.update(gate, paymentAddress=latter)).status == 200
    assert (await world.call(gate, paid)).refusal == (402, "PAYMENT_INVALID", "payment")
    await solana.buy(gate)
    assert (await solana.balance(former), await solana.balance(latter)) == (0, 10_000)
    for wrong in ("0x" + "71" * 20, unseen[:20], USDC_MINT, "", 5):
        refused = await world.create(network=NETWORK, paymentAddress=wrong)
        assert refused.status == 400, wrong


@row(
    *("2.2-A-x402.token-solana", "2.2-A-x402.amount-solana", "2.2-A-x402.address-solana", "2.2-B-error-solana"),
    *("2.2-B-x402Version-solana", "2.2-B-accepts-solana", "2.2-B-paymentRequired.amount-solana"),
    *("2.2-B-paymentRequired.currency-solana", "2.2-B-paymentRequired.network-solana"),
)
async def test_a_402_has_both_shapes(solana: SolanaWorld, row_id: str) -> None:
    world = solana.world
    _, shape, path = row_id.removesuffix("-solana").split("-")
    gate = await solana.gate(price="0.25", mimeType="text/csv")
    literal = await world.call(gate, headers={"Accept": PROFILES[shape]})
    assert (literal.status, literal.headers["x402-version"]) == (402, "1")
    expected: Json = {
        "x402": {"token": "USDC", "amount": "0.25", "address": solana.owner},
        "error": "Payment required",
        "x402Version": 1,
        "accepts": ["text/csv"],
        "paymentRequired": {"amount": "0.25", "currency": "USDC", "network": NETWORK},
    }
    assert literal.body.keys() == ({"x402"} if shape == "A" else expected.keys() - {"x402"})
    assert at(literal.body, path) == at(expected, path)
    default = await world.asked(gate)
    if path != "accepts":
        assert at(default, path) == at(expected, path)
        return
    (requirements,) = default["accepts"]
    (fee_payer,) = requirements.pop("extra").items()
    # Any of the hub's, as a gateway may ask for the one of before the hour until it asks the hub again.
    assert fee_payer in [("feePayer", one) for one in await solana.fee_payers()]
    assert requirements == {
        "scheme": "exact",
        "network": NETWORK,
        "maxAmountRequired": "250000",
        "resource": gate["accessUrl"],
        "description": "",
        "mimeType": "text/csv",
        "payTo": solana.owner,
        "maxTimeoutSeconds": 60,
        "asset": USDC_MINT,
    }


async def refused_and_taken(solana: SolanaWorld, wrong: dict[str, object], code: str) -> None:
    """A payment with these members is refused with the code; it is taken as it was."""
    world = solana.world
    gate = await solana.gate()
    right = json.loads(base64.b64decode(await solana.payment(gate)))
    assert (await world.call(gate, header({**right, **wrong}))).refusal == (402, code, "payment")
    for name in wrong:
        without = {key: value for key, value in right.items() if key != name}
        assert (await world.call(gate, header(without))).refusal == (402, "PAYMENT_INVALID", "payment")
    assert (await world.call(gate, header(right))).status == 200


@row("2.3-x402Version-solana")
async def test_the_version_is_one(solana: SolanaWorld) -> None:
    for wrong in (2, 0, "1"):
        await refused_and_taken(solana, {"x402Version": wrong}, "PAYMENT_INVALID")


@row("2.3-scheme-solana")
async def test_the_scheme_is_exact(solana: SolanaWorld) -> None:
    assert (await solana.kind())["scheme"] == "exact"
    for wrong in ("upto", "", 1):
        await refused_and_taken(solana, {"scheme": wrong}, "PAYMENT_INVALID")


@row("2.3-network-solana")
async def test_the_network_is_the_gates(solana: SolanaWorld) -> None:
    for wrong in ("solana-mainnet", "solana", "ethereum"):
        await refused_and_taken(solana, {"network": wrong}, "INVALID_NETWORK")
    await refused_and_taken(solana, {"network": "base-sepolia"}, "PAYMENT_INVALID")  # a payload of the other family


@row("2.3-payload-solana")
async def test_the_payload_is_a_transaction_in_base64_and_no_authorization(solana: SolanaWorld) -> None:
    transaction = await solana.transaction(10_000)
    raw = base64.b64decode(transaction)
    for wrong in (
        {},
        {"transaction": transaction[:-8]},
        {"transaction": "not base64"},
        {"transaction": binascii.hexlify(raw).decode()},
        {"transaction": 5},
        {"signature": "0x00", "authorization": {}},
    ):
        await refused_and_taken(solana, {"payload": wrong}, "PAYMENT_INVALID")


@row("2.3-value-of-amount-solana")
async def test_the_value_is_the_amount_times_a_million_and_neither_more_nor_less(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate(price="0.123456")
    had = await solana.balance(solana.owner)
    for value, code in ((123_455, "INSUFFICIENT_AMOUNT"), (123_457, "PAYMENT_INVALID")):
        paid = await solana.payment(gate, value=value)
        assert (await world.call(gate, paid)).refusal == (402, code, "payment")
    assert (await world.call(gate, await solana.payment(gate, value=123_456))).status == 200
    assert await solana.balance(solana.owner) == had + 123_456


@row("2.3-base64-solana")
async def test_the_header_is_base64_of_json(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate()
    encoded = await solana.payment(gate)
    for unreadable in (
        base64.b64decode(encoded).decode(),
        encoded[:-5],
        encoded + "!",
        base64.b64encode(b"[]").decode(),
    ):
        assert (await world.call(gate, unreadable)).refusal == (402, "PAYMENT_INVALID", "payment")
    assert (await world.call(gate, encoded)).status == 200


@row("2.4-node-address-solana")
async def test_payments_are_settled_at_the_networks_node(solana: SolanaWorld) -> None:
    _, answer = await solana.buy(await solana.gate())
    found = await solana.node("getSignatureStatuses", [answer.confirmation["transaction"]])
    assert found["value"][0]["err"] is None


@row("9.2-solana")
async def test_the_protocol_is_version_1(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate()
    asking = await solana.asking()
    answers = [
        await world.call(gate),
        await world.call(gate, header({**payload(await solana.transaction(10_000)), "x402Version": 2})),
        await world.call(gate, await solana.payment(gate)),
        await world.verify({**asking, "x402Version": 2}),
        await world.settle({**asking, "x402Version": 2}),
        await world.verify(asking),
    ]
    assert [answer.status for answer in answers] == [402, 402, 200, 200, 200, 200]
    assert {answer.headers["x402-version"] for answer in answers} == {"1"}
    assert answers[0].body["x402Version"] == answers[1].body["x402Version"] == (await solana.kind())["x402Version"] == 1
    assert answers[3].body["invalidReason"] == answers[4].body["errorReason"] == "invalid_x402_version"
    assert answers[5].body["isValid"] is True
