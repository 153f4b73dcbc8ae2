"""Signed EIP-1559 transactions read back: what they say, and who signed them (EIP-1559; security F22, A-15).

A transaction is whose key signed its bytes, whatever a node says of its sender. One with an access list is not read:
we never make one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.evm import Transaction, keccak256, recover_unchecked, rlp_decode, rlp_encode

if TYPE_CHECKING:
    from tollkeeper.core.evm import RlpItem
    from tollkeeper.core.receipt_logs import Transfer

_TYPE: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class SignedTransaction:
    """`hash` and `sender` (lower-case hex) follow from `raw`."""

    transaction: Transaction
    raw: bytes
    hash: str
    sender: str


def read_signed(raw: bytes) -> SignedTransaction:
    """The transaction of these bytes. Raises: ValueError where they are none that we could have made."""
    fields = rlp_decode(raw[1:])
    if raw[:1] != _TYPE or not isinstance(fields, list) or len(fields) != 12 or fields[8] != []:
        msg = "this is no EIP-1559 transaction without an access list"
        raise ValueError(msg)
    texts = [field for field in fields if isinstance(field, bytes)]
    if len(texts) != 11:
        msg = "this is no EIP-1559 transaction"
        raise ValueError(msg)
    chain_id, nonce, tip, fee, gas, to, value, data, parity, r, s = texts
    transaction = Transaction(
        chain_id=_number(chain_id),
        nonce=_number(nonce),
        max_priority_fee_per_gas=_number(tip),
        max_fee_per_gas=_number(fee),
        gas=_number(gas),
        to="0x" + to.hex(),
        value=_number(value),
        data=data,
    )
    return signed_by(transaction, _number(parity), _number(r), _number(s))


def signed_by(transaction: Transaction, parity: int, r: int, s: int) -> SignedTransaction:
    """The signed transaction with that signature. Raises: ValueError for a signature that nobody can have made."""
    fields: list[RlpItem] = [
        transaction.chain_id,
        transaction.nonce,
        transaction.max_priority_fee_per_gas,
        transaction.max_fee_per_gas,
        transaction.gas,
        bytes.fromhex(transaction.to[2:]),
        transaction.value,
        transaction.data,
        [],
    ]
    if parity not in {0, 1} or max(r, s) >= 2**256:
        msg = "this is no signature"
        raise ValueError(msg)
    digest = keccak256(_TYPE + rlp_encode(fields))
    sender = recover_unchecked(digest, r.to_bytes(32, "big") + s.to_bytes(32, "big"), parity)
    raw = _TYPE + rlp_encode([*fields, parity, r, s])
    return SignedTransaction(transaction, raw, "0x" + keccak256(raw).hex(), "0x" + sender.hex())


def asks_for(transaction: Transaction, transfer: Transfer) -> bool:
    """Does its calldata hold an authorization of this transfer, alone or in company?

    In each form that we write (`evm`, `batches`) payer, payee and value stand side by side, and then the nonce.
    """
    people = [bytes.fromhex(address[2:]) for address in (transfer.payer, transfer.pay_to)]
    nonce = re.escape(bytes.fromhex(transfer.nonce[2:]))
    words = b"".join(bytes(12) + one for one in people) + transfer.value.to_bytes(32, "big")
    forms = [re.escape(words) + b".{64}" + nonce]
    if transfer.value < 2**64:
        forms.append(re.escape(b"".join(people) + transfer.value.to_bytes(8, "big")) + b".{10}" + nonce)
    return any(re.search(form, transaction.data, re.DOTALL) for form in forms)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
