"""The quick reader of verify and settle requests answers what the full reader answers, or nothing (spec 4.4, A-33)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.malformed import BAD_DECIMALS, BAD_HEX
from tests.core.payments import REQUIREMENTS, signed_payment
from tollkeeper.core.errors import ApiError
from tollkeeper.core.plain_request import read_plain_request
from tollkeeper.core.strict_json import parse_json
from tollkeeper.core.wire import (
    UINT256_MAX,
    Payment,
    Requirements,
    parse_payment,
    parse_requirements,
    payment_body,
    requirements_body,
)


def request_body() -> dict[str, Any]:
    return {
        "x402Version": 1,
        "paymentPayload": payment_body(signed_payment()),
        "paymentRequirements": {**requirements_body(REQUIREMENTS), "extra": dict(REQUIREMENTS.extra)},
    }


def read_in_full(data: bytes) -> tuple[int, Payment, Requirements] | None:
    """The same request by the readers that decide; None where they refuse it."""
    try:
        body = parse_json(data)
        payment, requirements = parse_payment(body["paymentPayload"]), parse_requirements(body["paymentRequirements"])
    except (ApiError, AttributeError, KeyError, TypeError, ValueError):
        return None
    version = body.get("x402Version")
    return (version, payment, requirements) if type(version) is int else None


def compact(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_request_as_programs_write_it_is_read_quickly_and_right() -> None:
    expected = (1, signed_payment(), REQUIREMENTS)
    for data in (
        compact(request_body()),
        json.dumps(request_body()).encode(),
        json.dumps(request_body(), indent=2).encode(),
    ):
        assert read_plain_request(data) == expected == read_in_full(data)


PLACES: list[tuple[str, ...]] = [
    ("x402Version",),
    ("paymentPayload",),
    ("paymentRequirements",),
    *(("paymentPayload", name) for name in ("x402Version", "scheme", "network", "payload")),
    *(("paymentPayload", "payload", name) for name in ("signature", "authorization")),
    *(
        ("paymentPayload", "payload", "authorization", name)
        for name in ("from", "to", "value", "validAfter", "validBefore", "nonce")
    ),
    *(("paymentRequirements", name) for name in requirements_body(REQUIREMENTS)),
    ("paymentRequirements", "extra", "name"),
]
ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        2**53,
        2**53 + 1,
        10**79,
        1.0,
        "1",
        "",
        ":",
        "::",
        "a:b",
        "a b",
        "\u00e9",
        "\u2028",
    ),
    *("0", "00010", str(UINT256_MAX), "9" * 78, "solana-devnet", "0x12", "0x" + "AB" * 20, "0X" + "ab" * 20, "a\nb"),
    *("https://gateway.example/a?b=c:d", "x" * 2048, "x" * 2049, '"', "\\", [], {}, {"name": ":"}, {"name": 1}),
    *({":a": "b:"}, {"a": None}, {"transaction": "AAAA"}),
    *BAD_DECIMALS,
    *BAD_HEX,
]


def holder_of(body: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    for name in place[:-1]:
        body = body[name]
    return body


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_an_odd_value_anywhere_is_read_alike_or_left_to_the_full_reader(place: tuple[str, ...]) -> None:
    for value in ODD:
        body = request_body()
        holder_of(body, place)[place[-1]] = value
        for data in (compact(body), json.dumps(body).encode()):
            quick = read_plain_request(data)
            assert quick is None or repr(quick) == repr(read_in_full(data)), (place, value)


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_missing_member_is_read_alike_or_left_to_the_full_reader(place: tuple[str, ...]) -> None:
    body = request_body()
    del holder_of(body, place)[place[-1]]
    quick = read_plain_request(compact(body))
    assert quick is None or quick == read_in_full(compact(body))


@pytest.mark.parametrize("place", PLACES, ids=".".join)
@pytest.mark.parametrize("again", ['""', '":"', '"::::"', "1", "null", "{}", '{"a":"b"}', "same"])
def test_a_member_that_came_twice_is_left_to_the_full_reader_which_refuses_it(
    place: tuple[str, ...], again: str
) -> None:
    body = request_body()
    holder = holder_of(body, place)
    original = json.dumps(holder[place[-1]], separators=(",", ":"))
    twice = f'"{place[-1]}":{original if again == "same" else again},"{place[-1]}":{original}'
    holder[place[-1]] = "@twice@"
    data = compact(body).replace(f'"{place[-1]}":"@twice@"'.encode(), twice.encode())
    assert data.count(f'"{place[-1]}":'.encode()) >= 2
    assert read_in_full(data) is None
    assert read_plain_request(data) is None


def test_an_additional_member_is_left_to_the_full_reader() -> None:
    for place in PLACES:
        body = request_body()
        holder_of(body, place)["more"] = "x"
        quick = read_plain_request(compact(body))
        assert quick is None or quick == read_in_full(compact(body))
    assert read_plain_request(compact({**request_body(), "confirm": True})) is None


def test_escapes_and_other_encodings_are_left_to_the_full_reader() -> None:
    data = compact(request_body())
    others = [
        data.replace(b"exact", b"\\u0065xact"),
        b"\xef\xbb\xbf" + data,
        data + b"x",
        data[:-1],
        b"",
        b"[]",
        b"null",
    ]
    others += [data.decode().encode("utf-16"), data.replace(b"exact", b"ex\xffct"), data.replace(b"exact", b"ex\x00ct")]
    others += [data.replace(b'"USDC"', b'"\xed\xa0\x80"'), data.replace(b'"x402Version":1', b'"x402Version":1.0')]
    for other in others:
        assert read_plain_request(other) is None


def test_numbers_are_uint256_at_most() -> None:
    for place in [
        ("paymentPayload", "payload", "authorization", "value"),
        ("paymentRequirements", "maxAmountRequired"),
    ]:
        for number, is_read in ((UINT256_MAX, True), (UINT256_MAX + 1, False)):
            body = request_body()
            holder_of(body, place)[place[-1]] = str(number)
            assert (read_plain_request(compact(body)) is not None) is is_read


@given(st.integers(0, len(compact(request_body())) - 1), st.binary(max_size=3), st.integers(0, 3))
@settings(max_examples=500)
def test_a_damaged_request_is_read_alike_or_left_to_the_full_reader(at: int, junk: bytes, cut: int) -> None:
    data = compact(request_body())
    damaged = data[:at] + junk + data[at + cut :]
    quick = read_plain_request(damaged)
    assert quick is None or quick == read_in_full(damaged)
