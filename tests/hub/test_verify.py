"""Every reason for which verify and settle say no, on real chains; and what is no payment at all (contract 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode, recording
from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment, new_payment
from tollkeeper.core.evm.encoding import SECP256K1_ORDER, checksum_address, domain_separator
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

FAR = "0x" + "77" * 20


def high_s(signature: bytes) -> bytes:
    s = SECP256K1_ORDER - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


def compact(signature: bytes) -> bytes:
    s = int.from_bytes(signature[32:64], "big") | ((signature[64] - 27) << 255)
    return signature[:32] + s.to_bytes(32, "big")


def changed_signature(chain: ChainUnderTest, change: Callable[[bytes], bytes]) -> dict[str, Any]:
    payment = new_payment(chain)
    payload = payment.body["paymentPayload"]["payload"]
    signature = change(bytes.fromhex(payload["signature"][2:]))
    return with_payment(payment, payload={**payload, "signature": "0x" + signature.hex()})


def with_payment(payment: TestPayment, **fields: Any) -> dict[str, Any]:
    return payment.asking(paymentPayload={**payment.body["paymentPayload"], **fields})


def wrong_domain(chain: ChainUnderTest, name: str, chain_id: int, asset: str) -> dict[str, Any]:
    return new_payment(chain, separator=domain_separator(name, "2", chain_id, asset)).body


PAYLOAD = "invalid_exact_evm_payload_"
REASONS: dict[str, tuple[str, Callable[[ChainUnderTest], dict[str, Any]]]] = {
    "request version 2": ("invalid_x402_version", lambda chain: new_payment(chain).asking(x402Version=2)),
    "payload version 2": ("invalid_x402_version", lambda chain: with_payment(new_payment(chain), x402Version=2)),
    "scheme": ("unsupported_scheme", lambda chain: with_payment(new_payment(chain), scheme="upto")),
    "a scheme with a payload of its own": (
        "unsupported_scheme",
        lambda chain: with_payment(new_payment(chain), scheme="upto", payload={"permit2": {}}),
    ),
    "required scheme": ("unsupported_scheme", lambda chain: new_payment(chain).requiring(scheme="upto")),
    "unknown network": ("invalid_network", lambda chain: with_payment(new_payment(chain), network="ethereum")),
    "network not enabled": ("invalid_network", lambda chain: with_payment(new_payment(chain), network="base")),
    "solana": (
        "invalid_network",
        lambda chain: with_payment(new_payment(chain), network="solana", payload={"transaction": "AQ=="}),
    ),
    "required network": ("invalid_network", lambda chain: new_payment(chain).requiring(network="base")),
    "solana payload on an EVM network": (
        "invalid_payload",
        lambda chain: with_payment(new_payment(chain), payload={"transaction": "AQ=="}),
    ),
    "asset": ("invalid_payment_requirements", lambda chain: new_payment(chain).requiring(asset=FAR)),
    "recipient": (PAYLOAD + "recipient_mismatch", lambda chain: new_payment(chain).requiring(payTo=FAR)),
    "underpaid by one": (PAYLOAD + "authorization_value", lambda chain: new_payment(chain, value=9_999).body),
    "expired": (PAYLOAD + "authorization_valid_before", lambda chain: new_payment(chain, valid_before=1).body),
    "expires in three seconds": (
        PAYLOAD + "authorization_valid_before",
        lambda chain: new_payment(chain, valid_before=chain.now() + 3).body,
    ),
    "not yet valid": (
        PAYLOAD + "authorization_valid_after",
        lambda chain: new_payment(chain, valid_after=chain.now() + 100_000).body,
    ),
    "signed by somebody else": (
        PAYLOAD + "signature",
        lambda chain: new_payment(chain, signer=chain.wallets.second_buyer, payer=chain.wallets.buyer.address).body,
    ),
    "domain name": (PAYLOAD + "signature", lambda chain: wrong_domain(chain, "Wrong", 84532, USDC_ADDRESS)),
    "domain chain": (PAYLOAD + "signature", lambda chain: wrong_domain(chain, chain.token_name, 8453, USDC_ADDRESS)),
    "domain contract": (PAYLOAD + "signature", lambda chain: wrong_domain(chain, chain.token_name, 84532, FAR)),
    "high s": (PAYLOAD + "signature", lambda chain: changed_signature(chain, high_s)),
    "compact signature": (PAYLOAD + "signature", lambda chain: changed_signature(chain, compact)),
    "one byte more": (PAYLOAD + "signature", lambda chain: changed_signature(chain, lambda raw: raw + b"\0")),
    "no balance": (
        "insufficient_funds",
        lambda chain: new_payment(chain, signer=chain.wallets.relayer, value=10_000).body,
    ),
    "more than the balance": (
        "insufficient_funds",
        lambda chain: new_payment(chain, value=chain.balance(chain.wallets.buyer.address) + 1).body,
    ),
}


@pytest.mark.parametrize("case", REASONS)
async def test_a_refused_payment_has_the_reference_s_reason_and_is_never_sent(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, case: str
) -> None:
    reason, make = REASONS[case]
    body = make(embedded_chain)
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    verified = await hub.post("/verify", body)
    assert (verified.status, verified.body["isValid"], verified.reason) == (200, False, reason)
    settled = await hub.post("/settle", body | {"confirm": True})
    assert (settled.status, settled.body["success"], settled.body["status"]) == (200, False, "failed")
    assert (settled.reason, settled.body["transaction"]) == (reason, "")
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined
    assert not await hub.database.read(Statement("SELECT id FROM settlements"))


async def test_a_valid_payment_is_valid_until_it_is_used(hub_on_chain: HubUnderTest, chain: ChainUnderTest) -> None:
    payment = new_payment(chain)
    valid = await hub_on_chain.post("/verify", payment.body)
    assert valid.body | {"timestamp": ""} == {
        "isValid": True,
        "invalidReason": None,
        "payer": checksum_address(payment.authorization.payer),
        "apiVersion": "v1",
        "timestamp": "",
    }
    assert (await hub_on_chain.settle(payment)).body["success"] is True
    assert (await hub_on_chain.post("/verify", payment.body)).reason == "invalid_exact_evm_nonce_already_used"


async def test_a_cancelled_authorization_is_a_used_one_and_its_transaction_is_named(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest
) -> None:
    payment = new_payment(chain)
    nonce = payment.authorization.nonce
    signature = chain.sign_cancellation(chain.wallets.buyer, nonce)
    from tests.chains.abi import encode_call  # noqa: PLC0415

    data = encode_call(
        "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)",
        chain.wallets.buyer.address,
        bytes.fromhex(nonce[2:]),
        signature[64],
        signature[:32],
        signature[32:64],
    )
    receipt = chain.send_and_wait(chain.wallets.faucet, USDC_ADDRESS, data)
    answer = await hub_on_chain.settle(payment)
    assert answer.reason == "invalid_exact_evm_nonce_already_used"
    assert answer.body["transaction"] == receipt["transactionHash"]


async def test_explain_lists_every_check_with_expected_and_found(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain, value=9_999, valid_before=1)
    answer = await hub.post("/verify?explain=true", payment.body)
    checks = {check["name"]: check for check in answer.body["checks"]}
    assert [name for name, check in checks.items() if not check["ok"]] == ["value", "validBefore", "simulation"]
    assert (checks["value"]["expected"], checks["value"]["actual"]) == ("10000", "9999")
    assert checks["signature"]["ok"]
    assert answer.reason == PAYLOAD + "authorization_value"


async def test_a_signature_under_another_name_is_told_the_right_one(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    answer = await hub.post("/verify", wrong_domain(embedded_chain, "Wrong", 84532, USDC_ADDRESS))
    assert answer.body["details"]["expected"]["domain"] == {"name": embedded_chain.token_name, "version": "2"}


async def test_supported_is_what_every_official_client_reads(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    answer = await hub.get("/supported")
    kinds = answer.body["kinds"]
    shown = [(kind["x402Version"], kind["scheme"], kind["network"]) for kind in kinds]
    assert shown == [(2, "exact", "eip155:84532"), (1, "exact", "base-sepolia")]
    for kind in kinds:
        assert kind["extra"] == {"name": embedded_chain.token_name, "version": "2"}
        (asset,) = kind["assets"]
        assert asset["address"].lower() == USDC_ADDRESS
        assert (asset["symbol"], asset["decimals"]) == ("USDC", 6)
    assert answer.body["extensions"] == ["confirm"]
    (signers,) = answer.body["signers"].values()
    assert [signer.lower() for signer in signers] == [embedded_chain.wallets.relayer.address]


async def test_the_token_s_own_name_is_advertised(hub_on_chain: HubUnderTest, chain: ChainUnderTest) -> None:
    answer = await hub_on_chain.get("/api/v1/supported")
    assert answer.body["kinds"][0]["extra"]["name"] == chain.token_name


def without(body: dict[str, Any], *path: str) -> dict[str, Any]:
    return changed(body, None, *path)


def changed(body: dict[str, Any], value: object, *path: str) -> dict[str, Any]:
    first, *rest = path
    inner = changed(body[first], value, *rest) if rest else value
    return {**body, first: inner}


AUTHORIZATION = ("paymentPayload", "payload", "authorization")
MISSING = [
    ("x402Version",),
    ("paymentPayload",),
    ("paymentRequirements",),
    ("paymentPayload", "x402Version"),
    ("paymentPayload", "scheme"),
    ("paymentPayload", "network"),
    ("paymentPayload", "payload"),
    ("paymentPayload", "payload", "signature"),
    AUTHORIZATION,
    *((*AUTHORIZATION, name) for name in ("from", "to", "value", "validAfter", "validBefore", "nonce")),
    *(("paymentRequirements", name) for name in ("scheme", "network", "maxAmountRequired", "asset", "payTo")),
]
UNREADABLE: list[tuple[tuple[str, ...], object, str]] = [
    (("x402Version",), "1", "INVALID_PARAMETER"),
    (("paymentPayload",), [], "INVALID_PARAMETER"),
    (("paymentPayload", "payload", "signature"), "0xzz", "INVALID_PARAMETER"),
    ((*AUTHORIZATION, "from"), "0x12", "INVALID_ADDRESS"),
    ((*AUTHORIZATION, "to"), 5, "INVALID_ADDRESS"),
    ((*AUTHORIZATION, "value"), "1e4", "INVALID_AMOUNT"),
    ((*AUTHORIZATION, "value"), 10_000, "INVALID_AMOUNT"),
    ((*AUTHORIZATION, "value"), str(2**256), "INVALID_AMOUNT"),
    ((*AUTHORIZATION, "validAfter"), 0, "INVALID_PARAMETER"),
    ((*AUTHORIZATION, "validBefore"), -1, "INVALID_PARAMETER"),
    ((*AUTHORIZATION, "nonce"), "0x" + "0" * 63, "INVALID_PARAMETER"),
    (("paymentRequirements", "maxAmountRequired"), "0.01", "INVALID_AMOUNT"),
]


@pytest.mark.parametrize("path", ["/verify", "/settle"])
async def test_a_missing_or_unreadable_field_is_a_400_that_names_it(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, path: str
) -> None:
    body = new_payment(embedded_chain).body
    for field in MISSING:
        answer = await hub.post(path, without(body, *field))
        assert (answer.status, answer.code) == (400, "MISSING_PARAMETER"), field
        assert answer.body["error"]["details"]["field"] == ".".join(field)
    for field, value, code in UNREADABLE:
        answer = await hub.post(path, changed(body, value, *field))
        assert (answer.status, answer.code) == (400, code), field
        assert answer.body["error"]["type"] == "validation"


@pytest.mark.parametrize("path", ["/verify", "/settle"])
@pytest.mark.parametrize("kind", [{"scheme": "upto"}, {"network": "ethereum"}])
async def test_a_kind_that_is_not_ours_is_refused_by_a_reason_only_where_the_rest_is_readable(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, path: str, kind: dict[str, str]
) -> None:
    payment = new_payment(embedded_chain)
    body = with_payment(payment, payload={"of": "its own"}, **kind)
    assert (await hub.post(path, body)).status == 200
    for field in (field for field in MISSING if field[:2] != ("paymentPayload", "payload")):
        answer = await hub.post(path, without(body, *field))
        assert (answer.status, answer.code) == (400, "MISSING_PARAMETER"), field
    for amount in ("", "0.01", 10_000):
        answer = await hub.post(path, changed(body, amount, "paymentRequirements", "maxAmountRequired"))
        assert (answer.status, answer.code) == (400, "INVALID_AMOUNT"), amount


async def test_an_unreadable_idempotency_key_is_refused_whatever_it_came_with(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = with_payment(new_payment(embedded_chain), scheme="upto")
    answer = await hub.post("/settle", body, Idempotency_Key="")
    assert (answer.status, answer.code) == (400, "INVALID_PARAMETER")


async def test_options_of_settle_are_booleans(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    for field, value in (("confirm", "true"), ("useDbId", 1), ("purchaseData", [])):
        answer = await hub.post("/settle", new_payment(embedded_chain).asking(**{field: value}))
        assert (answer.status, answer.code) == (400, "INVALID_PARAMETER")
        assert answer.body["error"]["details"]["field"] == field


async def test_valid_before_may_be_a_json_integer(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    payment = new_payment(embedded_chain)
    body = changed(payment.body, payment.authorization.valid_before, *AUTHORIZATION, "validBefore")
    assert (await hub.post("/verify", body)).body["isValid"] is True
    assert (await hub.post("/settle", body | {"confirm": True})).body["success"] is True


def assert_error_body(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)
    assert answer.body["apiVersion"] == "v1"
    assert answer.body["error"]["requestId"] == answer.headers["X-Request-Id"]


async def test_every_error_has_the_specified_body(hub: HubUnderTest) -> None:
    assert_error_body(await hub.get("/nothing/here"), 404, "NOT_FOUND")
    assert_error_body(await hub.get("/settle"), 405, "METHOD_NOT_ALLOWED")
    refused = await hub.send("DELETE", "/supported")
    assert_error_body(refused, 405, "METHOD_NOT_ALLOWED")
    assert refused.headers["Allow"] == "GET, HEAD"
    assert (await hub.send("HEAD", "/supported")).status == 200
    assert_error_body(await hub.send("POST", "/verify", data=b"{"), 400, "INVALID_PARAMETER")
    assert_error_body(await hub.send("POST", "/verify", data=b"[]"), 400, "INVALID_PARAMETER")
    assert_error_body(await hub.send("POST", "/verify", data=b" " * 70_000), 413, "PAYLOAD_TOO_LARGE")
    assert_error_body(await hub.send("GET", "/supported", headers={"X-Big": "a" * 33_000}), 431, "HEADERS_TOO_LARGE")
    assert_error_body(await hub.get("/payments/base-sepolia/0x00/0x00"), 404, "NOT_FOUND")
    assert_error_body(await hub.get("/payments/mars/0x00/0x00"), 400, "INVALID_NETWORK")


async def test_a_node_that_does_not_answer_is_unavailable_never_a_reason(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment, rpc = new_payment(embedded_chain), chaos_hub.account.chain.rpc
    patience = rpc._timeout_seconds  # noqa: SLF001 - of whom nothing hangs for it is long
    for act in (Act.CUT, Act.SERVER_ERROR, Act.HANG):
        chaos.on("eth_call", act)
        rpc._timeout_seconds = 2.0 if act is Act.HANG else patience  # noqa: SLF001
        for path in ("/verify", "/settle"):
            answer = await chaos_hub.post(path, payment.body)
            assert_error_body(answer, 503, "UNAVAILABLE")
    chaos.calm()
    rpc._timeout_seconds = patience  # noqa: SLF001
    assert (await chaos_hub.settle(payment)).body["success"] is True


async def test_settling_what_was_just_verified_asks_for_its_own_simulation_in_one_batch_alone(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """Code, authorization state and balance are not read again; the simulation before signing is always its own."""
    await chaos_hub.settle(new_payment(embedded_chain))  # what is read once for all payments
    payment = new_payment(embedded_chain)
    assert (await chaos_hub.post("/verify", payment.body)).body["isValid"] is True
    requests: list[list[str]] = []
    chaos.act = recording(requests)
    assert (await chaos_hub.settle(payment)).body["success"] is True
    before_sending = requests[: requests.index(["eth_sendRawTransaction"])]
    asked = [methods for methods in before_sending if "eth_call" in methods or "eth_getCode" in methods]
    assert asked == [["eth_call", "eth_getBlockByNumber"]]
