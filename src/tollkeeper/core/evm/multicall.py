"""Calls that Multicall3's aggregate3 makes one after the other: their bytes, and what it answers (contract 5.2).

Written in Solidity's one canonical form and read back strictly: bytes that this module would not have written are no
such call. What may be called is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.evm.encoding import selector

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    bodies = [_body(call) for call in calls]
    return SELECTOR_AGGREGATE + _word(_WORD) + _word(len(bodies)) + _after_offsets(bodies)


def decode_aggregate(data: bytes) -> list[InnerCall]:
    """The calls of calldata that `encode_aggregate` made. Raises: ValueError for any other bytes."""
    array = data[4 + _WORD :]
    calls = [_called(array, start) for start in _starts(array, _NO_CALLS)]
    if encode_aggregate(calls) != data:
        raise ValueError(_NO_CALLS)
    return calls


def decode_results(answer: bytes, count: int) -> list[tuple[bool, bytes]]:
    """Return for each of `count` calls if it passed, and what it returned. Raises: ValueError for any other bytes."""
    array = answer[_WORD:]
    if _number(array, 0) != count:
        raise ValueError(_NO_RESULTS)
    results: list[tuple[bool, bytes]] = []
    for start in _starts(array, _NO_RESULTS):
        passed, size = _number(array, start), _number(array, start + 2 * _WORD)
        returned = array[start + 3 * _WORD : start + 3 * _WORD + size]
        if passed > 1 or len(returned) != size or len(array) < start + 3 * _WORD:
            raise ValueError(_NO_RESULTS)
        results.append((passed == 1, returned))
    return results


def _called(array: bytes, start: int) -> InnerCall:
    size = _number(array, start + 3 * _WORD)
    return InnerCall(
        "0x" + array[start + 12 : start + _WORD].hex(),
        array[start + 4 * _WORD : start + 4 * _WORD + size],
        _number(array, start + _WORD) == 1,
    )


def _starts(array: bytes, message: str) -> list[int]:
    """Return the offset of each item in an array of dynamic items, which begins with its length. Raises: ValueError."""
    count = _number(array, 0)
    # Each has an offset of its own, so that a short text names no endless number of items.
    if len(array) < _WORD or count > len(array) // _WORD:
        raise ValueError(message)
    return [_WORD + _number(array, _WORD + index * _WORD) for index in range(count)]


def _number(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + _WORD], "big")


def _body(call: InnerCall) -> bytes:
    padding = bytes(-len(call.data) % _WORD)
    target = bytes(12) + bytes.fromhex(call.to[2:])
    return target + _word(int(call.may_fail)) + _word(3 * _WORD) + _word(len(call.data)) + call.data + padding


def _after_offsets(bodies: Sequence[bytes]) -> bytes:
    offset, offsets = len(bodies) * _WORD, []
    for body in bodies:
        offsets.append(_word(offset))
        offset += len(body)
    return b"".join((*offsets, *bodies))


def _word(number: int) -> bytes:
    return number.to_bytes(_WORD, "big")
