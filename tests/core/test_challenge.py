"""The 402: one body that official clients can pay and that holds both of the specification's shapes (contract 4.1)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.gates import GATE
from tests.core.payments import BASE, BASE_SEPOLIA, PAY_TO
from tests.core.solana_payments import DEVNET
from tests.core.solana_payments import PAY_TO as SOLANA_PAY_TO
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.limits import DESCRIPTION_LENGTH, SALE_VALUE_MAX_MICRO, TITLE_LENGTH
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.challenge import (
    Challenge,
    Profile,
    build_challenge,
    client_warnings,
    exhausted_body,
    profile_of,
    requirements_of,
    transfer_challenge,
)
from tollkeeper.core.paygates.fields import CreditBinding, OnFailure, Recipient
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.payment_offers import Asset
from tollkeeper.core.solana.rules import SolanaAsset
from tollkeeper.core.x402.verification import EvmAsset, Reason
from tollkeeper.core.x402.version1 import Requirements, parse_requirements
from tollkeeper.core.x402.version2 import HEADER_LENGTH_MAX

MAINNET = replace(DEVNET, network=NETWORKS["solana-mainnet"], address=NETWORKS["solana-mainnet"].usdc.address)
RESOURCE = "https://gateway.example/abc12345"
NOW = "2026-10-01T12:00:00.000Z"
PAID_TO = checksum_address(PAY_TO)
ACCEPTS = [
    {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "10000",
        "resource": RESOURCE,
        "description": "A title",
        "mimeType": "application/json",
        "payTo": PAID_TO,
        "maxTimeoutSeconds": 60,
        "asset": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
        "extra": {"name": "USDC", "version": "2"},
    }
]
PAYMENT_REQUIRED = {"amount": "0.01", "currency": "USDC", "network": "base-sepolia"}
SHAPE_A = {"token": "USDC", "amount": "0.01", "address": PAID_TO}


def body_of(
    gate: PayGate = GATE, profile: Profile = Profile.SUPERSET, asset: EvmAsset = BASE_SEPOLIA
) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(build_challenge(gate, asset, RESOURCE, "v1").body(profile, NOW))
    return body


def test_the_default_body_is_the_contract_s_superset() -> None:
    assert body_of() == {
        "x402Version": 1,
        "error": "Payment required",
        "accepts": ACCEPTS,
        "paymentRequired": PAYMENT_REQUIRED,
        "x402": SHAPE_A,
        "resource": {"title": "A title", "description": "", "credits": 5, "onFailure": "consume"},
        "apiVersion": "v1",
        "timestamp": NOW,
    }


def test_what_is_unusual_about_the_credits_is_told_before_they_are_bought() -> None:
    unusual = replace(
        GATE,
        on_failure=OnFailure.RESTORE,
        credit_binding=CreditBinding.TOKEN,
        credits_expire_after_seconds=3600,
    )
    assert body_of(unusual)["resource"] == {
        "title": "A title",
        "description": "",
        "credits": 5,
        "onFailure": "restore",
        "creditBinding": "token",
        "creditsExpireAfter": 3600,
    }


def test_networks_of_one_kind_stand_side_by_side_and_play_money_beside_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = replace(GATE, accepts=(Recipient("base", "0x" + "ab" * 20),))
    for asset in (BASE_SEPOLIA, BASE):
        challenge = build_challenge(gate, asset, RESOURCE, "v1", [BASE_SEPOLIA, BASE])
        body = json.loads(challenge.body(Profile.SUPERSET, NOW))
        assert [entry["network"] for entry in body["accepts"]] == [asset.network.name]
    other = replace(BASE_SEPOLIA, network=replace(BASE_SEPOLIA.network, name="other-test", v1_name="other-test"))
    monkeypatch.setitem(NETWORKS, "other-test", other.network)
    gate = replace(GATE, accepts=(Recipient("other-test", "0x" + "ab" * 20),))
    for own, beside in ((BASE_SEPOLIA, other), (other, BASE_SEPOLIA)):
        challenge = build_challenge(gate, own, RESOURCE, "v1", [BASE_SEPOLIA, other])
        entries = challenge.siblings["accepts"]
        assert [entry["network"] for entry in entries] == [own.network.name, beside.network.name]
        assert challenge.siblings["paymentRequired"]["network"] == own.network.name
        assert {entry["network"]: entry["payTo"] for entry in entries} == {
            "base-sepolia": PAID_TO,
            "other-test": checksum_address("0x" + "ab" * 20),
        }


def header_of(challenge: Challenge) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(base64.b64decode(challenge.header))
    return said


def test_the_header_holds_the_networks_of_both_families_and_never_play_money_beside_real() -> None:
    assets: list[Asset] = [BASE_SEPOLIA, BASE, DEVNET, MAINNET]
    payees = {"base": "0x" + "ab" * 20, "solana-devnet": SOLANA_PAY_TO, "solana-mainnet": SOLANA_PAY_TO}
    gate = replace(GATE, accepts=tuple(Recipient(name, payee) for name, payee in payees.items()))
    found = {
        own.network.name: [
            offer["network"] for offer in header_of(build_challenge(gate, own, RESOURCE, "v1", assets))["accepts"]
        ]
        for own in assets
    }
    test, main = (BASE_SEPOLIA, DEVNET), (BASE, MAINNET)
    assert found == {
        own.network.name: [one.network.caip2 for one in (own, *(one for one in pair if one is not own))]
        for pair in (test, main)
        for own in pair
    }


def test_a_gate_on_four_networks_with_the_longest_texts_fits_into_the_header() -> None:
    on_solana = [asset.charged_to(SOLANA_PAY_TO) for asset in (DEVNET, MAINNET)]
    assets: list[Asset] = [BASE_SEPOLIA, BASE, *on_solana]
    payees = {"base": "0x" + "ab" * 20, "solana-devnet": SOLANA_PAY_TO, "solana-mainnet": SOLANA_PAY_TO}
    gate = replace(
        GATE,
        accepts=tuple(Recipient(name, payee) for name, payee in payees.items()),
        price_micro=SALE_VALUE_MAX_MICRO,
        title="水" * TITLE_LENGTH,
        description="水" * DESCRIPTION_LENGTH,
        mime_type="m" * 127 + "/" + "t" * 127,
    )
    resource = f"https://{'a' * 63}.{'b' * 63}.gateway.example:65535/{'s' * 64}"
    refused = ApiError(Code.PAYMENT_INVALID, "wrong", details={"reason": max(Reason, key=len).value})
    for own in assets:
        challenge = build_challenge(gate, own, resource, "v1", assets)
        for header in (challenge.header, challenge.header_beside(refused)):
            assert len(header) <= HEADER_LENGTH_MAX
        assert header_of(challenge)["resource"]["description"].endswith("水…")


def test_owners_are_told_what_clients_make_of_a_gate() -> None:
    challenge = build_challenge(GATE, BASE_SEPOLIA, RESOURCE, "v1")
    assert client_warnings(replace(GATE, price_micro=1_000_000), [challenge]) == []
    dear = client_warnings(replace(GATE, price_micro=1_000_001), [])
    assert [warning["field"] for warning in dear] == ["price"]
    for field, gate in (
        ("title", replace(GATE, title="x" * 2000, description="")),
        ("description", replace(GATE, title="", description="x" * 2000)),
    ):
        long = client_warnings(gate, [build_challenge(gate, BASE_SEPOLIA, RESOURCE, "v1")])
        assert [warning["field"] for warning in long] == [field]
        assert "480 of its 2000 characters" in long[0]["message"]


def test_shape_a_is_the_specification_s_to_the_letter() -> None:
    assert body_of(profile=Profile.SHAPE_A) == {"x402": SHAPE_A}


def test_shape_b_is_the_specification_s_to_the_letter() -> None:
    assert body_of(profile=Profile.SHAPE_B) == {
        "error": "Payment required",
        "x402Version": 1,
        "accepts": ["application/json"],
        "paymentRequired": PAYMENT_REQUIRED,
    }


def test_what_stands_beside_an_error_are_the_requirements() -> None:
    assert build_challenge(GATE, BASE_SEPOLIA, RESOURCE, "v1").siblings == {
        "x402Version": 1,
        "accepts": ACCEPTS,
        "paymentRequired": PAYMENT_REQUIRED,
        "x402": SHAPE_A,
    }


def test_main_network_is_asked_for_under_its_own_name_token_and_domain() -> None:
    body = body_of(replace(GATE, network="base"), asset=BASE)
    assert body["paymentRequired"]["network"] == body["accepts"][0]["network"] == "base"
    assert body["accepts"][0]["asset"] == "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
    assert body["accepts"][0]["extra"] == {"name": "USD Coin", "version": "2"}


def test_nothing_in_the_body_is_null() -> None:
    def nulls(value: object) -> bool:
        if isinstance(value, dict):
            return any(nulls(inner) for inner in value.values())
        return any(nulls(inner) for inner in value) if isinstance(value, list) else value is None

    assert not nulls(body_of(replace(GATE, title="", description="", owner_wallet=None)))


def test_the_description_is_the_gate_s_and_the_title_where_there_is_none() -> None:
    assert body_of(replace(GATE, description="d"))["accepts"][0]["description"] == "d"
    assert body_of(replace(GATE, title="", description=""))["accepts"][0]["description"] == ""


def test_the_requirements_are_read_back_by_our_own_reader() -> None:
    requirements = requirements_of(GATE, BASE_SEPOLIA, RESOURCE)
    lowered = replace(requirements, asset=BASE_SEPOLIA.address, pay_to=PAY_TO)
    assert parse_requirements(ACCEPTS[0]) == replace(lowered, description="", mime_type="")
    assert isinstance(build_challenge(GATE, BASE_SEPOLIA, RESOURCE, "v1").requirements, Requirements)


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40),
    st.sampled_from(["", "\\u0000timestamp\\u0000", '"', "\\", "</script>", "\u2028", "timestamp"]),
)
def test_no_title_can_change_the_body_s_structure_or_its_timestamp(text: str, trick: str) -> None:
    body = body_of(replace(GATE, title=text + trick, description=trick + text))
    assert body["timestamp"] == NOW
    assert (body["resource"]["title"], body["resource"]["description"]) == (text + trick, trick + text)
    assert body["x402"] == SHAPE_A


def test_only_the_timestamp_differs_between_two_answers() -> None:
    challenge = build_challenge(GATE, BASE_SEPOLIA, RESOURCE, "v1")
    one, other = challenge.body(Profile.SUPERSET, "1"), challenge.body(Profile.SUPERSET, "2")
    assert one.replace(b'"timestamp":"1"', b'"timestamp":"2"') == other
    for profile in (Profile.SHAPE_A, Profile.SHAPE_B):
        assert challenge.body(profile, "1") == challenge.body(profile, "2")


@pytest.mark.parametrize(
    ("accept", "profile"),
    [
        ("", Profile.SUPERSET),
        ("*/*", Profile.SUPERSET),
        ("application/json", Profile.SUPERSET),
        ('application/json;profile="x402-a"', Profile.SHAPE_A),
        ("application/json;profile=x402-a", Profile.SHAPE_A),
        ('Application/JSON ; Profile = "X402-B" ', Profile.SHAPE_B),
        ('text/html, application/json;q=0.9;profile="x402-b", */*', Profile.SHAPE_B),
        ('application/json;profile="superset"', Profile.SUPERSET),
        ('application/json;profile="x402-c"', Profile.SUPERSET),
        ('application/json;profile=""', Profile.SUPERSET),
        ('text/html;profile="x402-a"', Profile.SUPERSET),
        ('application/json;profiles="x402-a"', Profile.SUPERSET),
        ('application/json;profile="x402-c", application/json;profile="x402-b"', Profile.SHAPE_B),
        ("application/json;profile=x402-a;q=0", Profile.SUPERSET),
        ("application/json; Q = 0.000 ;profile=x402-a", Profile.SUPERSET),
        ("application/json;profile=x402-a;q=0, application/json;profile=x402-b;q=0.001", Profile.SHAPE_B),
        (";;,,==;", Profile.SUPERSET),
    ],
)
def test_the_accept_header_chooses_the_profile(accept: str, profile: Profile) -> None:
    assert profile_of(accept, Profile.SUPERSET) is profile


@pytest.mark.parametrize("default", list(Profile))
def test_without_a_profile_the_default_holds_and_with_one_it_does_not(default: Profile) -> None:
    assert profile_of("application/json", default) is default
    assert profile_of('application/json;profile="superset"', default) is Profile.SUPERSET


@given(st.text(max_size=60))
def test_any_accept_header_has_a_profile(accept: str) -> None:
    assert profile_of(accept, Profile.SHAPE_A) in Profile


def test_used_up_credits_are_the_unpaid_body_with_a_detail() -> None:
    detail = {"type": "payment", "code": "CREDITS_EXHAUSTED", "message": "all 5 credits are used"}
    challenge = build_challenge(GATE, BASE_SEPOLIA, RESOURCE, "v1")
    assert json.loads(exhausted_body(challenge, detail, Profile.SUPERSET, NOW)) == {**body_of(), "errorDetail": detail}
    for profile in (Profile.SHAPE_A, Profile.SHAPE_B):
        assert exhausted_body(challenge, detail, profile, NOW) == challenge.body(profile, NOW)


def test_a_transfer_is_asked_for_in_the_shape_of_a_gate() -> None:
    challenge = transfer_challenge(BASE_SEPOLIA, "0x" + "ab" * 20, 2_500_000, RESOURCE, "v1")
    body = json.loads(challenge.body(Profile.SUPERSET, NOW))
    pay_to = checksum_address("0x" + "ab" * 20)
    assert body["x402"] == {"token": "USDC", "amount": "2.5", "address": pay_to}
    assert body["paymentRequired"] == {"amount": "2.5", "currency": "USDC", "network": "base-sepolia"}
    (requirements,) = body["accepts"]
    assert (requirements["maxAmountRequired"], requirements["payTo"]) == ("2500000", pay_to)
    assert (requirements["resource"], requirements["mimeType"]) == (RESOURCE, "application/json")
    assert json.loads(challenge.body(Profile.SHAPE_B, NOW))["accepts"] == ["application/json"]


FEE_PAYER = "2wKupLR9q6wXYppw8Gr2NvWxKBUqm4PPJKkQfoxHDBg4"
SOLANA_ASSET = replace(DEVNET, fee_payer=FEE_PAYER)


def test_on_solana_the_fee_payer_is_told_and_the_names_are_those_that_clients_know() -> None:
    gate = replace(GATE, network="solana-devnet", payment_address=SOLANA_PAY_TO)
    challenge = build_challenge(gate, SOLANA_ASSET, RESOURCE, "v1")
    assert challenge.siblings["accepts"] == [
        {
            **ACCEPTS[0],
            "network": "solana-devnet",
            "payTo": SOLANA_PAY_TO,
            "asset": DEVNET.address,
            "extra": {"feePayer": FEE_PAYER},
        }
    ]
    assert challenge.siblings["paymentRequired"]["network"] == "solana-devnet"
    assert challenge.siblings["x402"]["address"] == SOLANA_PAY_TO
    on_main = replace(gate, network="solana-mainnet")
    main = SolanaAsset(NETWORKS["solana-mainnet"], NETWORKS["solana-mainnet"].usdc.address, fee_payer=FEE_PAYER)
    assert requirements_of(on_main, main, RESOURCE).network == "solana"


def test_entries_of_the_other_family_are_never_beside_each_other() -> None:
    gate = replace(GATE, accepts=(Recipient("solana-devnet", SOLANA_PAY_TO),))
    both: list[Asset] = [BASE_SEPOLIA, SOLANA_ASSET]
    for own, network in ((BASE_SEPOLIA, "base-sepolia"), (SOLANA_ASSET, "solana-devnet")):
        accepts = build_challenge(gate, own, RESOURCE, "v1", both).siblings["accepts"]
        assert [entry["network"] for entry in accepts] == [network]
