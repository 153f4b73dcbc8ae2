"""Signed EIP-1559 transactions read back: what they say, and who signed them (EIP-1559; security F22, A-15).

A transaction is whose key signed its bytes, whatever a node says of its sender. One with an access list is not read:
we never make one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.evm.batches import MULTICALL_ADDRESS, Via, decode_batch
from tollkeeper.core.evm.counterfactual import read_settling_call
from tollkeeper.core.evm.encoding import (
    Transaction,
    keccak256,
    read_transfer_calldata,
    recover_unchecked,
    rlp_decode,
    rlp_encode,
)
from tollkeeper.core.evm.receipt_logs import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.evm.encoding import Authorization

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
        raise ValueError("this is no EIP-1559 transaction without an access list")
    texts = [field for field in fields if isinstance(field, bytes)]
    if len(texts) != 11:
        raise ValueError("this is no EIP-1559 transaction")
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
    if parity not in {0, 1} or max(r, s) >= 2**256:
        raise ValueError("this is no signature")
    digest = keccak256(_TYPE + rlp_encode(transaction.fields))
    sender = recover_unchecked(digest, r.to_bytes(32, "big") + s.to_bytes(32, "big"), parity)
    raw = _TYPE + rlp_encode([*transaction.fields, parity, r, s])
    return SignedTransaction(transaction, raw, "0x" + keccak256(raw).hex(), "0x" + sender.hex())


def asks_for(transaction: Transaction, transfer: Transfer) -> bool:
    """Is it a call that makes this transfer, alone or in a batch, in one of the forms that we write?

    What a payer has said to a factory does not count, whatever bytes it holds.
    """
    for read in (_alone, _behind_deployment, _in_batch):
        try:
            asset, authorizations = read(transaction)
        except ValueError:
            continue
        return any(transfer == Transfer(asset, one.payer, one.pay_to, one.value, one.nonce) for one in authorizations)
    return False


def _alone(transaction: Transaction) -> tuple[str, list[Authorization]]:
    return transaction.to, [read_transfer_calldata(transaction.data)[0]]


def _behind_deployment(transaction: Transaction) -> tuple[str, list[Authorization]]:
    _, asset, call = read_settling_call(transaction.data)
    return asset, [read_transfer_calldata(call)[0]]


def _in_batch(transaction: Transaction) -> tuple[str, list[Authorization]]:
    via = Via.MULTICALL if transaction.to == MULTICALL_ADDRESS else Via.BATCHER
    asset, transfers = decode_batch(via, transaction.data)
    return asset, [one.authorization for one in transfers]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


# Fees per gas that a transaction may pay, first or as a replacement, under the cap (contract 5.2; security F6). Amounts
# are whole wei. The node's suggestion and the choice of the signer are made elsewhere.

_GWEI: Final = 10**9
# What is paid on a network of ours where nobody wants to be faster.
USUAL_TIP_WEI: Final = _GWEI // 1000


def bounded_tip(suggested_wei: int, paid_wei: Sequence[int] | None, base_fee_wei: int) -> int:
    """Bound the tip that a node suggests by what recent blocks paid, so that its word alone cannot cost much.

    `paid_wei`: one tip of each block. The most of them is enough, and the usual tip always is: empty blocks pay
    nothing. Where the node does not show them (None), a tip is no more than the base fee.
    """
    most = base_fee_wei if paid_wei is None else max(paid_wei, default=0)
    return min(suggested_wei, max(most, USUAL_TIP_WEI))


def raised(fee_wei: int) -> int:
    """The least that replaces a transaction which pays so much: nodes ask for a tenth more, some for an eighth."""
    return fee_wei + fee_wei // 8 + 1


def settlement_cap(cap_wei: int) -> int:
    """The most that a settlement may pay, so that a raise of it fits into a cap of `cap_wei`, which is at least 1."""
    return (cap_wei - 1) * 8 // 9
