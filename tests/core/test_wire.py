"""One payment has one identity however it is spelled, and what is unreadable is refused in one way (A-03, A-33)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.malformed import GOOD_JSON, MUTATIONS, good_body, malformed_headers
from tests.core.payments import ASSETS, AUTHORIZATION, BASE, BASE_SEPOLIA, REQUIREMENTS, signed_payload, signed_payment
from tests.core.reencodings import reencode
from tollkeeper.core.api.errors import ApiError, Code, ErrorType
from tollkeeper.core.evm.encoding import Authorization, checksum_address
from tollkeeper.core.limits import PAYMENT_HEADER_SIZE_BYTES
from tollkeeper.core.networks import normalise
from tollkeeper.core.x402.verification import EvmAsset, payment_key, signature_check
from tollkeeper.core.x402.version1 import (
    UINT256_MAX,
    EvmPayload,
    Payment,
    PaymentKey,
    Requirements,
    SolanaPayload,
    decode_payment_header,
    encode_header,
    encode_payment_header,
    is_text,
    parse_payload,
    parse_payment,
    parse_requirements,
    parse_uint256,
    payment_body,
    requirements_body,
)

UINT256 = st.integers(0, UINT256_MAX)
ADDRESS = st.binary(min_size=20, max_size=20).map(lambda data: "0x" + data.hex())
NONCE = st.binary(min_size=32, max_size=32).map(lambda data: "0x" + data.hex())
AUTHORIZATIONS = st.builds(Authorization, ADDRESS, ADDRESS, UINT256, UINT256, UINT256, NONCE)
EVM_PAYMENTS = st.builds(
    Payment,
    st.just(1),
    st.just("exact"),
    st.sampled_from(sorted(ASSETS)),
    st.builds(EvmPayload, AUTHORIZATIONS, st.binary(min_size=1, max_size=130)),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SOLANA_PAYMENTS = st.builds(
    Payment, st.integers(-(10**9), 10**9), TEXT, TEXT, st.builds(SolanaPayload, st.text("ABCxyz019+/=", max_size=2000))
)


def key_of(header: bytes) -> PaymentKey:
    payment = decode_payment_header(header)
    assert isinstance(payment.payload, EvmPayload)
    return payment_key(ASSETS[normalise(payment.network).name], payment.payload)


def header_of(body: object) -> bytes:
    return base64.b64encode(json.dumps(body).encode())


def refused(header: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode_payment_header(header)
    error = caught.value
    assert (error.code, error.type, error.status) == (Code.PAYMENT_INVALID, ErrorType.PAYMENT, 400)
    assert error.details is not None
    assert error.details["reason"] == "invalid_payload"
    assert error.details["field"]
    return error


@pytest.mark.parametrize(("asset", "count"), [(BASE, 1_000), (BASE_SEPOLIA, 10_000)])
def test_ten_thousand_spellings_of_one_payment_are_one_identity(asset: EvmAsset, count: int) -> None:
    payload = signed_payload(asset=asset)
    payment = Payment(1, "exact", asset.network.name, payload)
    random = Random(20260401)
    headers: set[bytes] = set()
    while len(headers) < count:
        header = reencode(payment, random)
        assert len(header) <= PAYMENT_HEADER_SIZE_BYTES
        headers.add(header)
    assert {key_of(header) for header in headers} == {payment_key(asset, payload)}
    assert all(decode_payment_header(header).payload == payload for header in headers)
    assert signature_check(payload, asset).ok


@given(EVM_PAYMENTS, st.randoms(use_true_random=False))
def test_any_payment_keeps_its_identity_in_any_spelling(payment: Payment, random: Random) -> None:
    header = reencode(payment, random)
    if len(header) <= PAYMENT_HEADER_SIZE_BYTES:
        assert decode_payment_header(header).payload == payment.payload
        assert key_of(header) == key_of(encode_payment_header(payment).encode())


@given(AUTHORIZATIONS, AUTHORIZATIONS, st.sampled_from([BASE, BASE_SEPOLIA]), st.sampled_from([BASE, BASE_SEPOLIA]))
def test_identity_is_network_asset_payer_and_nonce_and_nothing_else(
    one: Authorization, other: Authorization, asset: EvmAsset, other_asset: EvmAsset
) -> None:
    same = replace(other, payer=one.payer, nonce=one.nonce)
    key = payment_key(asset, EvmPayload(one, b"\x01"))
    assert key == payment_key(asset, EvmPayload(same, b"\x02"))
    assert key == PaymentKey(asset.network.name, asset.address, one.payer, one.nonce)
    assert (key == payment_key(other_asset, EvmPayload(same, b"\x01"))) is (asset is other_asset)
    if other.nonce != one.nonce:
        assert key != payment_key(asset, EvmPayload(replace(one, nonce=other.nonce), b"\x01"))
    if other.payer != one.payer:
        assert key != payment_key(asset, EvmPayload(replace(one, payer=other.payer), b"\x01"))


@given(EVM_PAYMENTS | SOLANA_PAYMENTS)
def test_a_payment_is_read_back_as_it_was_written(payment: Payment) -> None:
    assert decode_payment_header(encode_payment_header(payment).encode()) == payment
    assert parse_payment(payment_body(payment)) == payment


def test_the_body_of_a_payment_has_the_specified_members_and_strings() -> None:
    assert payment_body(signed_payment()) == {
        "x402Version": 1,
        "scheme": "exact",
        "network": "base-sepolia",
        "payload": {
            "signature": good_body()["payload"]["signature"],
            "authorization": {
                "from": checksum_address(AUTHORIZATION.payer),
                "to": checksum_address(AUTHORIZATION.pay_to),
                "value": "10000",
                "validAfter": "0",
                "validBefore": str(AUTHORIZATION.valid_before),
                "nonce": AUTHORIZATION.nonce,
            },
        },
    }
    assert payment_body(Payment(1, "exact", "solana-devnet", SolanaPayload("AAA=")))["payload"] == {
        "transaction": "AAA="
    }


def test_headers_are_standard_base64_of_compact_json() -> None:
    assert base64.b64decode(encode_header({"a": "?>", "b": [1]}), validate=True) == b'{"a":"?>","b":[1]}'


def test_every_malformed_header_of_the_corpus_is_payment_invalid() -> None:
    for header in malformed_headers(seed=1, count=2000):
        refused(header)


@pytest.mark.long
def test_a_hundred_thousand_malformed_headers_are_payment_invalid() -> None:
    for header in malformed_headers(seed=2, count=100_000):
        refused(header)


def test_the_corpus_is_the_same_for_the_same_seed_and_covers_every_kind_of_damage() -> None:
    assert list(malformed_headers(7, 60)) == list(malformed_headers(7, 60))
    assert list(malformed_headers(7, 60)) != list(malformed_headers(8, 60))
    assert len(MUTATIONS) <= 60
    assert decode_payment_header(base64.b64encode(GOOD_JSON)) == signed_payment()


def code_of(header: bytes) -> Code | None:
    try:
        decode_payment_header(header)
    except ApiError as error:
        return error.code
    return None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_payment_or_payment_invalid(data: bytes) -> None:
    for header in (data, base64.b64encode(data)):
        assert code_of(header) in {None, Code.PAYMENT_INVALID}


@given(st.integers(0, len(GOOD_JSON) - 1), st.binary(max_size=3))
def test_a_damaged_payment_is_a_payment_or_payment_invalid(at: int, junk: bytes) -> None:
    damaged = base64.b64encode(GOOD_JSON[:at] + junk + GOOD_JSON[at + 1 :])
    assert code_of(damaged) in {None, Code.PAYMENT_INVALID}


def test_a_header_may_be_as_long_as_the_limit_and_not_one_byte_longer() -> None:
    space = PAYMENT_HEADER_SIZE_BYTES // 4 * 3 - len(GOOD_JSON)
    at_limit = base64.b64encode(GOOD_JSON + b" " * space)
    assert len(at_limit) == PAYMENT_HEADER_SIZE_BYTES
    assert decode_payment_header(at_limit) == signed_payment()
    assert refused(base64.b64encode(GOOD_JSON + b" " * (space + 3))).message == "the header is too long"
    assert refused(b"A" * (PAYMENT_HEADER_SIZE_BYTES + 1)).message == "the header is too long"


def test_an_empty_header_is_payment_invalid() -> None:
    refused(b"")


@pytest.mark.parametrize("version", [0, 2, -1, 10**79])
def test_an_unsupported_version_scheme_or_network_is_readable(version: int) -> None:
    body = {**good_body(), "x402Version": version, "scheme": "upto", "network": "polygon"}
    payment = decode_payment_header(header_of(body))
    assert (payment.x402_version, payment.scheme, payment.network) == (version, "upto", "polygon")


def changed(**members: object) -> dict[str, Any]:
    body = good_body()
    body["payload"]["authorization"].update(members)
    return body


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, Code.MISSING_PARAMETER, "x402Version"),
        ({**good_body(), "x402Version": None}, Code.MISSING_PARAMETER, "x402Version"),
        ({**good_body(), "x402Version": "1"}, Code.INVALID_PARAMETER, "x402Version"),
        ({**good_body(), "x402Version": True}, Code.INVALID_PARAMETER, "x402Version"),
        ({**good_body(), "scheme": 1}, Code.INVALID_PARAMETER, "scheme"),
        ({**good_body(), "network": "x" * 2049}, Code.INVALID_PARAMETER, "network"),
        ({**good_body(), "payload": "x"}, Code.INVALID_PARAMETER, "payload"),
        ({**good_body(), "payload": {}}, Code.MISSING_PARAMETER, "payload.signature"),
        ({**good_body(), "payload": {"transaction": 1}}, Code.INVALID_PARAMETER, "payload.transaction"),
        ({**good_body(), "payload": {"signature": "0x1"}}, Code.INVALID_PARAMETER, "payload.signature"),
        ({**good_body(), "payload": {"signature": 1}}, Code.INVALID_PARAMETER, "payload.signature"),
        ({**good_body(), "payload": {"signature": "0x12"}}, Code.MISSING_PARAMETER, "payload.authorization"),
        (changed(nonce="0x12"), Code.INVALID_PARAMETER, "payload.authorization.nonce"),
        (changed(nonce=1), Code.INVALID_PARAMETER, "payload.authorization.nonce"),
        (changed(nonce=None), Code.MISSING_PARAMETER, "payload.authorization.nonce"),
        (changed(to="0x12"), Code.INVALID_ADDRESS, "payload.authorization.to"),
        (changed(**{"from": 1}), Code.INVALID_ADDRESS, "payload.authorization.from"),
        (changed(value=1), Code.INVALID_AMOUNT, "payload.authorization.value"),
        (changed(value="-1"), Code.INVALID_AMOUNT, "payload.authorization.value"),
        (changed(value=str(UINT256_MAX + 1)), Code.INVALID_AMOUNT, "payload.authorization.value"),
        (changed(validAfter=0), Code.INVALID_PARAMETER, "payload.authorization.validAfter"),
        (changed(validBefore=-1), Code.INVALID_PARAMETER, "payload.authorization.validBefore"),
        (changed(validBefore=True), Code.INVALID_PARAMETER, "payload.authorization.validBefore"),
        (changed(validBefore=UINT256_MAX + 1), Code.INVALID_PARAMETER, "payload.authorization.validBefore"),
        (changed(validBefore="1e9"), Code.INVALID_PARAMETER, "payload.authorization.validBefore"),
    ],
)
def test_a_field_that_cannot_be_read_is_named_with_its_code(body: dict[str, Any], code: Code, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_payment(body)
    assert (caught.value.code, caught.value.details) == (code, {"field": field})
    details = refused(header_of(body)).details
    assert details is not None
    assert (details["reason"], details["check"], details["field"]) == ("invalid_payload", "payload", field)
    assert (details["found"], "x402 payment" in details["expected"]) == (caught.value.message, True)


@pytest.mark.parametrize("time", ["0", "1", "1760000000123", str(UINT256_MAX)])
def test_times_are_uint256_seconds_whatever_their_size(time: str) -> None:
    payment = parse_payment(changed(validAfter=time, validBefore=time))
    assert isinstance(payment.payload, EvmPayload)
    authorization = payment.payload.authorization
    assert authorization.valid_after == authorization.valid_before == int(time)


def test_valid_before_may_be_an_integer_and_is_written_as_a_string() -> None:
    payment = parse_payment(changed(validBefore=1_760_000_060))
    assert payment_body(payment)["payload"]["authorization"]["validBefore"] == "1760000060"


@given(UINT256)
def test_a_uint256_is_read_from_its_decimal_digits(number: int) -> None:
    assert parse_uint256(str(number), "value") == number
    assert parse_uint256(str(number).zfill(78), "value") == number


@pytest.mark.parametrize("value", [*[str(UINT256_MAX + n) for n in (1, 2)], "", "1.0", "1e3", "\u0661", 1, None, True])
def test_what_is_no_uint256_is_invalid_amount(value: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_uint256(value, "amount")
    assert (caught.value.code, caught.value.details) == (Code.INVALID_AMOUNT, {"field": "amount"})


def test_a_text_that_is_too_long_is_told_so() -> None:
    body = {**good_body(), "payload": {"transaction": "A" * 2049}}
    with pytest.raises(ApiError, match=r"payload\.transaction must have at most 2048 characters"):
        parse_payment(body)


def test_a_transaction_makes_a_payload_solana_s_and_null_does_not() -> None:
    assert parse_payload({"transaction": "AAA=", "signature": "0x12"}) == SolanaPayload("AAA=")
    with_null = {**good_body()["payload"], "transaction": None}
    assert parse_payload(with_null) == signed_payment().payload


REQUIREMENTS_JSON = requirements_body(REQUIREMENTS)


@given(
    st.builds(
        Requirements,
        scheme=TEXT,
        network=TEXT,
        amount=UINT256,
        asset=ADDRESS,
        pay_to=ADDRESS,
        resource=TEXT,
        max_timeout_seconds=st.integers(0, 10**6),
        extra=st.dictionaries(st.sampled_from(["name", "version", "feePayer", "memo"]), TEXT),
    )
)
def test_what_takes_part_of_requirements_is_read_back_as_it_was_written(requirements: Requirements) -> None:
    assert parse_requirements(requirements_body(requirements)) == requirements


def test_requirements_are_written_as_every_official_client_reads_them() -> None:
    assert requirements_body(REQUIREMENTS) == {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "10000",
        "resource": "https://gateway.example/abc",
        "description": "",
        "mimeType": "",
        "payTo": REQUIREMENTS.pay_to,
        "maxTimeoutSeconds": 60,
        "asset": BASE_SEPOLIA.address,
        "extra": {"name": "USDC", "version": "2"},
    }


def test_requirements_need_only_what_a_settlement_needs() -> None:
    least = {name: REQUIREMENTS_JSON[name] for name in ("scheme", "network", "maxAmountRequired", "asset", "payTo")}
    read = parse_requirements(least)
    assert (read.resource, read.description, read.mime_type) == ("", "", "")
    assert (read.max_timeout_seconds, read.extra) == (60, {})
    nulls = parse_requirements({**least, "resource": None, "description": None, "mimeType": None, "extra": None})
    assert nulls == read
    for name in least:
        with pytest.raises(ApiError) as caught:
            parse_requirements({**least, name: None})
        assert caught.value.code is Code.MISSING_PARAMETER
        assert caught.value.details == {"field": f"paymentRequirements.{name}"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"extra": []},
        {"extra": "x"},
        {"extra": {"name": 1, "version": None, "more": "m" * 10**5}},
        {"resource": 1},
        {"resource": None},
        {"description": "d" * 10**5, "mimeType": {"a": 1}, "outputSchema": [[]]},
    ],
)
def test_what_a_seller_says_beside_what_takes_part_is_neither_judged_nor_kept(metadata: dict[str, Any]) -> None:
    read = parse_requirements({**REQUIREMENTS_JSON, **metadata})
    kept = requirements_body(read)
    assert (kept["description"], kept["mimeType"]) == ("", "")
    assert len(json.dumps(kept)) < 1_000


def test_of_a_long_resource_the_beginning_is_kept_and_no_half_of_a_letter() -> None:
    read = parse_requirements({**REQUIREMENTS_JSON, "resource": "\ud83d" + "r" * 5_000})
    assert read.resource == "?" + "r" * 2_047


def test_a_text_that_cannot_be_written_is_none() -> None:
    for member in ("scheme", "network", "asset", "payTo"):
        with pytest.raises(ApiError) as caught:
            parse_requirements({**REQUIREMENTS_JSON, member: "\ud83d"})
        assert caught.value.code is Code.INVALID_PARAMETER


def test_evm_addresses_of_requirements_are_lower_cased_and_others_are_kept() -> None:
    mint = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
    read = parse_requirements({**REQUIREMENTS_JSON, "asset": mint, "payTo": "0x" + "AB" * 20})
    assert (read.asset, read.pay_to) == (mint, "0x" + "ab" * 20)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"maxTimeoutSeconds": -1}, Code.INVALID_PARAMETER),
        ({"maxTimeoutSeconds": True}, Code.INVALID_PARAMETER),
        ({"maxTimeoutSeconds": "60"}, Code.INVALID_PARAMETER),
        ({"payTo": 1}, Code.INVALID_PARAMETER),
        ({"maxAmountRequired": 10_000}, Code.INVALID_AMOUNT),
        ({"maxAmountRequired": "0.01"}, Code.INVALID_AMOUNT),
    ],
)
def test_requirements_that_cannot_be_read_name_the_field(members: dict[str, Any], code: Code) -> None:
    with pytest.raises(ApiError) as caught:
        parse_requirements({**REQUIREMENTS_JSON, **members})
    assert caught.value.code is code
    assert caught.value.details == {"field": f"paymentRequirements.{next(iter(members))}"}


def test_the_status_of_a_payment_has_a_path_in_either_family() -> None:
    assert PaymentKey("base", "0xa", "0xb", "0xc").status_path == "/payments/base/0xb/0xc"
    columns = {"network": "base", "asset": "0xa", "payer": "0xb", "nonce": "0xc"}
    assert PaymentKey("base", "0xa", "0xb", "0xc").columns == columns
    assert PaymentKey("base", "0xa", "0xb", "0xc").status_query == "/payments/base/0xb/0xc?asset=0xa"
    solana = PaymentKey("solana-devnet", "mint", "payer", "ab12")
    assert (solana.status_path, solana.status_query) == ("/payments/solana-devnet/ab12", "/payments/solana-devnet/ab12")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"payload": ["signature"]}, "payload must be an object"),
        ({"scheme": "\ud83d"}, "scheme must be text"),
        ({"scheme": 5}, "scheme must be a string"),
    ],
)
def test_a_member_of_another_type_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_payment({**payment_body(signed_payment()), **changes})
    assert (refused.value.code, refused.value.message) == (Code.INVALID_PARAMETER, message)


def test_a_text_can_be_written_as_utf_8() -> None:
    assert [is_text(one) for one in ("a 🌍", "\ud83d", 5, None)] == [True, False, False, False]


def test_an_amount_may_be_a_json_integer_where_it_is_said_so() -> None:
    assert parse_uint256(10_000, "amount", number_too=True) == 10_000
    for other in (True, -1, 1.5):
        with pytest.raises(ApiError):
            parse_uint256(other, "amount", number_too=True)
