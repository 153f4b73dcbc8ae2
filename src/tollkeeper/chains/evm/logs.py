"""Logs of ranges of blocks, from nodes that show only so many blocks at once (security A-15).

Nodes limit `eth_getLogs` to ranges of 10, 100, 1,000 or 10,000 blocks, and say so with any error. A range that is
refused is asked for in smaller ones: as large as the node says, else by halves. What was learned is kept. A node that
refuses one block shows nothing, which never means that there is nothing.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.chains.replies import Answer, RefusedByStatus, RpcError, RpcUnavailable, is_limit
from tollkeeper.chains.rpc import Call
from tollkeeper.core.evm.receipt_logs import Log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.core.json_types import JsonObject

_LOG = structlog.get_logger("tollkeeper.chains")
# Most nodes show so many blocks at once: of Base, about five hours.
RANGE_BLOCKS: Final = 9_000
_NUMBER: Final = re.compile(r"\d[\d,_]*")


class LogRange:
    """How many blocks one network's nodes show at once; `limit` is what was learned of it, in their own words."""

    def __init__(self, network: str) -> None:
        self._network = network
        self.blocks = RANGE_BLOCKS
        self.limit = ""

    async def shown(
        self, ask: Callable[[int], Awaitable[Answer]], most: int = RANGE_BLOCKS
    ) -> tuple[int, list[dict[str, object]]]:
        """Ask for the logs of so many blocks as are shown at once, `most` at most: how many they are, and the logs.

        Raises: RpcUnavailable where the node shows none, also not of one block.
        """
        count, words = min(self.blocks, most), ""
        while True:
            try:
                answer = await ask(count)
            except RefusedByStatus as refused:
                answer = RpcError(0, str(refused))
            if not isinstance(answer, RpcError):
                break
            if count <= 1 or is_limit(answer):
                raise RpcUnavailable(f"the node does not answer eth_getLogs: {answer.message}")
            words = answer.message
            count = _smaller(count, words)
        if not isinstance(answer, list) or not all(isinstance(log, dict) for log in answer):
            raise RpcUnavailable("the node's logs cannot be read")
        if words:
            self._learn(count, words)
        return count, answer

    def _learn(self, count: int, words: str) -> None:
        self.blocks = min(self.blocks, count)
        self.limit = f"eth_getLogs is answered for {self.blocks} blocks at once ({words})"
        _LOG.warning("node_limit_learned", network=self._network, limit=f"logs of {self.blocks} blocks", words=words)


def _smaller(refused: int, words: str) -> int:
    is_told = any(word in words.lower() for word in ("block", "range"))
    named = [int(re.sub("[,_]", "", text)) for text in _NUMBER.findall(words)] if is_told else []
    return max((one for one in named if 1 < one < refused), default=refused // 2)


# Logs of a token's contract in whole blocks: one question in place of one for each transaction (contract 5.2). Where
# many transactions of ours lie in a few blocks, as after a restart, their receipts cost a node far more than the logs
# of those blocks: some nodes build a whole block's receipts to show one of them. Only a transaction with status 1 keeps
# logs in its receipt, so a transaction seen here was carried out. A transaction not seen here proves nothing; its
# receipt is then asked for. Whether a block is canonical is not decided here: blocks are named by their hash.

# A pass over many transactions asks for the same blocks again and again; nobody else does.
_REMEMBERED_SECONDS: Final = 20.0
_TRANSACTIONS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class TransactionLogs:
    """The logs of one transaction by one contract, and the block that they are in."""

    logs: Sequence[Log]
    block_number: int
    block_hash: str


@dataclass(frozen=True, slots=True)
class _Remembered:
    until: float  # event loop time
    transactions: dict[str, TransactionLogs]


class BlockLogs:
    """Logs of the blocks that were read last, for a while."""

    def __init__(self, ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]]) -> None:
        self._ask = ask
        self._blocks: dict[tuple[str, str], _Remembered] = {}  # by block hash and contract, the oldest first

    async def read(self, block_number: int, block_hash: str, contract: str) -> None:
        """Read what the contract wrote in that block, unless it is remembered; nothing where the node shows none."""
        if (block_hash, contract) in self._blocks:
            return
        with suppress(RpcUnavailable):
            (answer,) = await self._ask([("eth_getLogs", [{"blockHash": block_hash, "address": contract}])])
            if isinstance(answer, list):
                until = asyncio.get_running_loop().time() + _REMEMBERED_SECONDS
                transactions = _by_transaction(answer, block_number, block_hash, contract)
                self._blocks[block_hash, contract] = _Remembered(until, transactions)

    def find(self, transaction_hash: str, contract: str) -> TransactionLogs | None:
        """Return what the contract wrote in that transaction, as far as it was read."""
        for (_, address), block in self._blocks.items():
            if address == contract and (written := block.transactions.get(transaction_hash)) is not None:
                return written
        return None

    def forget_old(self) -> None:
        """Let go of what was read long ago, and of the oldest where it is too much."""
        now = asyncio.get_running_loop().time()
        total = sum(len(block.transactions) for block in self._blocks.values())
        for key, block in list(self._blocks.items()):
            if block.until > now and total <= _TRANSACTIONS_MAX:
                break
            total -= len(block.transactions)
            del self._blocks[key]


def read_log(log: JsonObject) -> Log:
    """Return a log object. Raises: KeyError, TypeError, AttributeError for what is none."""
    return Log(log["address"].lower(), tuple(topic.lower() for topic in log["topics"]), log["data"].lower())


def _by_transaction(logs: list[Any], block_number: int, block_hash: str, contract: str) -> dict[str, TransactionLogs]:
    """Sort logs by their transactions, in order. Raises: RpcUnavailable where one is not what was asked for."""
    found: dict[str, list[tuple[int, Log]]] = {}
    try:
        for one in logs:
            log = read_log(one)
            if one["blockHash"].lower() != block_hash or log.address != contract or one.get("removed"):
                raise RpcUnavailable("the node answered with another block's logs")
            found.setdefault(one["transactionHash"].lower(), []).append((int(one["logIndex"], 16), log))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RpcUnavailable("the node's logs cannot be read") from error
    return {
        transaction: TransactionLogs([log for _, log in sorted(written, key=_index)], block_number, block_hash)
        for transaction, written in found.items()
    }


def _index(numbered: tuple[int, Log]) -> int:
    return numbered[0]
