"""Specification 2.3: the payment payload, field by field. What a gate refuses is a 402 that says why (contract 4.5)."""

from __future__ import annotations

import base64
import copy
import json
import os
import time
from decimal import Decimal

from tests.specification.client import Answer, Json, Wallet, authorization, header, members, payment, typed_data
from tests.specification.rows import row
from tests.specification.world import World


async def assert_unreadable(world: World, gate: Json, payload: object) -> Answer:
    """The gate calls a payment that is none what it is, and nothing reaches the target."""
    answer = await world.call(gate, header(payload))
    assert answer.refusal == (402, "PAYMENT_INVALID", "payment"), answer.content
    assert answer.body["accepts"]
    return answer


async def assert_each_unreadable(world: World, path: str, *values: object) -> None:
    """A payment that is right but for this member is taken by no gate; without the member it is not either."""
    gate = await world.gate()
    right = world.signed(await world.wanted(gate))
    *parents, name = path.split(".")
    for value in values:
        wrong = copy.deepcopy(right)
        place = wrong
        for parent in parents:
            place = place[parent]
        place[name] = value
        await assert_unreadable(world, gate, wrong)
    without = copy.deepcopy(right)
    place = without
    for parent in parents:
        place = place[parent]
    del place[name]
    await assert_unreadable(world, gate, without)
    assert world.target.requests == []
    assert (await world.call(gate, header(right))).status == 200


async def assert_refused(world: World, gate: Json, paid: Json | str, code: str) -> Json:
    """The gate refuses the payment with this code. Returns the error's details."""
    answer = await world.call(gate, paid if isinstance(paid, str) else header(paid))
    assert answer.refusal == (402, code, "payment"), answer.content
    details: Json = answer.error["details"]
    return details


@row("2.3-x402Version")
async def test_version_is_the_integer_one(world: World) -> None:
    await assert_each_unreadable(world, "x402Version", 2, 0, "1", 1.0, True, None)


@row("2.3-scheme")
async def test_scheme_is_exact(world: World) -> None:
    await assert_each_unreadable(world, "scheme", "upto", "EXACT", "", 1, None)


@row("2.3-network")
async def test_network_is_the_gates_by_one_of_its_names(world: World) -> None:
    gate = await world.gate()
    right = world.signed(await world.wanted(gate))
    for other in ("base", "base-mainnet", "solana-mainnet", "solana", "Base-Sepolia", "mainnet"):
        await assert_refused(world, gate, {**right, "network": other}, "INVALID_NETWORK")
    await assert_refused(world, gate, {**right, "network": "solana-devnet"}, "PAYMENT_INVALID")  # of the other family
    await assert_each_unreadable(world, "network", 84532, None, ["base-sepolia"])
    assert (await world.call(gate, header(right))).confirmation["network"] == "base-sepolia"


@row("2.3-payload")
async def test_payload_is_an_object_of_the_networks_family(world: World) -> None:
    await assert_each_unreadable(world, "payload", "text", [], 1, {}, {"signature": "0x00"})


@row("2.3-base64")
async def test_the_header_is_base64_of_json(world: World) -> None:
    gate = await world.gate()
    right = json.dumps(world.signed(await world.wanted(gate))).encode()
    encoded = base64.b64encode(right).decode()
    for unreadable in ("", "{}", right.decode(), encoded[:-5], encoded + "!", base64.b64encode(b"[1]").decode()):
        if unreadable:
            await assert_refused(world, gate, unreadable, "PAYMENT_INVALID")
    assert (await world.call(gate, encoded)).status == 200


@row("2.3-signature")
async def test_signature_is_hex_and_the_payers_own(world: World) -> None:
    await assert_each_unreadable(world, "payload.signature", "not hex", "", 5, None, "ab" * 65, "0xabc")
    gate = await world.gate()
    wanted = await world.wanted(gate)
    others = Wallet().sign_typed(typed_data(wanted, world.chain))
    right = world.sign(wanted)
    for wrong in (others, right[:-2], right + "00", "0x" + "00" * 65, "0x" + os.urandom(65).hex()):
        await assert_refused(world, gate, payment(wanted, wrong), "INVALID_SIGNATURE")
    assert (await world.call(gate, header(payment(wanted, right)))).status == 200


