"""The quick reader answers what the full one answers, or leaves the request to it."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payments import AUTHORIZATION, REQUIREMENTS, signed_payment
from tests.core.solana_payments import REQUIREMENTS as SOLANA_REQUIREMENTS
from tests.core.solana_payments import Draft
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.api.strict_json import parse_json
from tollkeeper.core.x402.fast_json import read_plain_request
from tollkeeper.core.x402.version1 import (
    UINT256_MAX,
    Payment,
    Requirements,
    parse_payment,
    parse_requirements,
    payment_body,
    requirements_body,
)

Body = dict[str, Any]
SOLANA: Final = Draft().payload()


def request(**changes: Any) -> Body:
    """A request as our gateway sends it; `changes` are members by their path, "__" between names."""
    body: Body = {
        "x402Version": 1,
        "paymentPayload": payment_body(signed_payment()),
        "paymentRequirements": requirements_body(REQUIREMENTS),
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = body
        for parent in parents:
            place = place[parent]
        place[name] = value
    return body


def on_solana(**changes: Any) -> Body:
    """The same of a payment on Solana."""
    body = request(**changes)
    body["paymentPayload"]["payload"] = {"transaction": SOLANA.transaction}
    body["paymentRequirements"] |= requirements_body(SOLANA_REQUIREMENTS)
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = body
        for parent in parents:
            place = place[parent]
        place[name] = value
    return body


def read_in_full(data: bytes) -> tuple[int, Payment, Requirements]:
    body = parse_json(data)
    version, payment, requirements = body["x402Version"], body["paymentPayload"], body["paymentRequirements"]
    if type(version) is not int or not isinstance(payment, dict) or not isinstance(requirements, dict):
        raise ValueError(data)
    return version, parse_payment(payment), parse_requirements(requirements)


def compact(body: Body) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize(
    "body",
    [
        request(),
        on_solana(),
        on_solana(paymentRequirements__extra={}, paymentPayload__payload__transaction="a" * 2046 + "=="),
        on_solana(paymentRequirements__resource=":::", paymentPayload__payload__transaction="A="),
        on_solana(paymentPayload__payload__transaction="a:b \u00e9"),
        request(paymentRequirements__extra={}),
        request(paymentRequirements__resource=":::", paymentRequirements__extra={"a:b": "{c}:[d]", ":": ""}),
        request(paymentRequirements__description="\u00e9\U0001f600"),
        request(paymentPayload__network="somewhere", paymentPayload__x402Version=7, x402Version=0),
        request(paymentPayload__payload__authorization__value=str(UINT256_MAX)),
        request(paymentPayload__payload__authorization__from=AUTHORIZATION.payer[:2] + AUTHORIZATION.payer[2:].upper()),
    ],
)
def test_a_request_as_programs_write_it_is_read_quickly_and_the_same(body: Body, indent: int | None) -> None:
    data = json.dumps(body, indent=indent, ensure_ascii=False).encode()
    assert read_plain_request(data) == read_in_full(data)
    assert read_plain_request(data) is not None


LEFT: Final = [
    b"",
    b"{}",
    b"[]",
    compact(request())[:-1],
    compact(request()) + b"}",
    compact(request(more=1)),
    compact(request(x402Version=None)),
    compact(request(x402Version="1")),
    compact(request(x402Version=10**20)),
    compact(request(x402Version=True)),
    compact(request()).replace(b'"x402Version":1', b'"x402Version":1.0'),
    compact(request(paymentPayload__payload={"transaction": "AQ=="})),
    compact(request(paymentPayload__payload={})),
    compact(on_solana(paymentPayload__payload={"transaction": "AQ==", "signature": "0x12"})),
    compact(on_solana(paymentPayload__payload__transaction="")),
    compact(on_solana(paymentPayload__payload__transaction="a" * 2049)),
    compact(on_solana(paymentPayload__payload__transaction="a" * 2048 + "=")),
    compact(on_solana(paymentRequirements__payTo="0x" + "1" * 40)),
    compact(on_solana(paymentRequirements__asset="USDC")),
    compact(on_solana(paymentRequirements__maxAmountRequired="1.0")),
    compact(on_solana(paymentRequirements__maxAmountRequired=str(UINT256_MAX + 1))),
    compact(request(paymentPayload__payload__authorization__validBefore=1_760_000_060)),
    compact(request(paymentPayload__payload__authorization__value="-1")),
    compact(request(paymentPayload__payload__authorization__value=str(UINT256_MAX + 1))),
    compact(request(paymentPayload__payload__authorization__validAfter="9" * 78)),
    compact(request(paymentPayload__payload__authorization__nonce="0x12")),
    compact(request(paymentPayload__payload__signature="0x123")),
    compact(request(paymentRequirements__asset="USDC")),
    compact(request(paymentRequirements__maxTimeoutSeconds=-1)),
    compact(request(paymentRequirements__maxTimeoutSeconds=10**79)),
    compact(request(paymentRequirements__description=None)),
    compact(request(paymentRequirements__description="a" * 2049)),
    compact(request(paymentRequirements__extra={"a": 1})),
    json.dumps(request(paymentRequirements__description="\u00e9")).encode(),
    compact(request(paymentRequirements__description='"')),
    compact(request()).replace(b"exact", b"e\xff"),
]


@pytest.mark.parametrize("data", LEFT, ids=range(len(LEFT)))
def test_any_other_request_is_left_to_the_full_reader(data: bytes) -> None:
    assert read_plain_request(data) is None


@pytest.mark.parametrize("name", ["x402Version", "scheme", "network", "value", "nonce", "resource", "name", "extra"])
@pytest.mark.parametrize("spaces", [b"", b" "])
def test_a_member_that_comes_twice_is_left_to_the_full_reader(name: str, spaces: bytes) -> None:
    data = compact(request())
    start = data.index(b'"%b":' % name.encode())
    first = b'"%b"%b:' % (name.encode(), spaces)
    others = [b'":",', b'"a:b",', b"1,", b'{":":":"},', b"{},"]
    for other in others:
        assert read_plain_request(data[:start] + first + other + data[start:]) is None


PLACES: Final = st.sampled_from(
    [
        ("x402Version",),
        ("paymentPayload",),
        ("paymentPayload", "x402Version"),
        ("paymentPayload", "network"),
        ("paymentPayload", "payload", "signature"),
        ("paymentPayload", "payload", "transaction"),
        *(("paymentPayload", "payload", "authorization", name) for name in ("from", "value", "validBefore", "nonce")),
        *(("paymentRequirements", name) for name in ("asset", "payTo", "maxAmountRequired", "maxTimeoutSeconds")),
        *(("paymentRequirements", name) for name in ("resource", "mimeType", "extra")),
    ]
)
VALUES: Final = (
    st.none()
    | st.integers(-2, 10**19)
    | st.text(max_size=6)
    | st.from_regex(r"0x[0-9a-fA-F]{40}|0x[0-9a-fA-F]{64}|[0-9]{1,78}|0X[0-9a-f]{40}", fullmatch=True)
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(0, 3), max_size=3)
)


@given(
    body=st.sampled_from([request, on_solana]).map(lambda make: make()),
    changes=st.lists(st.tuples(PLACES, VALUES), max_size=3),
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_what_the_quick_reader_answers_the_full_one_answers_too(
    *, body: Body, changes: list[tuple[tuple[str, ...], object]], is_ascii: bool, indent: int | None
) -> None:
    for path, value in changes:
        place: Any = body
        for name in path[:-1]:
            place = place.get(name) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[path[-1]] = value
    data = json.dumps(body, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
    plain = read_plain_request(data)
    try:
        full = read_in_full(data)
    except (ApiError, ValueError):
        assert plain is None
    else:
        assert plain is None or plain == full


@given(st.sampled_from([compact(request()), compact(on_solana())]), st.integers(0, 2**16), st.binary(max_size=3))
def test_a_request_with_bytes_put_into_it_is_read_the_same_or_left(data: bytes, at: int, bytes_put: bytes) -> None:
    at %= len(data)
    data = data[:at] + bytes_put + data[at:]
    plain = read_plain_request(data)
    if plain is not None:
        assert plain == read_in_full(data)
