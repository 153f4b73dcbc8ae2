"""A signed transaction is whose key signed its bytes (EIP-1559; security F22)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.evm.encoding import (
    SECP256K1_ORDER,
    Transaction,
    address_of_key,
    rlp_decode,
    rlp_encode,
    sign_transaction,
)
from tollkeeper.core.evm.signed_transactions import read_signed, signed_by

KEY = bytes(range(1, 33))
TRANSACTION = Transaction(84532, 7, 10**6, 10**9, 150_000, "0x" + "11" * 20, 0, b"\x01\x02")
UINT = st.integers(0, 2**64)
TRANSACTIONS = st.builds(
    Transaction,
    UINT,
    UINT,
    UINT,
    UINT,
    UINT,
    st.binary(min_size=20, max_size=20).map(lambda data: "0x" + data.hex()),
    UINT,
    st.binary(max_size=300),
)


@given(TRANSACTIONS, st.integers(1, SECP256K1_ORDER - 1).map(lambda number: number.to_bytes(32, "big")))
def test_what_was_signed_reads_back_with_its_signer(transaction: Transaction, key: bytes) -> None:
    raw, transaction_hash = sign_transaction(transaction, key)
    signed = read_signed(raw)
    assert (signed.transaction, signed.raw, signed.hash) == (transaction, raw, transaction_hash)
    assert signed.sender == address_of_key(key)


def test_the_sender_is_the_one_that_eth_account_finds() -> None:
    raw, _ = sign_transaction(TRANSACTION, KEY)
    assert read_signed(raw).sender == Account.recover_transaction(raw).lower()


def changed(place: int, value: object) -> bytes:
    raw, _ = sign_transaction(TRANSACTION, KEY)
    fields = rlp_decode(raw[1:])
    assert isinstance(fields, list)
    fields[place] = value  # type: ignore[call-overload]  # any item may stand there
    return b"\x02" + rlp_encode(fields)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01" + sign_transaction(TRANSACTION, KEY)[0][1:],
        b"\x02" + rlp_encode([1, 2, 3]),
        b"\x02" + rlp_encode(b"abc"),
        changed(8, [b"an access list"]),
        changed(7, [b"data"]),
        changed(9, b"\x02"),
        changed(10, b"\xff" * 33),
        changed(10, b""),
    ],
)
def test_what_we_could_not_have_signed_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the RLP or of this reader
        read_signed(raw)


def test_a_changed_transaction_is_another_s() -> None:
    signed = read_signed(sign_transaction(TRANSACTION, KEY)[0])
    fields = rlp_decode(signed.raw[1:])
    assert isinstance(fields, list)
    parity, r, s = (int.from_bytes(field, "big") for field in fields[9:] if isinstance(field, bytes))
    assert signed_by(TRANSACTION, parity, r, s) == signed
    for other in (
        replace(TRANSACTION, chain_id=5),
        replace(TRANSACTION, nonce=5),
        replace(TRANSACTION, max_fee_per_gas=5),
        replace(TRANSACTION, max_priority_fee_per_gas=5),
        replace(TRANSACTION, gas=5),
        replace(TRANSACTION, value=5),
        replace(TRANSACTION, to="0x" + "22" * 20),
        replace(TRANSACTION, data=b""),
    ):
        assert signed_by(other, parity, r, s).sender != signed.sender