@row("2.3-authorization.from")
async def test_from_is_the_wallet_that_pays(world: World) -> None:
    await assert_each_unreadable(world, "payload.authorization.from", "0x12", 5, None, "", "0x" + "g" * 40)
    gate = await world.gate()
    payer = await world.funded(10_000)
    wanted = authorization(payer.address, gate["paymentAddress"], 10_000)
    signature = payer.sign_typed(typed_data(wanted, world.chain))
    of_somebody_else = payment({**wanted, "from": world.buyer.address}, signature)
    await assert_refused(world, gate, of_somebody_else, "INVALID_SIGNATURE")
    answer = await world.call(gate, header(payment(wanted, signature)))
    assert (answer.status, answer.confirmation["payer"].lower()) == (200, payer.address.lower())
    assert await world.balance(payer.address) == 0


@row("2.3-authorization.to")
async def test_to_is_the_recipient_that_the_gate_names(world: World) -> None:
    await assert_each_unreadable(world, "payload.authorization.to", "0x12", 5, None, "", "0x" + "g" * 40)
    recipient, thief = Wallet().address, Wallet().address
    gate = await world.gate(paymentAddress=recipient)
    details = await assert_refused(world, gate, await world.payment(gate, to=thief), "PAYMENT_INVALID")
    assert (details["expected"].lower(), details["found"].lower()) == (recipient.lower(), thief.lower())
    assert (await world.call(gate, await world.payment(gate))).status == 200
    assert (await world.balance(recipient), await world.balance(thief)) == (10_000, 0)


@row("2.3-authorization.value")
async def test_value_is_a_string_of_micro_units(world: World) -> None:
    await assert_each_unreadable(
        world, "payload.authorization.value", 10_000, "0.01", "1e4", "-10000", "", "0x2710", None, str(2**256)
    )
    recipient = Wallet().address
    gate = await world.gate(price="0.5", paymentAddress=recipient)
    underpaid = await world.payment(gate, value="499999")
    details = await assert_refused(world, gate, underpaid, "INSUFFICIENT_AMOUNT")
    assert (details["expected"], details["found"]) == ("500000", "499999")
    answer = await world.call(gate, await world.payment(gate, value="500000"))
    assert (answer.confirmation["amount"], await world.balance(recipient)) == ("500000", 500_000)


@row("2.3-authorization.validAfter")
async def test_valid_after_is_the_earliest_time(world: World) -> None:
    await assert_each_unreadable(world, "payload.authorization.validAfter", "now", "-1", "", None, 1.5)
    gate = await world.gate()
    now = int(time.time())
    await assert_refused(world, gate, await world.payment(gate, validAfter=str(now + 60)), "PAYMENT_INVALID")
    for good in ("0", str(now - 60)):
        assert (await world.call(gate, await world.payment(gate, validAfter=good))).status == 200


@row("2.3-authorization.validBefore")
async def test_valid_before_is_the_latest_time_as_string_or_number(world: World) -> None:
    await assert_each_unreadable(world, "payload.authorization.validBefore", "later", "-1", -1, "", None, 1e12, True)
    gate = await world.gate()
    now = int(time.time())
    for late in (str(now - 1), now - 1, "1", str(now)):
        await assert_refused(world, gate, await world.payment(gate, validBefore=late), "PAYMENT_EXPIRED")
    for good in (str(now + 60), now + 60):
        assert (await world.call(gate, await world.payment(gate, validBefore=good))).status == 200


