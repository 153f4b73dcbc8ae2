"""Key texts: what is read, what is refused without being quoted, and secrets that do not show themselves."""

from __future__ import annotations

import pickle

import pytest

from tollkeeper.core.evm.encoding import SECP256K1_ORDER
from tollkeeper.core.keys.keyring import (
    FEE_PAYERS,
    Secret,
    fee_payer_seeds,
    key_line,
    parse_key_ring,
    parse_private_key,
    parse_private_keys,
    without_keys,
)

KEY = "ab" * 32
OTHER = "cd" * 32


def test_a_ring_reads_back_what_key_line_wrote_and_its_first_key_is_current() -> None:
    ring = parse_key_ring("# new\n" + key_line("e-2", bytes.fromhex(KEY)) + key_line("e-1", bytes.fromhex(OTHER)))
    assert ring.current == "e-2"
    assert dict(ring.keys) == {"e-2": bytes.fromhex(KEY), "e-1": bytes.fromhex(OTHER)}


@pytest.mark.parametrize(
    "text", [f"a:{KEY},b:{OTHER}", f"a:{KEY} b:0x{OTHER.upper()}", f"a:{KEY}\r\n\tb:{OTHER} # old"]
)
def test_entries_of_a_ring_may_be_apart_by_commas_blanks_and_line_ends(text: str) -> None:
    assert list(parse_key_ring(text).keys) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"new:{KEY}\nold:{OTHER}\n", f"new:{KEY}\n"),
        (f"# made in May\nnew:{KEY}\n  old:0x{OTHER} # a:{OTHER}\n", f"# made in May\nnew:{KEY}\n   # a:{OTHER}\n"),
        (f"new:{KEY},old:{OTHER}", f"new:{KEY},"),
        (f"very-old:{KEY}\n\nold:{OTHER}", f"very-old:{KEY}\n\n"),
        (f"new:{KEY}\n# old:{OTHER}\n", f"new:{KEY}\n# old:{OTHER}\n"),
        (f"a:{KEY}\nold:{OTHER}\n", f"a:{KEY}\n"),
    ],
)
def test_keys_leave_a_ring_and_all_else_stays(text: str, left: str) -> None:
    assert without_keys(text, {"old"}) == left


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no key"),
        ("# only a comment", "holds no key"),
        (KEY, "entry 1 is not an id"),
        (f"a:{KEY[:-1]}", "entry 1 is not an id"),
        (f"a:{KEY}\nb:{KEY}00", "entry 2 is not an id"),
        (f"-:{KEY}", "entry 1 is not an id"),
        (f"{'a' * 33}:{KEY}", "entry 1 is not an id"),
        (f"a:{KEY}\na:{OTHER}", "entry 2 repeats an id"),
    ],
)
def test_a_bad_ring_is_refused_without_being_quoted(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_key_ring(text)
    assert KEY[:8] not in str(caught.value)


@pytest.mark.parametrize("text", [KEY, f"0x{KEY}\n", f"# the relayer\n{KEY.upper()}"])
def test_a_private_key_is_64_hex_digits(text: str) -> None:
    assert parse_private_key(text).reveal() == bytes.fromhex(KEY)


@pytest.mark.parametrize(
    "text", [KEY[:-1], KEY + "0", "0" * 64, f"{SECP256K1_ORDER:064x}", f"{KEY} {OTHER}", "zz" * 32, f"a:{KEY}"]
)
def test_what_is_no_private_key_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="not one private key") as caught:
        parse_private_key(text)
    assert text not in str(caught.value)


def test_the_last_private_key_of_the_curve_is_taken() -> None:
    assert parse_private_key(f"{SECP256K1_ORDER - 1:064x}").reveal()[-1] == (SECP256K1_ORDER - 1) % 256


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret("hunter2")
    for text in (repr(secret), str(secret), f"{secret}", f"{secret!r}", repr([secret]), repr({"key": secret})):
        assert "hunter2" not in text
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert secret.reveal() == "hunter2"


def test_secrets_are_equal_by_what_they_hold() -> None:
    assert Secret(b"a") == Secret(b"a")
    assert Secret(b"a") != Secret(b"b")
    assert Secret(b"a") != b"a"
    assert len({Secret(b"a"), Secret(b"a"), Secret(b"b")}) == 2


def test_several_private_keys_are_each_read_once() -> None:
    keys = [f"{number:064x}" for number in (1, 2, 3)]
    text = f"{keys[0]}, {keys[1]}  # the second\n{keys[2]}"
    assert [key.reveal().hex() for key in parse_private_keys(text)] == keys
    for wrong in ("", f"{keys[0]} {keys[0]}", f"{keys[0]} {'f' * 64}"):
        with pytest.raises(ValueError, match=r"no key|twice|not one private key"):
            parse_private_keys(wrong)


def test_fee_payers_follow_from_the_signing_key_and_differ() -> None:
    seeds = fee_payer_seeds(bytes(range(32)))
    assert len(seeds) == len(set(seeds)) == FEE_PAYERS
    assert seeds == fee_payer_seeds(bytes(range(32)))
    assert not {*seeds} & {*fee_payer_seeds(bytes(32)), bytes(range(32))}
