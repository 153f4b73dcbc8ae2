"""Raw transactions are read as eth-account writes them, and anything else is refused."""

from __future__ import annotations

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.evm.encoding import SECP256K1_ORDER, RlpItem, Transaction, rlp_decode, rlp_encode, sign_transaction
from tollkeeper.sandbox.evm.transactions import decode_transaction
from tollkeeper.sandbox.wallets import derive_wallet

_WALLET = derive_wallet("relayer")
_TO = "0x" + "5c" * 20


def _signed(**fields: object) -> bytes:
    return bytes(Account.sign_transaction(fields, _WALLET.private_key).raw_transaction)


@given(
    nonce=st.integers(0, 2**63),
    gas=st.integers(0, 2**40),
    fee=st.integers(0, 2**60),
    value=st.integers(0, 2**200),
    data=st.binary(max_size=300),
)
def test_fee_market_transaction_survives_the_wire(nonce: int, gas: int, fee: int, value: int, data: bytes) -> None:
    transaction = Transaction(84532, nonce, fee // 2, fee, gas, _TO, value, data)
    raw, transaction_hash = sign_transaction(transaction, _WALLET.private_key)
    decoded = decode_transaction(raw)
    assert decoded.hash == transaction_hash
    assert decoded.sender == _WALLET.address
    assert (decoded.chain_id, decoded.nonce, decoded.max_priority_fee_per_gas) == (84532, nonce, fee // 2)
    assert (decoded.max_fee_per_gas, decoded.gas, decoded.to) == (fee, gas, _TO)
    assert (decoded.value, decoded.data, decoded.type) == (value, data, 2)


def test_eth_accounts_transactions_are_read() -> None:
    fields = {"nonce": 5, "gas": 100_000, "to": bytes.fromhex(_TO[2:]), "value": 3, "data": b"\x01", "chainId": 84532}
    fee_market = decode_transaction(_signed(**fields, maxFeePerGas=9, maxPriorityFeePerGas=2, type=2))
    legacy = decode_transaction(_signed(**fields, gasPrice=9))
    for decoded in (fee_market, legacy):
        assert (decoded.sender, decoded.chain_id, decoded.nonce, decoded.gas) == (_WALLET.address, 84532, 5, 100_000)
        assert (decoded.to, decoded.value, decoded.data, decoded.max_fee_per_gas) == (_TO, 3, b"\x01", 9)
    assert (fee_market.type, fee_market.max_priority_fee_per_gas) == (2, 2)
    assert (legacy.type, legacy.max_priority_fee_per_gas) == (0, 9)
    assert fee_market.price_per_gas(4) == 6
    assert fee_market.price_per_gas(8) == 9


def test_legacy_transaction_without_a_chain_names_none() -> None:
    decoded = decode_transaction(_signed(nonce=0, gas=21_000, to=bytes.fromhex(_TO[2:]), value=0, data=b"", gasPrice=1))
    assert decoded.chain_id is None
    assert decoded.sender == _WALLET.address


def test_creation_has_no_recipient() -> None:
    assert decode_transaction(_signed(nonce=0, gas=1, value=0, data=b"\0", gasPrice=1, chainId=84532)).to is None


def _fields() -> list[RlpItem]:
    raw, _ = sign_transaction(Transaction(84532, 1, 1, 2, 21_000, _TO, 0, b""), _WALLET.private_key)
    fields = rlp_decode(raw[1:])
    assert isinstance(fields, list)
    return list(fields)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (8, [[bytes(20), []]]),
        (9, 2),
        (10, 0),
        (10, SECP256K1_ORDER),
        (11, SECP256K1_ORDER - 1),
        (5, bytes(19)),
        (1, b"\0"),
        (1, bytes([1]) * 33),
        (7, []),
    ],
    ids=["access list", "parity", "zero r", "large r", "high s", "short to", "padded nonce", "wide nonce", "list data"],
)
def test_changed_field_is_refused(place: int, value: RlpItem) -> None:
    fields = _fields()
    fields[place] = value
    with pytest.raises(ValueError, match=r".+"):
        decode_transaction(b"\x02" + rlp_encode(fields))


@given(raw=st.binary(max_size=200))
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_transaction(raw)
