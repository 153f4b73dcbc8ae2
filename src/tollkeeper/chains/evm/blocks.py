"""Answers of a node read strictly: numbers, bytes, words, blocks (security A-15). Their meaning is not decided here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tollkeeper.chains.replies import Answer, RpcError, RpcUnavailable

_QUANTITIES_END: Final = 2**256
_COUNTED_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class Block:
    """A block as a node names it; the hash is empty where it does not."""

    number: int
    timestamp_seconds: int
    base_fee_wei: int
    hash: str = ""


def read_block(answer: Answer) -> Block:
    """Return a block object. Raises: RpcUnavailable for anything else."""
    if not isinstance(answer, dict):
        raise RpcUnavailable("the node does not show its latest block")
    base_fee = answer.get("baseFeePerGas")
    return Block(
        counted(answer.get("number")),
        counted(answer.get("timestamp")),
        0 if base_fee is None else quantity(base_fee),
        hash_of_block(answer) or "",
    )


def data_of(answer: Answer) -> bytes:
    """Return bytes in hex. Raises: RpcUnavailable for anything else."""
    if isinstance(answer, str) and answer.startswith("0x"):
        try:
            return bytes.fromhex(answer[2:])
        except ValueError:
            pass
    msg = f"the node refused a read: {answer.message}" if isinstance(answer, RpcError) else "the node sent no bytes"
    raise RpcUnavailable(msg)


def word_of(answer: Answer) -> int:
    """Return a number of 32 bytes. Raises: RpcUnavailable for anything else."""
    data = data_of(answer)
    if len(data) != 32:
        raise RpcUnavailable("the asset answered with something that is no number")
    return int.from_bytes(data, "big")


def quantity(value: object) -> int:
    """Return a JSON-RPC quantity. Raises: RpcUnavailable for anything else."""
    if isinstance(value, str) and value.startswith("0x"):
        try:
            number = int(value, 16)
        except ValueError:
            number = _QUANTITIES_END
        if number < _QUANTITIES_END:
            return number
    raise RpcUnavailable("the node answered with something that is no quantity")


def counted(value: object) -> int:
    """Return a quantity of blocks, seconds or transactions.

    Raises: RpcUnavailable for anything else, and for more than a database can hold.
    """
    number = quantity(value)
    if number >= _COUNTED_END:
        raise RpcUnavailable("the node answered with a number that counts nothing")
    return number


def require_shown(answer: Answer) -> None:
    """Refuse an error for an answer: a node that does not show something has not said that it is not there.

    Raises: RpcUnavailable.
    """
    if isinstance(answer, RpcError):
        raise RpcUnavailable(f"the node refused a read: {answer.message}")


def hash_of_block(block: object) -> str | None:
    """Return the hash that a block object names; None where there is no such block."""
    block_hash = block.get("hash") if isinstance(block, dict) else None
    return block_hash.lower() if isinstance(block_hash, str) else None


def transactions_of_block(block: object) -> frozenset[str]:
    """Return the hashes that a block object lists, in lower case; none where there is no such block."""
    listed = block.get("transactions") if isinstance(block, dict) else None
    return frozenset(one.lower() for one in listed if isinstance(one, str)) if isinstance(listed, list) else frozenset()