@row("2.3-authorization.nonce")
async def test_nonce_is_32_random_bytes_and_good_once(world: World) -> None:
    random = os.urandom(32).hex()
    await assert_each_unreadable(
        world, "payload.authorization.nonce", random, "0x" + random[2:], "0x" + random + "00", "0x" + "zz" * 32, 5, None
    )
    first, second = await world.gate(), await world.gate()
    nonce = "0x" + random
    paid = await world.payment(first, nonce=nonce)
    assert (await world.call(first, paid)).status == 200
    await assert_refused(world, second, paid, "NONCE_ALREADY_USED")
    other_authorization = await world.payment(second, nonce=nonce, validBefore=str(int(time.time()) + 600))
    await assert_refused(world, second, other_authorization, "NONCE_ALREADY_USED")
    assert len(world.target.requests) == 2  # one of `assert_each_unreadable`


@row(
    "2.3-EIP-712-domain.name",
    "2.3-EIP-712-domain.version",
    "2.3-EIP-712-domain.chainId",
    "2.3-EIP-712-domain.verifyingContract",
)
async def test_the_domain_that_is_signed_is_the_tables(world: World, row_id: str) -> None:
    name = row_id.removeprefix("2.3-EIP-712-domain.")
    table = {"name": "USD Coin", "version": "2", "chainId": 84532, "verifyingContract": world.chain.token}
    wrong = {
        "name": ("USDC", "usd coin", "", "USD Coin "),
        "version": ("1", "", "2.0"),
        "chainId": (8453, 1, 0),
        "verifyingContract": (Wallet().address, "0x" + "00" * 20),
    }[name]
    gate = await world.gate()
    wanted = await world.wanted(gate)
    for value in wrong:
        details = await assert_refused(world, gate, world.signed(wanted, **{name: value}), "INVALID_SIGNATURE")
        assert details["expected"]["domain"] == {"name": "USD Coin", "version": "2"}
    assert (await world.call(gate, header(world.signed(wanted, **table)))).status == 200


@row("2.3-EIP-712-primaryType", "2.3-EIP-712-types.TransferWithAuthorization", "2.3-EIP-712-message")
async def test_the_struct_that_is_signed_is_the_tables(world: World, row_id: str) -> None:
    gate = await world.gate()
    wanted = await world.wanted(gate)
    right = typed_data(wanted, world.chain)
    struct = right["types"]["TransferWithAuthorization"]

    def renamed(name: str) -> Json:
        types = {"EIP712Domain": right["types"]["EIP712Domain"], name: struct}
        return {**right, "types": types, "primaryType": name}

    def typed(fields: list[Json]) -> Json:
        return {**right, "types": {**right["types"], "TransferWithAuthorization": fields}}

    def saying(**changes: object) -> Json:
        return {**right, "message": {**right["message"], **changes}}

    wrong = {
        "2.3-EIP-712-primaryType": [renamed("ReceiveWithAuthorization"), renamed("Transfer")],
        "2.3-EIP-712-types.TransferWithAuthorization": [
            typed([struct[1], struct[0], *struct[2:]]),
            typed([*struct[:2], *members((("value", "uint128"),)), *struct[3:]]),
            typed(struct[:-1]),
        ],
        "2.3-EIP-712-message": [
            saying(to=Wallet().address),
            saying(value=10_001),
            saying(validAfter=1),
            saying(validBefore=int(wanted["validBefore"]) + 1),
            saying(nonce="0x" + os.urandom(32).hex()),
        ],
    }[row_id]
    for data in wrong:
        await assert_refused(world, gate, payment(wanted, world.buyer.sign_typed(data)), "INVALID_SIGNATURE")
    assert (await world.call(gate, header(payment(wanted, world.buyer.sign_typed(right))))).status == 200


@row("2.3-value-of-amount")
async def test_the_payer_computes_the_value_as_the_amount_times_a_million(world: World) -> None:
    for price in ("0.000001", "0.01", "1.5", "2", "0.123456"):
        recipient = Wallet().address
        gate = await world.gate(price=price, paymentAddress=recipient)
        amount = (await world.asked(gate))["paymentRequired"]["amount"]
        value = int(Decimal(amount) * 1_000_000)
        assert (await world.call(gate, await world.payment(gate, value=str(value)))).status == 200
        assert await world.balance(recipient) == value
        less = await world.payment(gate, value=str(value - 1))
        await assert_refused(world, gate, less, "INSUFFICIENT_AMOUNT")
