from __future__ import annotations

import json

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from solders.keypair import Keypair
from solders.signature import Signature

from tollkeeper.core.keys.wallet_keys import WalletKey, parse_wallet_key
from tollkeeper.core.networks import Family

PAIR = Keypair.from_seed(b"\x22" * 32)
EVM_KEY = "0x" + "71" * 32


@pytest.mark.parametrize("text", [str(PAIR), f"{PAIR}\n", json.dumps(list(bytes(PAIR))), PAIR.to_json()])
def test_a_solana_key_pair_is_read_as_its_tools_write_it(text: str) -> None:
    key = parse_wallet_key(text)
    assert (key.family, key.address) == (Family.SOLANA, str(PAIR.pubkey()))
    signature = Signature.from_string(key.sign_text("hello"))
    assert signature.verify(PAIR.pubkey(), b"hello")


@pytest.mark.parametrize("text", [EVM_KEY, EVM_KEY[2:] + "\n", f"# mine\n{EVM_KEY}", "1" * 64])
def test_an_evm_key_is_64_hex_digits(text: str) -> None:
    key = parse_wallet_key(text)
    own = Account.from_key(key.material)
    assert (key.family, key.address) == (Family.EVM, own.address)
    assert Account.recover_message(encode_defunct(text="hello"), signature=key.sign_text("hello")) == own.address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#",
        "0x12",
        "0" * 64,
        "[]",
        "[1, 2]",
        "[256]",
        '["a"]',
        "[1",
        "[" * 5000,
        json.dumps(list(bytes(PAIR))[:32] + [0] * 32),
        json.dumps([*bytes(PAIR), 1]),
        "1" * 88,
        "O" * 88,
        "z" * 88,
        "z" * 5000,
    ],
)
def test_anything_else_is_refused_and_never_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="key") as refused:
        parse_wallet_key(text)
    assert len(text) < 3 or text not in str(refused.value)


def test_a_key_is_not_shown() -> None:
    assert "22" * 4 not in repr(WalletKey(Family.SOLANA, b"\x22" * 32))
    assert "material" not in repr(WalletKey(Family.SOLANA, b"\x22" * 32))
