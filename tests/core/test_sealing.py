"""What is encrypted at rest opens at its own place under its own key and nowhere else (contract 3.1, security A-56)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import Code
from tollkeeper.core.keys.sealing import KeyRing, SealError, Sealing, place, seal, unseal

OLD, NEW = b"o" * 32, b"n" * 32
RING = KeyRing("2026", {"2026": NEW, "2025": OLD})
NONCE = bytes(range(12))
WHERE = place("gates", 7, "payment_address")


@given(st.binary(max_size=200), st.binary(min_size=12, max_size=12))
def test_what_was_sealed_is_opened_and_cannot_be_read_unopened(plaintext: bytes, nonce: bytes) -> None:
    sealed = seal(RING, plaintext, WHERE, nonce)
    assert unseal(RING, sealed, WHERE) == plaintext
    assert len(plaintext) < 8 or plaintext not in sealed[len(b"\x042026") + len(nonce) :]


def test_a_value_does_not_open_at_another_place() -> None:
    sealed = seal(RING, b"0xabc", WHERE, NONCE)
    places = [
        place("gates", 8, "payment_address"),
        place("gates", 7, "title"),
        place("purchases", "7", "payment_address"),
    ]
    for other in places:
        with pytest.raises(SealError):
            unseal(RING, sealed, other)
    assert place("gates", "7", "payment_address") == WHERE == b"gates|7|payment_address"


def test_a_former_key_still_opens_and_the_current_one_seals() -> None:
    before = seal(KeyRing("2025", {"2025": OLD}), b"x", WHERE, NONCE)
    assert unseal(RING, before, WHERE) == b"x"
    with pytest.raises(SealError):
        unseal(KeyRing("2025", {"2025": OLD}), seal(RING, b"x", WHERE, NONCE), WHERE)


def test_a_key_of_the_same_name_and_other_bytes_does_not_open() -> None:
    with pytest.raises(SealError):
        unseal(KeyRing("2026", {"2026": OLD}), seal(RING, b"x", WHERE, NONCE), WHERE)


def test_any_changed_byte_and_any_cut_is_refused() -> None:
    sealed = seal(RING, b"secret", WHERE, NONCE)
    for at in range(len(sealed)):
        for damaged in (sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], sealed[:at]):
            with pytest.raises(SealError):
                unseal(RING, damaged, WHERE)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_and_never_a_fault(data: bytes) -> None:
    with pytest.raises(SealError):
        unseal(RING, data, WHERE)


def test_a_value_that_does_not_open_is_answered_as_unavailable() -> None:
    with pytest.raises(SealError) as refused:
        unseal(RING, b"", WHERE)
    assert (refused.value.code, refused.value.status) == (Code.UNAVAILABLE, 503)


@pytest.mark.parametrize(
    ("current", "keys"),
    [("a", {}), ("a", {"b": OLD}), ("a", {"a": b"short"}), ("a", {"a": OLD, "": NEW}), ("a" * 65, {"a" * 65: OLD})],
)
def test_a_ring_that_could_not_work_is_refused(current: str, keys: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match="key"):
        KeyRing(current, keys)


def test_a_ring_does_not_show_its_keys() -> None:
    assert "nnnn" not in repr(RING)


def test_each_value_of_a_store_is_sealed_with_a_nonce_of_its_own() -> None:
    nonces = iter([NONCE, bytes(12)])
    store = Sealing(RING, lambda size: next(nonces)[:size])
    first, second = store.seal(b"x", WHERE), store.seal(b"x", WHERE)
    assert first != second
    assert first == seal(RING, b"x", WHERE, NONCE)
    assert store.unseal(first, WHERE) == store.unseal(second, WHERE) == b"x"
