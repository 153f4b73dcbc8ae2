"""Base58 has one spelling per value, the one that Solana's own library writes (specification 2.3; A-35)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from solders.signature import Signature

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.solana.base58 import decode, decode_key, encode, encode_key, parse_key

SYSTEM = "11111111111111111111111111111111"


@given(st.binary(min_size=32, max_size=32))
def test_keys_are_written_and_read_as_solders_does(key: bytes) -> None:
    text = str(Pubkey(key))
    assert encode_key(key) == text
    assert decode_key(text) == key
    assert parse_key(text) == text


@given(st.binary(min_size=64, max_size=64))
def test_signatures_are_written_and_read_as_solders_does(signature: bytes) -> None:
    text = str(Signature(signature))
    assert encode(signature) == text
    assert decode(text, size_bytes=64) == signature


@given(st.integers(0, 32), st.binary(min_size=32, max_size=32))
def test_leading_zero_bytes_are_leading_ones(zeros: int, rest: bytes) -> None:
    key = (bytes(zeros) + rest)[:32]
    assert decode_key(encode_key(key)) == key


@given(st.text(max_size=60))
def test_a_text_is_a_key_for_us_where_it_is_one_for_solders(text: str) -> None:
    try:
        expected: bytes | None = bytes(Pubkey.from_string(text))
    except ValueError:
        expected = None
    try:
        found: bytes | None = decode_key(text)
    except ValueError:
        found = None
    assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        SYSTEM + "1",
        SYSTEM[:-1],
        SYSTEM[:-1] + "0",
        SYSTEM[:-1] + "l",
        " " + SYSTEM,
        SYSTEM + "\n",
        "z" * 44,
        "1" * 1_000_000,
        "z" * 1_000_000,
        "0x209693bc6afc0c5328ba36faf03c514ef312287c",
        "\uff11" * 32,
        None,
        7,
        b"1" * 32,
    ],
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_key(text, field="payTo")
    assert caught.value.code is Code.INVALID_ADDRESS
    assert caught.value.details == {"field": "payTo"}
