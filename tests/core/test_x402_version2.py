"""Version 2's wire, as official packages wrote it, is read into the same payments and written as they read it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payments import BASE_SEPOLIA, REQUIREMENTS, signed_payment
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.families import row_of
from tollkeeper.core.networks import CAIP2_NAMES, NETWORKS
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.verification import payment_key
from tollkeeper.core.x402.version1 import Payment, Requirements, encode_header, encode_payment_header, parse_payment
from tollkeeper.core.x402.version2 import Resource

CAPTURED: Final[dict[str, str]] = json.loads(Path(__file__).with_name("captured_version2.json").read_text())
SIGNATURES: Final = [name for name in CAPTURED if name.endswith("PAYMENT-SIGNATURE")]
REQUIRED: Final = [name for name in CAPTURED if name.endswith("PAYMENT-REQUIRED")]
SETTLED: Final = [name for name in CAPTURED if name.endswith("/settle")]
LONGEST_HEADER: Final = 2600


def decoded(header: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(base64.b64decode(header))
    return body


def requirements_of(offer: dict[str, Any], resource: str = "") -> Requirements:
    """What a gate of ours with that offer asks for."""
    extra = {name: value for name, value in offer["extra"].items() if name != "paymentFlow"}
    return Requirements(
        offer["scheme"],
        NETWORKS[CAIP2_NAMES[offer["network"]]].v1_name,
        int(offer["amount"]),
        offer["asset"],
        offer["payTo"],
        resource,
        max_timeout_seconds=offer["maxTimeoutSeconds"],
        extra=extra,
    )


def changed(offer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**offer, **changes}.items() if value != "left out"}


OFFER: Final = version2.offer_of(REQUIREMENTS)


def payment_2(payment: Payment, **changes: Any) -> dict[str, Any]:
    """A payment in version 2, which takes `OFFER`."""
    return changed({"x402Version": 2, "accepted": OFFER, "payload": payment.payload.body()}, **changes)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_captured_payment_is_the_payment_that_version_1_would_show(name: str) -> None:
    said = decoded(CAPTURED[name])
    payment = version2.decode_payment_header(CAPTURED[name].encode(), "PAYMENT-SIGNATURE")
    assert (payment.x402_version, payment.scheme) == (2, "exact")
    assert payment.network == CAIP2_NAMES[said["accepted"]["network"]]
    assert version2.shown_network(payment) == said["accepted"]["network"]
    in_version_1 = {"x402Version": 1, "scheme": "exact", "network": payment.network, "payload": said["payload"]}
    former = version2.decode_payment_header(encode_header(in_version_1).encode(), "X-Payment")
    assert former == parse_payment(in_version_1)
    assert version2.shown_network(former) == former.network
    assert former.payload == payment.payload
    assert row_of(former).name_of(former) == row_of(payment).name_of(payment)


def test_the_identity_of_an_authorization_is_the_same_in_both_versions() -> None:
    payment = signed_payment()
    other = version2.parse_payment(payment_2(payment))
    assert payment_key(BASE_SEPOLIA, other.authorized) == payment_key(BASE_SEPOLIA, payment.authorized)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_captured_402_is_what_we_would_write(name: str) -> None:
    said = decoded(CAPTURED[name])
    resource = said["resource"]
    offers = [version2.offer_of(requirements_of(offer)) for offer in said["accepts"]]
    made = version2.payment_required(
        Resource(resource["url"], resource["description"], resource["mimeType"]), offers, said["error"]
    )
    assert decoded(made) == said


@pytest.mark.parametrize("name", SETTLED)
def test_a_captured_request_is_what_we_would_ask_another_facilitator(name: str) -> None:
    said = json.loads(CAPTURED[name])
    paid, required = said["paymentPayload"], said["paymentRequirements"]
    payment = version2.parse_payment(paid, "paymentPayload.")
    read = version2.parse_requirements(required, paid["resource"])
    assert (read.amount, CAIP2_NAMES[read.network], read.max_timeout_seconds) == (10_000, payment.network, 300)
    assert read.resource == paid["resource"]["url"]
    asked = version2.facilitator_request(payment, requirements_of(required, paid["resource"]["url"]))
    wanted = {**paid, "resource": {"url": paid["resource"]["url"]}}
    if "authorization" in paid["payload"]:
        assert (
            asked["paymentPayload"].pop("payload")["authorization"].items() <= paid["payload"]["authorization"].items()
        )
        del wanted["payload"]
    assert asked == {**said, "paymentPayload": wanted}
    assert "resource" not in version2.facilitator_request(payment, requirements_of(required))["paymentPayload"]


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({}, True),
        ({"extra": {**OFFER["extra"], "more": {"deep": [1]}}}, True),
        ({"outputSchema": None}, True),
        ({"amount": "10001"}, False),
        ({"amount": 10_000}, False),
        ({"payTo": OFFER["payTo"].upper()}, False),
        ({"maxTimeoutSeconds": 300}, False),
        ({"network": "base-sepolia"}, False),
        ({"scheme": "upto"}, False),
        ({"asset": "left out"}, False),
        ({"extra": {"name": "USDC", "version": "2"}}, False),
        ({"extra": {**OFFER["extra"], "name": "USD Coin"}}, False),
        ({"extra": None}, False),
        ({"extra": ["USDC"]}, False),
        ({"unknown": "member"}, False),
    ],
)
def test_an_offer_is_taken_by_the_reference_server_s_rule(changes: dict[str, Any], *, is_taken: bool) -> None:
    assert version2.is_accepted(OFFER, changed(OFFER, **changes)) is is_taken


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=2000),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=400),
)
def test_the_longest_texts_stay_within_the_header_s_length(description: str, error: str) -> None:
    offers = [version2.offer_of(requirements_of(decoded(CAPTURED[name])["accepts"][0])) for name in REQUIRED]
    made = version2.payment_required(
        Resource("https://gate.example/" + "s" * 60, description, "text/html"), offers, error
    )
    assert len(made) <= LONGEST_HEADER
    said = decoded(made)
    shown = said["resource"].get("description", "")
    assert said["accepts"] == offers
    assert len(shown) <= version2.DESCRIPTION_LENGTH_MAX
    assert shown == description or description.startswith(shown.removesuffix("…"))
    assert (
        (shown == description) or len(description) > version2.DESCRIPTION_LENGTH_MAX or len(made) > LONGEST_HEADER - 16
    )


def test_a_description_that_fits_is_whole_and_one_of_481_characters_is_cut_at_480() -> None:
    def shown(text: str) -> str:
        made = version2.payment_required(Resource("https://gate.example/a", text), [OFFER], "Payment required")
        described: str = decoded(made)["resource"]["description"]
        return described

    assert shown("d" * 480) == "d" * 480
    assert shown("d" * 481) == "d" * 479 + "…"


def test_a_description_gives_way_character_by_character_where_the_rest_needs_the_room() -> None:
    offers = [version2.offer_of(requirements_of(decoded(CAPTURED[name])["accepts"][0])) for name in REQUIRED]
    made = version2.payment_required(Resource("https://gate.example/" + "s" * 60, "🌍" * 480), offers, "e" * 300)
    assert LONGEST_HEADER - 16 < len(made) <= LONGEST_HEADER
    said = decoded(made)
    assert said["resource"]["description"].startswith("🌍🌍")
    assert said["error"] == "e" * 199 + "…"
    nothing = version2.payment_required(Resource("https://gate.example/" + "s" * 1800, "🌍" * 480), offers, "")
    assert "description" not in decoded(nothing)["resource"]


def test_what_is_not_said_is_left_out() -> None:
    made = version2.payment_required(Resource("https://gate.example/a"), [OFFER], "Payment required")
    assert decoded(made)["resource"] == {"url": "https://gate.example/a"}


def test_a_receipt_is_a_success_unless_it_says_why_not() -> None:
    assert version2.receipt_of("base-sepolia", "0xAb", "0x12") == {
        "success": True,
        "payer": "0xAb",
        "transaction": "0x12",
        "network": "eip155:84532",
    }
    failed = version2.receipt_of("solana", "D1A", "5ama", error_reason=version2.SETTLEMENT_PENDING, amount="0")
    assert failed == {
        "success": False,
        "payer": "D1A",
        "transaction": "5ama",
        "network": NETWORKS["solana-mainnet"].caip2,
        "amount": "0",
        "errorReason": "settlement_pending",
    }


def read(body: dict[str, Any]) -> Payment:
    return version2.decode_payment_header(encode_header(body).encode(), "PAYMENT-SIGNATURE")


def test_a_payment_of_version_1_is_read_as_ever_in_either_header() -> None:
    payment = signed_payment()
    for name in ("X-Payment", "PAYMENT-SIGNATURE"):
        assert version2.decode_payment_header(encode_payment_header(payment).encode(), name) == payment


def test_extensions_and_resource_are_not_judged() -> None:
    deep: Any = 0.5
    for _ in range(40):
        deep = {"schema": deep}
    for more in ({"extensions": {"bazaar": deep}}, {"extensions": None, "resource": 7}):
        assert read(payment_2(signed_payment(), **more)).payload == signed_payment().payload
    with pytest.raises(ApiError) as refused:
        read({"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": {}, "extensions": deep})
    assert refused.value.code is Code.PAYMENT_INVALID


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"accepted": "left out"}, "accepted"),
        ({"accepted": None}, "accepted"),
        ({"accepted": []}, "accepted"),
        ({"accepted": changed(OFFER, network=None)}, "accepted.network"),
        ({"accepted": changed(OFFER, scheme=5)}, "accepted.scheme"),
        ({"accepted": changed(OFFER, network="eip155:10")}, "accepted.network"),
        ({"accepted": changed(OFFER, network="base-sepolia")}, "accepted.network"),
        ({"payload": None}, "payload"),
        ({"payload": {"signature": "0x12"}}, "payload.authorization"),
    ],
)
def test_what_cannot_be_read_names_the_header_s_member(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(payment_2(signed_payment(), **changes))
    assert refused.value.code is Code.PAYMENT_INVALID
    assert refused.value.details is not None
    assert refused.value.details["field"] == field


@pytest.mark.parametrize("header", [b"", b"not base64", b"e30", b"bnVsbA==", b"\xff" * 8, b"e30=" * 3000])
def test_a_header_that_is_none_names_itself(header: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        version2.decode_payment_header(header, "PAYMENT-SIGNATURE")
    assert refused.value.details is not None
    assert refused.value.details["field"] == "PAYMENT-SIGNATURE"


def test_requirements_without_a_time_have_the_usual_one() -> None:
    for offer in (changed(OFFER, maxTimeoutSeconds=None), changed(OFFER, maxTimeoutSeconds="left out")):
        found = version2.parse_requirements(offer, None)
        assert (found.max_timeout_seconds, found.resource) == (60, "")
    with pytest.raises(ApiError) as refused:
        version2.parse_requirements(changed(OFFER, amount="1.5"), {})
    assert (refused.value.code, refused.value.details) == (
        Code.INVALID_AMOUNT,
        {"field": "paymentRequirements.amount"},
    )


@pytest.mark.parametrize(
    ("reason", "field", "told"),
    [
        ("invalid_x402_version", "x402Version", "Unsupported x402 version: 3"),
        ("invalid_payload", "x402Version", "Unsupported x402 version: undefined"),
        ("invalid_payload", "PAYMENT-SIGNATURE", "Payment required"),
        ("insufficient_funds", "value", "insufficient_funds"),
        (None, None, "PAYMENT_INVALID"),
    ],
)
def test_a_refusal_is_named_as_the_reference_server_does(reason: str | None, field: str | None, told: str) -> None:
    details = {"reason": reason, "field": field, "found": 3} if reason else None
    assert version2.error_of(ApiError(Code.PAYMENT_INVALID, "why", details=details)) == told


def test_two_payments_in_one_request_are_refused() -> None:
    assert (version2.two_payments().code, version2.two_payments().details) == (
        Code.INVALID_PARAMETER,
        {"field": "X-Payment"},
    )


def test_a_payment_is_shown_in_version_1_to_whoever_is_asked_in_that() -> None:
    payment = signed_payment()
    other = version2.parse_payment(payment_2(payment))
    assert version2.in_version_1(other) == version2.in_version_1(payment) == payment
    assert [version2.spoken_version(replace(payment, x402_version=version)) for version in (1, 2, 3)] == [1, 2, 1]
