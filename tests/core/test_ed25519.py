"""A signature is valid for us only where it is for Solana; the curve's points are those that solders knows (A-31)."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from tollkeeper.core.solana.ed25519 import by_openssl, dalek, fastest, is_on_curve, public_key, sign, verify

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
SEED = b"\x07" * 32
# The five small y coordinates, by the published list of encodings of small order.
SMALL = [
    0,
    1,
    P - 1,
    int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
]


def encodings(y: int) -> list[bytes]:
    """All spellings of the points with this y: both signs, and the one that is not reduced."""
    spelled = [y] + ([y + P] if y + P < 2**255 else [])
    return [(value | sign << 255).to_bytes(32, "little") for value in spelled for sign in (0, 1)]


@settings(max_examples=300)
@given(st.binary(min_size=32, max_size=32))
def test_any_32_bytes_are_a_point_for_us_where_they_are_for_solders(key: bytes) -> None:
    assert is_on_curve(key) is Pubkey(key).is_on_curve()


@pytest.mark.parametrize("y", [*SMALL, 2, 3, 18, P - 2])
def test_points_at_the_edges_are_judged_as_solders_does(y: int) -> None:
    for key in encodings(y):
        assert is_on_curve(key) is Pubkey(key).is_on_curve()


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_keys_and_signatures_are_those_of_solders(seed: bytes, message: bytes) -> None:
    pair = Keypair.from_seed(seed)
    assert public_key(seed) == bytes(pair.pubkey())
    assert sign(seed, message) == bytes(pair.sign_message(message))
    assert verify(public_key(seed), sign(seed, message), message)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300), st.integers(0, 511), st.booleans())
def test_every_library_says_the_same(seed: bytes, message: bytes, bit: int, is_changed: bool) -> None:  # noqa: FBT001
    signature = bytearray(sign(seed, message))
    signature[bit // 8] ^= is_changed << bit % 8
    for library in (by_openssl, dalek()):
        assert library(public_key(seed), bytes(signature), message) is not is_changed


@pytest.mark.parametrize("bit", range(512))
def test_a_signature_with_any_bit_changed_is_refused(bit: int) -> None:
    signature = bytearray(sign(SEED, b"a message"))
    signature[bit // 8] ^= 1 << bit % 8
    assert not verify(public_key(SEED), bytes(signature), b"a message")


def test_a_signature_whose_scalar_is_not_reduced_is_refused() -> None:
    signature = sign(SEED, b"a message")
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    assert not verify(public_key(SEED), signature[:32] + scalar.to_bytes(32, "little"), b"a message")


def test_a_signature_of_another_key_or_message_is_refused() -> None:
    signature = sign(SEED, b"a message")
    assert not verify(public_key(SEED), signature, b"a message.")
    assert not verify(public_key(b"\x08" * 32), signature, b"a message")


@pytest.mark.parametrize("y", SMALL)
def test_keys_and_nonces_of_small_order_sign_nothing(y: int) -> None:
    """With such a key the zero scalar signs every message, for those who only check the equation."""
    for key in encodings(y):
        for nonce in [key, *encodings(1)]:
            forged = nonce + bytes(32)
            assert not verify(key, forged, b"any message")
            assert not Signature(forged).verify(Pubkey(key), b"any message")
        assert not verify(public_key(SEED), key + sign(SEED, b"m")[32:], b"m")


def test_without_the_faster_library_the_other_one_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = b"\x22" * 32
    key, signature = public_key(seed), sign(seed, b"hello")
    monkeypatch.setitem(sys.modules, "solders.pubkey", None)
    fastest.cache_clear()
    try:
        assert fastest() is by_openssl
        assert verify(key, signature, b"hello")
        assert not verify(key, signature, b"other")
    finally:
        fastest.cache_clear()
