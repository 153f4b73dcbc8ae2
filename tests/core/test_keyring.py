"""Keys are read from text exactly or refused without quoting them, and secrets do not show themselves (A-26)."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.evm import SECP256K1_ORDER
from tollkeeper.core.keyring import Secret, key_line, parse_key_ring, parse_private_key

A, B = "aa" * 32, "bb" * 32
KEY_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", fullmatch=True)


@given(st.dictionaries(KEY_IDS, st.binary(min_size=32, max_size=32), min_size=1, max_size=4))
def test_a_ring_is_read_back_as_it_was_written_and_its_first_key_is_current(keys: dict[str, bytes]) -> None:
    ring = parse_key_ring("".join(key_line(key_id, key) for key_id, key in keys.items()))
    assert ring.keys == keys
    assert ring.current == next(iter(keys))


@pytest.mark.parametrize(
    "text",
    [f"k1:{A}\nk2:{B}", f"k1:{A},k2:{B}", f"k1:{A} k2:{B}", f"# keys\nk1:0x{A.upper()} # new\n\n  k2:{B}\r\n"],
)
def test_entries_may_be_apart_by_lines_blanks_or_commas_and_have_comments(text: str) -> None:
    ring = parse_key_ring(text)
    assert (ring.current, dict(ring.keys)) == ("k1", {"k1": bytes.fromhex(A), "k2": bytes.fromhex(B)})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key"),
        ("  \n# only a comment", "no key"),
        (A, "entry 1"),
        (f":{A}", "entry 1"),
        (f"-k:{A}", "entry 1"),
        ("k" * 33 + f":{A}", "entry 1"),
        (f"k1:{A}\nk2:{B[:-1]}", "entry 2"),
        (f"k1:{A}0", "entry 1"),
        ("k1:" + "g" * 64, "entry 1"),
        ("k1:" + "\u0661" * 64, "entry 1"),
        (f"k1:{A}\nk1:{B}", "entry 2 repeats"),
    ],
)
def test_a_ring_that_cannot_be_read_is_refused_without_being_quoted(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_key_ring(text)
    assert "aaaa" not in str(refused.value)


@pytest.mark.parametrize("text", [A, "0x" + A, f" {A}\n", f"# the signer\n{A.upper()} # end"])
def test_a_private_key_is_read(text: str) -> None:
    assert parse_private_key(text).reveal() == bytes.fromhex(A)


@pytest.mark.parametrize("number", [1, SECP256K1_ORDER - 1])
def test_the_smallest_and_the_largest_private_key_are_taken(number: int) -> None:
    assert parse_private_key(f"{number:064x}").reveal() == number.to_bytes(32, "big")


@pytest.mark.parametrize("text", ["", "#", A[:-1], A + "0", f"{A} {B}", "g" * 64, "0" * 64, f"{SECP256K1_ORDER:064x}"])
def test_what_is_no_private_key_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="key") as refused:
        parse_private_key(text)
    assert "aaaa" not in str(refused.value)


def test_a_secret_shows_itself_only_when_it_is_asked_to() -> None:
    secret = Secret("hush")
    assert secret.reveal() == "hush"
    assert "hush" not in f"{secret} {secret!r} {[secret]!r} {vars(type(secret))!r}"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            leak(secret)


def test_secrets_are_equal_where_their_values_are() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
