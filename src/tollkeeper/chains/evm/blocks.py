"""Answers of a node read strictly: bytes, words, blocks (security A-15). What they mean is not decided here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.chains.evm.receipts import counted, hash_of_block, quantity
from tollkeeper.chains.replies import RpcError, RpcUnavailable

if TYPE_CHECKING:
    from tollkeeper.chains.replies import Answer


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
