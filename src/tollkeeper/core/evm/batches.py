"""Several authorizations of one token in one call: its bytes, its gas, and reading it back (contract 5.2).

Two forms. `Via.BATCHER` is our own contract (`contracts/SettlementBatcher.sol`), whose calldata is the batch itself and
which gives each item a share of gas of its own. `Via.MULTICALL` is aggregate3 of Multicall3, which gives each item
whatever gas is left. Both are read back strictly: bytes that this module would not have written are no batch. Which
payments are put together, and when, is not decided here; nor what became of them (`receipt_logs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from tollkeeper.core.evm.encoding import (
    SIGNATURE_LENGTH,
    Authorization,
    address_word,
    bytes_at,
    bytes_tail,
    keccak256,
    number_at,
    read_transfer_calldata,
    selector,
    transfer_calldata,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# Calls that Multicall3's aggregate3 makes one after the other: their bytes, and what it answers (contract 5.2). Written
# in Solidity's one canonical form and read back strictly: bytes that this module would not have written are no such
# call. What may be called is not decided here.

# It stands at the same address with the same code on nearly every network; other code there is not used.
MULTICALL_ADDRESS: Final = "0xca11bde05977b3631167028862be2a173976ca11"
MULTICALL_CODE_HASH: Final = "0xd5c15df687b16f2ff992fc8d767b4216323184a2bbc6ee2f9c398c318e770891"
SELECTOR_AGGREGATE: Final = selector(b"aggregate3((address,bool,bytes)[])")
_WORD: Final = 32
_NO_CALLS: Final = "these bytes are no calls of Multicall3"
_NO_RESULTS: Final = "these bytes are no results of Multicall3"


@dataclass(frozen=True, slots=True)
class InnerCall:
    """One call. Where it fails, `may_fail` says whether the others go on or all of them are undone."""

    to: str
    data: bytes
    may_fail: bool


def encode_aggregate(calls: Sequence[InnerCall]) -> bytes:
    """The calldata."""
    bodies = [
        address_word(call.to) + word(int(call.may_fail)) + word(3 * _WORD) + bytes_tail(call.data) for call in calls
    ]
    return SELECTOR_AGGREGATE + word(_WORD) + word(len(bodies)) + _after_offsets(bodies)


def decode_aggregate(data: bytes) -> list[InnerCall]:
    """The calls of calldata that `encode_aggregate` made. Raises: ValueError for any other bytes."""
    array = data[4 + _WORD :]
    calls = [
        InnerCall(
            "0x" + array[start + 12 : start + _WORD].hex(),
            bytes_at(array, start + 3 * _WORD),
            number_at(array, start + _WORD) == 1,
        )
        for start in _starts(array, _NO_CALLS)
    ]
    if encode_aggregate(calls) != data:
        raise ValueError(_NO_CALLS)
    return calls


def decode_results(answer: bytes, count: int) -> list[tuple[bool, bytes]]:
    """Return for each of `count` calls if it passed, and what it returned. Raises: ValueError for any other bytes."""
    array = answer[_WORD:]
    if number_at(array, 0) != count:
        raise ValueError(_NO_RESULTS)
    results: list[tuple[bool, bytes]] = []
    for start in _starts(array, _NO_RESULTS):
        passed, size = number_at(array, start), number_at(array, start + 2 * _WORD)
        returned = bytes_at(array, start + 2 * _WORD)
        if passed > 1 or len(returned) != size or len(array) < start + 3 * _WORD:
            raise ValueError(_NO_RESULTS)
        results.append((passed == 1, returned))
    return results


def _starts(array: bytes, message: str) -> list[int]:
    """Return the offset of each item in an array of dynamic items, which begins with its length. Raises: ValueError."""
    count = number_at(array, 0)
    # Each has an offset of its own, so that a short text names no endless number of items.
    if len(array) < _WORD or count > len(array) // _WORD:
        raise ValueError(message)
    return [_WORD + number_at(array, _WORD + index * _WORD) for index in range(count)]


def _after_offsets(bodies: Sequence[bytes]) -> bytes:
    offset, offsets = len(bodies) * _WORD, []
    for body in bodies:
        offsets.append(word(offset))
        offset += len(body)
    return b"".join((*offsets, *bodies))


# The deterministic deployment proxy: CREATE2 of whatever follows a salt of 32 bytes.
DEPLOYER_ADDRESS: Final = "0x4e59b44847b379578588920ca78fbf26c0b4956c"
DEPLOYER_CODE_HASH: Final = "0x2fa86add0aed31f33a762c9d88e807c475bd51d0f52bd0955754b2608f7e4989"

ITEMS_MAX: Final = 100
# One transfer took up to 76,000 of FiatTokenV2_2 (a payee that never held the token), behind its proxy.
ITEM_GAS: Final = 110_000
_MULTICALL_ITEM_GAS: Final = 90_000
_TRANSACTION_GAS: Final = 21_000
_BYTE_GAS: Final = 16
_LOOP_GAS: Final = 3_600  # of one item in either contract, the first look at the token among it
_RESERVE_GAS: Final = 12_000

_HEAD_SIZE_BYTES: Final = 24
_ITEM_SIZE_BYTES: Final = 155
_CALL_SIZE_BYTES: Final = 4 + 9 * 32


class Via(Enum):
    """Kinds of contract that carry a batch."""

    BATCHER = auto()
    MULTICALL = auto()


@dataclass(frozen=True, slots=True)
class SignedTransfer:
    """An authorization with its signature of 65 bytes: r, s, v."""

    authorization: Authorization
    signature: bytes


def may_be_batched(transfer: SignedTransfer) -> bool:
    """Can both contracts carry it? Signatures of contract wallets and outlandish numbers go alone."""
    authorization = transfer.authorization
    return (
        len(transfer.signature) == SIGNATURE_LENGTH
        and authorization.value < 2**64
        and authorization.valid_after < 2**40
        and authorization.valid_before < 2**40
    )


def encode_batch(via: Via, asset: str, transfers: Sequence[SignedTransfer]) -> bytes:
    """The calldata. Raises: ValueError for no items, too many, or one that may not be batched."""
    if not 0 < len(transfers) <= ITEMS_MAX or not all(may_be_batched(one) for one in transfers):
        raise ValueError(f"a batch has 1 to {ITEMS_MAX} transfers with plain signatures")
    if via is Via.BATCHER:
        head = bytes.fromhex(asset[2:]) + ITEM_GAS.to_bytes(4, "big")
        return head + b"".join(_packed(one) for one in transfers)
    return _aggregate(asset, transfers)


def decode_batch(via: Via, data: bytes) -> tuple[str, list[SignedTransfer]]:
    """The asset and the items of calldata that `encode_batch` made. Raises: ValueError for any other bytes."""
    try:
        asset, transfers = _unpacked(data) if via is Via.BATCHER else _aggregated(data)
        is_ours = encode_batch(via, asset, transfers) == data
    except ValueError:
        is_ours = False
    if not is_ours:
        raise ValueError("these bytes are no batch of transfers")
    return asset, transfers


def batch_gas(via: Via, count: int) -> int:
    """The gas limit of a batch: no item can be left short by the others.

    Through our contract that holds whatever the payers are; through Multicall3 for payers without code.
    """
    if via is Via.BATCHER:
        size, share = _HEAD_SIZE_BYTES + count * _ITEM_SIZE_BYTES, ITEM_GAS
    else:
        # Of what is left a call is given 63/64: the last item must find its own in that.
        size, share = 68 + count * _AGGREGATE_ITEM_SIZE_BYTES, _MULTICALL_ITEM_GAS
    return _TRANSACTION_GAS + size * _BYTE_GAS + count * (share + _LOOP_GAS) + share // 63 + _RESERVE_GAS


def create2_address(salt: bytes, creation: bytes) -> str:
    """Return the lower-case address at which the deterministic deployer puts a contract."""
    seed = b"\xff" + bytes.fromhex(DEPLOYER_ADDRESS[2:]) + salt + keccak256(creation)
    return "0x" + keccak256(seed)[12:].hex()


def _packed(transfer: SignedTransfer) -> bytes:
    authorization = transfer.authorization
    return b"".join(
        (
            bytes.fromhex(authorization.payer[2:] + authorization.pay_to[2:]),
            authorization.value.to_bytes(8, "big"),
            authorization.valid_after.to_bytes(5, "big"),
            authorization.valid_before.to_bytes(5, "big"),
            bytes.fromhex(authorization.nonce[2:]),
            transfer.signature,
        )
    )


def _unpacked(data: bytes) -> tuple[str, list[SignedTransfer]]:
    items = range(_HEAD_SIZE_BYTES, len(data), _ITEM_SIZE_BYTES)
    return "0x" + data[:20].hex(), [_unpacked_item(data[start : start + _ITEM_SIZE_BYTES]) for start in items]


def _unpacked_item(data: bytes) -> SignedTransfer:
    authorization = Authorization(
        payer="0x" + data[:20].hex(),
        pay_to="0x" + data[20:40].hex(),
        value=int.from_bytes(data[40:48], "big"),
        valid_after=int.from_bytes(data[48:53], "big"),
        valid_before=int.from_bytes(data[53:58], "big"),
        nonce="0x" + data[58:90].hex(),
    )
    return SignedTransfer(authorization, data[90:])


# Of one item: where it starts; target, allowFailure, where its calldata starts, how long that is; the calldata, padded.
_AGGREGATE_ITEM_SIZE_BYTES: Final = 5 * 32 + _CALL_SIZE_BYTES + -_CALL_SIZE_BYTES % 32


def _aggregate(asset: str, transfers: Sequence[SignedTransfer]) -> bytes:
    calls = [InnerCall(asset, transfer_calldata(one.authorization, one.signature), may_fail=True) for one in transfers]
    return encode_aggregate(calls)


def _aggregated(data: bytes) -> tuple[str, list[SignedTransfer]]:
    calls = decode_aggregate(data)
    if not calls:
        raise ValueError("no items")
    return calls[0].to, [SignedTransfer(*read_transfer_calldata(call.data)) for call in calls]
