"""Each payment rule refuses what it should, in order and at its boundary (specification 4.4, 7; A-12, A-13)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payments import (
    ASSETS,
    AUTHORIZATION,
    BASE,
    BASE_SEPOLIA,
    NOW_SECONDS,
    OTHER_KEY,
    PAY_TO,
    PAYER,
    REQUIREMENTS,
    signed_payload,
    signed_payment,
)
from tollkeeper.core.api.errors import ApiError, Code, ErrorType
from tollkeeper.core.evm.counterfactual import WalletDeployment, wrap
from tollkeeper.core.evm.encoding import SECP256K1_ORDER, Authorization, address_of_key
from tollkeeper.core.limits import VALID_BEFORE_MARGIN_SECONDS
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.verification import (
    ChainFacts,
    Check,
    EvmAsset,
    Reason,
    chain_checks,
    code_of_reason,
    deployed_check,
    form_checks,
    minimum_checks,
    payment_key,
    refusal,
    require,
    requirement_checks,
    signature_check,
    time_checks,
    with_usual_v,
)
from tollkeeper.core.x402.version1 import UINT256_MAX, Payment, PaymentKey, Requirements, SolanaPayload

PAYLOAD = signed_payload()
PAYMENT = signed_payment()
GOOD_FACTS = ChainFacts(
    asset_has_code=True, wallet_accepts=None, nonce_used=False, balance=AUTHORIZATION.value, revert=None
)
SIGNED = signature_check(PAYLOAD, BASE_SEPOLIA)
OTHER_ADDRESS = "0x" + "ab" * 20


def failed(checks: Iterable[Check]) -> list[tuple[str, Reason]]:
    return [(check.name, check.reason) for check in checks if not check.ok]


def refused(checks: Iterable[Check]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        require(checks)
    assert caught.value.type is ErrorType.PAYMENT
    return caught.value


def all_checks(payment: Payment, requirements: Requirements, facts: ChainFacts) -> list[Check]:
    payload = replace(PAYLOAD) if isinstance(payment.payload, SolanaPayload) else payment.payload
    return [
        *form_checks(payment, ASSETS),
        *requirement_checks(payment, requirements, BASE_SEPOLIA),
        *time_checks(payload, NOW_SECONDS),
        deployed_check(payload, {}),
        *chain_checks(payload, signature_check(payload, BASE_SEPOLIA), facts),
    ]


def test_a_good_payment_passes_every_rule_and_the_rules_stand_in_their_order() -> None:
    checks = all_checks(PAYMENT, REQUIREMENTS, GOOD_FACTS)
    assert failed(checks) == []
    require(checks)
    assert [check.name for check in checks] == [
        "x402Version",
        "scheme",
        "network",
        "payload",
        "requirements.scheme",
        "requirements.network",
        "requirements.asset",
        "recipient",
        "value",
        "validBefore",
        "validAfter",
        "deployed",
        "assetCode",
        "signature",
        "nonceUnused",
        "balance",
        "simulation",
    ]


# Form


@pytest.mark.parametrize(
    ("payment", "name", "reason", "code"),
    [
        (replace(PAYMENT, x402_version=2), "x402Version", Reason.X402_VERSION, Code.PAYMENT_INVALID),
        (replace(PAYMENT, x402_version=0), "x402Version", Reason.X402_VERSION, Code.PAYMENT_INVALID),
        (replace(PAYMENT, scheme="upto"), "scheme", Reason.SCHEME, Code.PAYMENT_INVALID),
        (replace(PAYMENT, scheme="Exact"), "scheme", Reason.SCHEME, Code.PAYMENT_INVALID),
        (replace(PAYMENT, network="polygon"), "network", Reason.NETWORK, Code.INVALID_NETWORK),
        (replace(PAYMENT, network="Base-Sepolia"), "network", Reason.NETWORK, Code.INVALID_NETWORK),
        (replace(PAYMENT, network="eip155:84532"), "network", Reason.NETWORK, Code.INVALID_NETWORK),
        (replace(PAYMENT, payload=SolanaPayload("AA==")), "payload", Reason.PAYLOAD, Code.PAYMENT_INVALID),
    ],
)
def test_a_wrong_form_is_refused_by_its_own_rule(payment: Payment, name: str, reason: Reason, code: Code) -> None:
    assert failed(form_checks(payment, ASSETS)) == [(name, reason)]
    assert refused(form_checks(payment, ASSETS)).code is code


@pytest.mark.parametrize("network", ["solana", "solana-mainnet", "solana-devnet", "base"])
def test_a_network_that_is_not_enabled_is_refused(network: str) -> None:
    only = {"base-sepolia": BASE_SEPOLIA}
    assert failed(form_checks(replace(PAYMENT, network=network), only)) == [("network", Reason.NETWORK)]


def test_an_alias_of_an_enabled_network_is_that_network() -> None:
    assert failed(form_checks(replace(PAYMENT, network="base-mainnet"), ASSETS)) == []
    aliased = replace(REQUIREMENTS, network="base-mainnet", asset=BASE.address)
    assert failed(requirement_checks(PAYMENT, aliased, BASE)) == []


# Requirements


@pytest.mark.parametrize(
    ("requirements", "name", "reason", "code"),
    [
        (replace(REQUIREMENTS, scheme="upto"), "requirements.scheme", Reason.SCHEME, Code.PAYMENT_INVALID),
        (replace(REQUIREMENTS, network="base"), "requirements.network", Reason.NETWORK, Code.INVALID_NETWORK),
        (replace(REQUIREMENTS, asset=BASE.address), "requirements.asset", Reason.REQUIREMENTS, Code.PAYMENT_INVALID),
        (replace(REQUIREMENTS, asset=OTHER_ADDRESS), "requirements.asset", Reason.REQUIREMENTS, Code.PAYMENT_INVALID),
        (replace(REQUIREMENTS, pay_to=OTHER_ADDRESS), "recipient", Reason.RECIPIENT, Code.PAYMENT_INVALID),
        (replace(REQUIREMENTS, amount=10_001), "value", Reason.VALUE, Code.INSUFFICIENT_AMOUNT),
    ],
)
def test_a_payment_for_other_requirements_is_refused_by_its_own_rule(
    requirements: Requirements, name: str, reason: Reason, code: Code
) -> None:
    assert failed(requirement_checks(PAYMENT, requirements, BASE_SEPOLIA)) == [(name, reason)]
    assert refused(requirement_checks(PAYMENT, requirements, BASE_SEPOLIA)).code is code


@pytest.mark.parametrize(("amount", "is_enough"), [(9_999, True), (10_000, True), (10_001, False)])
def test_the_value_must_be_at_least_the_amount(amount: int, is_enough: bool) -> None:  # noqa: FBT001
    checks = requirement_checks(PAYMENT, replace(REQUIREMENTS, amount=amount), BASE_SEPOLIA)
    assert failed(checks) == ([] if is_enough else [("value", Reason.VALUE)])


@pytest.mark.parametrize(("amount", "value"), [(9_999, 10_000), (10_001, 10_000), (0, 0), (0, 1), (10_000, 10_000)])
def test_in_version_2_the_value_is_the_amount(amount: int, value: int) -> None:
    payload = replace(PAYLOAD, authorization=replace(AUTHORIZATION, value=value))
    payment = replace(PAYMENT, x402_version=2, payload=payload)
    assert failed(form_checks(payment, ASSETS, version=2)) == []
    checks = requirement_checks(payment, replace(REQUIREMENTS, amount=amount), BASE_SEPOLIA)
    assert failed(checks) == ([] if amount == value == 10_000 else [("value", Reason.VALUE_MISMATCH)])


@given(st.integers(0, UINT256_MAX), st.integers(0, UINT256_MAX))
def test_no_value_below_the_amount_passes_and_none_that_moves_nothing(value: int, amount: int) -> None:
    payment = replace(PAYMENT, payload=replace(PAYLOAD, authorization=replace(AUTHORIZATION, value=value)))
    checks = requirement_checks(payment, replace(REQUIREMENTS, amount=amount), BASE_SEPOLIA)
    assert (failed(checks) == []) is (value >= max(amount, 1))


# Time


@pytest.mark.parametrize(
    ("valid_before", "is_valid"),
    [
        (0, False),
        (NOW_SECONDS - 1, False),
        (NOW_SECONDS, False),
        (NOW_SECONDS + VALID_BEFORE_MARGIN_SECONDS - 1, False),
        (NOW_SECONDS + VALID_BEFORE_MARGIN_SECONDS, True),
        (NOW_SECONDS + VALID_BEFORE_MARGIN_SECONDS + 1, True),
        (NOW_SECONDS * 1000, True),  # milliseconds by mistake: far away, and the token would take it
        (UINT256_MAX, True),
    ],
)
def test_valid_before_leaves_the_margin_to_be_mined(valid_before: int, is_valid: bool) -> None:  # noqa: FBT001
    checks = time_checks(signed_payload(replace(AUTHORIZATION, valid_before=valid_before)), NOW_SECONDS)
    assert failed(checks) == ([] if is_valid else [("validBefore", Reason.VALID_BEFORE)])


def test_the_margin_is_the_reference_facilitators_six_seconds() -> None:
    assert VALID_BEFORE_MARGIN_SECONDS == 6


@pytest.mark.parametrize(
    ("valid_after", "is_valid"),
    [
        (0, True),
        (NOW_SECONDS - 1, True),
        (NOW_SECONDS, False),  # the token asks for a block later than validAfter
        (NOW_SECONDS + 1, False),
        (NOW_SECONDS * 1000, False),
        (UINT256_MAX, False),
    ],
)
def test_valid_after_lies_in_the_past(valid_after: int, is_valid: bool) -> None:  # noqa: FBT001
    checks = time_checks(signed_payload(replace(AUTHORIZATION, valid_after=valid_after)), NOW_SECONDS)
    assert failed(checks) == ([] if is_valid else [("validAfter", Reason.VALID_AFTER)])


def test_an_expired_payment_is_payment_expired_and_a_future_one_is_payment_invalid() -> None:
    expired = signed_payload(replace(AUTHORIZATION, valid_before=NOW_SECONDS))
    assert refused(time_checks(expired, NOW_SECONDS)).code is Code.PAYMENT_EXPIRED
    future = signed_payload(replace(AUTHORIZATION, valid_after=NOW_SECONDS))
    assert refused(time_checks(future, NOW_SECONDS)).code is Code.PAYMENT_INVALID


# Signature

DOMAINS = [
    EvmAsset(NETWORKS[name], address, token, version)
    for name, address, token, version in product(
        ("base", "base-sepolia"),
        (BASE.address, BASE_SEPOLIA.address, OTHER_ADDRESS),
        ("USD Coin", "USDC", "USDC "),
        ("1", "2"),
    )
]


@pytest.mark.parametrize("asset", [BASE, BASE_SEPOLIA], ids=lambda asset: asset.network.name)
def test_a_signature_is_valid_under_the_token_s_own_domain_and_no_other(asset: EvmAsset) -> None:
    valid = [domain for domain in DOMAINS if signature_check(signed_payload(asset=domain), asset).ok]
    assert valid == [asset]


def test_a_wrong_signature_names_the_domain_that_would_be_right() -> None:
    other_domain = replace(BASE_SEPOLIA, name="USD Coin")
    error = refused([signature_check(signed_payload(asset=other_domain), BASE_SEPOLIA)])
    assert error.code is Code.INVALID_SIGNATURE
    assert error.details is not None
    assert error.details["expected"] == {"signer": PAYER, "domain": {"name": "USDC", "version": "2"}}
    assert error.details["found"].startswith("0x")
    assert error.details["found"] != PAYER


def test_another_wallet_s_signature_is_refused_and_named() -> None:
    check = signature_check(signed_payload(key=OTHER_KEY), BASE_SEPOLIA)
    assert (check.ok, check.reason, check.actual) == (False, Reason.SIGNATURE, address_of_key(OTHER_KEY))


def high_s(signature: bytes) -> bytes:
    s = SECP256K1_ORDER - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (PAYLOAD.signature[:64], "65 bytes"),
        (PAYLOAD.signature + b"\x00", "65 bytes"),
        (PAYLOAD.signature[:64] + bytes([PAYLOAD.signature[64] - 27]), "27 or 28"),
        (high_s(PAYLOAD.signature), "lower half"),
        (bytes(64) + b"\x1b", "no key"),
        (b"\x64\x92" * 48, "65 bytes"),  # a wrapped signature of an undeployed wallet
    ],
)
def test_a_signature_that_the_token_would_refuse_is_refused(signature: bytes, why: str) -> None:
    check = signature_check(replace(PAYLOAD, signature=signature), BASE_SEPOLIA)
    assert (check.ok, check.reason) == (False, Reason.SIGNATURE)
    assert why in check.actual


def test_a_v_of_0_or_1_is_27_or_28_and_nothing_else_of_a_signature_changes() -> None:
    for recovery in (0, 1):
        short = replace(PAYLOAD, signature=PAYLOAD.signature[:64] + bytes([recovery]))
        assert with_usual_v(short).signature == PAYLOAD.signature[:64] + bytes([recovery + 27])
    others = (PAYLOAD.signature, PAYLOAD.signature[:64] + b"\x02", PAYLOAD.signature[:63] + b"\x01", b"", bytes(66))
    for signature in others:
        assert with_usual_v(replace(PAYLOAD, signature=signature)).signature == signature


@pytest.mark.parametrize(
    "authorization",
    [
        replace(AUTHORIZATION, pay_to=OTHER_ADDRESS),
        replace(AUTHORIZATION, value=AUTHORIZATION.value + 1),
        replace(AUTHORIZATION, valid_after=1),
        replace(AUTHORIZATION, valid_before=AUTHORIZATION.valid_before + 1),
        replace(AUTHORIZATION, nonce="0x" + "00" * 32),
        replace(AUTHORIZATION, payer=PAY_TO),
    ],
)
def test_a_signature_holds_for_no_changed_authorization(authorization: Authorization) -> None:
    changed = replace(PAYLOAD, authorization=authorization)
    assert failed([signature_check(changed, BASE_SEPOLIA)]) == [("signature", Reason.SIGNATURE)]


# Chain


@pytest.mark.parametrize(
    ("facts", "name", "reason", "code"),
    [
        (replace(GOOD_FACTS, asset_has_code=False), "assetCode", Reason.ASSET_CODE, Code.PAYMENT_INVALID),
        (replace(GOOD_FACTS, nonce_used=True), "nonceUnused", Reason.NONCE_USED, Code.NONCE_ALREADY_USED),
        (replace(GOOD_FACTS, balance=9_999), "balance", Reason.FUNDS, Code.INSUFFICIENT_FUNDS),
        (replace(GOOD_FACTS, revert="paused"), "simulation", Reason.SIMULATION, Code.PAYMENT_INVALID),
        (replace(GOOD_FACTS, revert=""), "simulation", Reason.SIMULATION, Code.PAYMENT_INVALID),
    ],
)
def test_what_the_chain_says_against_a_payment_refuses_it(
    facts: ChainFacts, name: str, reason: Reason, code: Code
) -> None:
    assert failed(chain_checks(PAYLOAD, SIGNED, facts)) == [(name, reason)]
    assert refused(chain_checks(PAYLOAD, SIGNED, facts)).code is code


@pytest.mark.parametrize(("balance", "is_enough"), [(9_999, False), (10_000, True), (10_001, True)])
def test_the_balance_must_be_at_least_the_value(balance: int, is_enough: bool) -> None:  # noqa: FBT001
    checks = chain_checks(PAYLOAD, SIGNED, replace(GOOD_FACTS, balance=balance))
    assert failed(checks) == ([] if is_enough else [("balance", Reason.FUNDS)])


@pytest.mark.parametrize("signed_by", [None, OTHER_KEY])
@pytest.mark.parametrize("word", [None, True, False])
def test_code_at_the_payer_overrules_its_key_and_only_there(signed_by: bytes | None, word: bool | None) -> None:  # noqa: FBT001
    payload = PAYLOAD if signed_by is None else signed_payload(key=signed_by)
    by_key = signature_check(payload, BASE_SEPOLIA)
    checks = chain_checks(payload, by_key, replace(GOOD_FACTS, wallet_accepts=word))
    is_good = signed_by is None if word is None else word
    assert failed(checks) == ([] if is_good else [("signature", Reason.SIGNATURE)])


def test_a_wallet_that_the_signature_would_deploy_is_refused_without_a_question() -> None:
    wrapped = replace(PAYLOAD, signature=wrap(WalletDeployment(OTHER_ADDRESS, b"deploy", PAYLOAD.signature)))
    malformed = replace(PAYLOAD, signature=PAYLOAD.signature + bytes(31) + bytes.fromhex("6492" * 16))
    others, it = {PAYLOAD.authorization.payer: ""}, {OTHER_ADDRESS: ""}
    for payload, factories in ((wrapped, {}), (wrapped, others), (malformed, it)):
        assert failed([deployed_check(payload, factories)]) == [("deployed", Reason.COUNTERFACTUAL)]
        assert refused([deployed_check(payload, factories)]).code is Code.PAYMENT_INVALID


def test_a_wallet_that_an_allowed_factory_would_deploy_is_left_to_the_chain() -> None:
    wrapped = replace(PAYLOAD, signature=wrap(WalletDeployment(OTHER_ADDRESS, b"deploy", PAYLOAD.signature)))
    check = deployed_check(wrapped, {OTHER_ADDRESS: ""})
    assert check.ok
    assert OTHER_ADDRESS in check.actual
    assert not signature_check(wrapped, BASE_SEPOLIA).ok  # its key's own signature does not count


def test_an_allowed_factory_that_cannot_be_called_is_told_with_its_reason() -> None:
    wrapped = replace(PAYLOAD, signature=wrap(WalletDeployment(OTHER_ADDRESS, b"deploy", PAYLOAD.signature)))
    check = deployed_check(wrapped, {OTHER_ADDRESS: "there is no Multicall3", PAYLOAD.authorization.payer: ""})
    assert failed([check]) == [("deployed", Reason.UNDEPLOYED)]
    assert check.actual.endswith(f"the factory {OTHER_ADDRESS}, which cannot be called: there is no Multicall3")
    assert check.expected == {"factories": [PAYLOAD.authorization.payer]}


# Order and refusal


def test_the_first_rule_that_fails_is_the_one_that_is_told() -> None:
    """Everything is wrong; repairing one thing after another shows the rules in their order."""
    wrong_authorization = replace(
        AUTHORIZATION, pay_to=OTHER_ADDRESS, value=1, valid_before=NOW_SECONDS, valid_after=NOW_SECONDS
    )
    payment = Payment(2, "upto", "polygon", signed_payload(wrong_authorization, key=OTHER_KEY))
    requirements = replace(REQUIREMENTS, scheme="upto", network="base", asset=OTHER_ADDRESS)
    facts = ChainFacts(asset_has_code=False, wallet_accepts=None, nonce_used=True, balance=0, revert="reverted")
    told = []
    for _ in range(20):
        checks = all_checks(payment, requirements, facts)
        wrong = next((check.name for check in checks if not check.ok), None)
        if wrong is None:
            break
        details = refused(checks).details
        assert details is not None
        assert details["check"] == wrong
        told.append(wrong)
        payment, requirements, facts = repaired(wrong, payment, requirements, facts)
    assert told == [
        "x402Version",
        "scheme",
        "network",
        "requirements.scheme",
        "requirements.network",
        "requirements.asset",
        "recipient",
        "value",
        "validBefore",
        "validAfter",
        "assetCode",
        "signature",
        "nonceUnused",
        "balance",
        "simulation",
    ]


def repaired(
    name: str, payment: Payment, requirements: Requirements, facts: ChainFacts
) -> tuple[Payment, Requirements, ChainFacts]:
    """The same three with the one named thing made right."""
    assert not isinstance(payment.payload, SolanaPayload)
    authorization = payment.payload.authorization
    if name in {"recipient", "value", "validBefore", "validAfter"}:
        field = {"recipient": "pay_to", "value": "value", "validBefore": "valid_before", "validAfter": "valid_after"}
        authorization = replace(authorization, **{field[name]: getattr(AUTHORIZATION, field[name])})
        payment = replace(payment, payload=signed_payload(authorization, key=OTHER_KEY))
    payments = {
        "x402Version": replace(payment, x402_version=1),
        "scheme": replace(payment, scheme="exact"),
        "network": replace(payment, network="base-sepolia"),
        "signature": replace(payment, payload=PAYLOAD),
    }
    asked = {
        "requirements.scheme": replace(requirements, scheme="exact"),
        "requirements.network": replace(requirements, network="base-sepolia"),
        "requirements.asset": replace(requirements, asset=BASE_SEPOLIA.address),
    }
    known = {
        "assetCode": replace(facts, asset_has_code=True),
        "nonceUnused": replace(facts, nonce_used=False),
        "balance": replace(facts, balance=AUTHORIZATION.value),
        "simulation": replace(facts, revert=None),
    }
    return payments.get(name, payment), asked.get(name, requirements), known.get(name, facts)


def test_rules_after_the_first_that_fails_are_not_run() -> None:
    def rules() -> Iterable[Check]:
        yield Check("first", ok=False, reason=Reason.VALUE)
        raise AssertionError

    assert refused(rules()).code is Code.INSUFFICIENT_AMOUNT


def test_a_refusal_says_check_reason_expected_and_found() -> None:
    error = refusal(Check("value", ok=False, reason=Reason.VALUE, expected="2", actual="1"))
    assert error.details == {
        "reason": "invalid_exact_evm_payload_authorization_value",
        "check": "value",
        "expected": "2",
        "found": "1",
    }
    assert (error.code, error.status, error.at_gate().status) == (Code.INSUFFICIENT_AMOUNT, 400, 402)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("invalid_network", Code.INVALID_NETWORK),
        ("invalid_exact_evm_network_mismatch", Code.INVALID_NETWORK),
        ("invalid_exact_evm_payload_authorization_value", Code.INSUFFICIENT_AMOUNT),
        ("invalid_exact_evm_authorization_value", Code.INSUFFICIENT_AMOUNT),
        ("invalid_exact_evm_payload_authorization_valid_before", Code.PAYMENT_EXPIRED),
        ("payment_expired", Code.PAYMENT_EXPIRED),
        ("invalid_exact_evm_payload_signature", Code.INVALID_SIGNATURE),
        ("invalid_exact_evm_signature", Code.INVALID_SIGNATURE),
        ("insufficient_funds", Code.INSUFFICIENT_FUNDS),
        ("invalid_exact_evm_insufficient_balance", Code.INSUFFICIENT_FUNDS),
        ("invalid_exact_evm_nonce_already_used", Code.NONCE_ALREADY_USED),
        ("duplicate_settlement", Code.NONCE_ALREADY_USED),
        ("invalid_exact_evm_payload_authorization_valid_after", Code.PAYMENT_INVALID),
        ("unexpected_verify_error", Code.PAYMENT_INVALID),
        ("a reason of the future", Code.PAYMENT_INVALID),
        ("", Code.PAYMENT_INVALID),
        (None, Code.PAYMENT_INVALID),
    ],
)
def test_every_facilitator_s_reason_has_a_code(reason: str | None, code: Code) -> None:
    assert code_of_reason(reason) is code


def test_the_payment_key_is_built_from_the_configured_asset() -> None:
    assert payment_key(BASE_SEPOLIA, PAYLOAD) == PaymentKey(
        "base-sepolia", BASE_SEPOLIA.address, PAYER, AUTHORIZATION.nonce
    )


def test_an_operator_may_ask_for_more_than_a_seller() -> None:
    assert not list(minimum_checks(1, 0, Reason.VALUE))
    assert failed(minimum_checks(999, 1000, Reason.VALUE)) == [("minimum", Reason.VALUE)]
    assert not failed(minimum_checks(1000, 1000, Reason.VALUE))
