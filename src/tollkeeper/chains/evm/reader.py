"""Reader of an EVM network's facts by one node, or by whichever node answers in turn (`chains.quorum`).

Each receipt of a transaction of ours is judged against the transfer that it should have made.
A sighting counts only if the block that the receipt names is the canonical one at its number and lists the transaction.
It is `deep` once that block has the configured number of confirmations (contract 5.2; security A-14, A-15). Of very
many at once only some are asked for by their receipts; the logs of the blocks that those name show the others (decision
0022).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from tollkeeper.chains.evm.authorizations import AuthorizationReader
from tollkeeper.chains.evm.blocks import (
    counted,
    hash_of_block,
    quantity,
    read_block,
    require_shown,
    transactions_of_block,
)
from tollkeeper.chains.evm.logs import BlockLogs, read_log
from tollkeeper.chains.replies import Answer, RpcError, RpcUnavailable
from tollkeeper.chains.sightings import NOTHING_SEEN, Expected, Sighting, Verdict
from tollkeeper.core.evm.receipt_logs import shows_transfer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.logs import LogRange
    from tollkeeper.chains.rpc import Call
    from tollkeeper.core.json_types import JsonObject

# More than so many are looked for by blocks: the receipts of the first name blocks, which show many of the others.
_FEW: Final = 100
_PROBED: Final = 16
_PROBED_GROWTH: Final = 4

# A verdict and the block that it was seen in, by number and hash: not yet known to be canonical.
_Shown: TypeAlias = "tuple[Verdict, int, str]"


class EvmReader:
    """Reader of the authorizations of one asset, and of receipts.

    Sightings of a few transactions take two round trips; more of them are seen by the blocks that they are in.
    """

    def __init__(self, ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]], asset: str, logs: LogRange) -> None:
        self._ask = ask
        self.authorizations = AuthorizationReader(ask, asset, logs)
        self._blocks = BlockLogs(ask)

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """Return what the chain shows now, in the order asked. Raises: RpcUnavailable."""
        self._blocks.forget_old()
        shown = await self._shown_by_receipts(wanted) if len(wanted) <= _FEW else await self._shown_by_blocks(wanted)
        if not shown:
            return [NOTHING_SEEN] * len(wanted)
        numbers = sorted({number for _, number, _ in shown.values()})
        return _sightings(wanted, shown, numbers, await self._ask(_places(numbers)))

    async def look_there(self, wanted: Sequence[Expected], numbers: Sequence[int]) -> list[Sighting]:
        """The same in one round trip, of blocks that are known beforehand; elsewhere nothing is seen. As `look`."""
        if len(wanted) > _FEW:
            return await self.look(wanted)
        answers = await self._ask([*_receipts(wanted), *_places(numbers)])
        shown = _judged(wanted, answers[: len(wanted)])
        return _sightings(wanted, shown, numbers, answers[len(wanted) :])

    async def newest_seconds(self) -> int:
        """Return the time of the latest block. Raises: RpcUnavailable."""
        (block,) = await self._ask([("eth_getBlockByNumber", ["latest", False])])
        return read_block(block).timestamp_seconds

    async def _shown_by_receipts(self, wanted: Sequence[Expected]) -> dict[int, _Shown]:
        """By the index in `wanted`. Raises: RpcUnavailable."""
        return _judged(wanted, await self._ask(_receipts(wanted)))

    async def _shown_by_blocks(self, wanted: Sequence[Expected]) -> dict[int, _Shown]:
        """Read the receipts of a few, which name blocks, whose logs show the others. Raises: RpcUnavailable."""
        shown: dict[int, _Shown] = {}
        rest, size = self._take_written(wanted, range(len(wanted)), shown), _PROBED
        while rest:
            probed, rest = rest[:size], rest[size:]
            by_receipt = await self._shown_by_receipts([wanted[index] for index in probed])
            shown.update((probed[place], one) for place, one in by_receipt.items())
            shared = Counter(
                (number, block_hash, wanted[probed[i]].asset) for i, (_, number, block_hash) in by_receipt.items()
            )
            if rest:
                for block, count in shared.items():
                    if count > 1:
                        await self._blocks.read(*block)
                rest = self._take_written(wanted, rest, shown)
            size *= _PROBED_GROWTH
        return shown

    def _take_written(self, wanted: Sequence[Expected], indices: Sequence[int], shown: dict[int, _Shown]) -> list[int]:
        """Move to `shown` what the logs that were read show; those that they do not show."""
        rest: list[int] = []
        for index in indices:
            one = wanted[index]
            written = self._blocks.find(one.transaction_hash, one.asset)
            is_shown = False
            with suppress(ValueError):
                is_shown = written is not None and shows_transfer(written.logs, one.transfer)
            if written is not None and is_shown:
                shown[index] = Verdict.TRANSFERRED, written.block_number, written.block_hash
            else:
                rest.append(index)
        return rest


def _receipts(wanted: Sequence[Expected]) -> list[Call]:
    return [("eth_getTransactionReceipt", [one.transaction_hash]) for one in wanted]


def _judged(wanted: Sequence[Expected], receipts: Sequence[Answer]) -> dict[int, _Shown]:
    """Judge these receipts, by the index in `wanted`. Raises: RpcUnavailable if the node shows no receipts."""
    if all(isinstance(receipt, RpcError) for receipt in receipts):
        require_shown(receipts[0])
    shown: dict[int, _Shown] = {}
    for index, (one, receipt) in enumerate(zip(wanted, receipts, strict=True)):
        if isinstance(receipt, dict):
            # One unreadable receipt tells nothing about the others.
            with suppress(RpcUnavailable):
                shown[index] = judge_receipt(one, receipt), *_block_of(receipt)
    return shown


def _places(numbers: Sequence[int]) -> list[Call]:
    """Return the canonical blocks of these numbers, and how high the chain is."""
    return [*(("eth_getBlockByNumber", [hex(number), False]) for number in numbers), ("eth_blockNumber", [])]


def _sightings(
    wanted: Sequence[Expected], shown: dict[int, _Shown], numbers: Sequence[int], places: Sequence[Answer]
) -> list[Sighting]:
    """Return which of the shown transactions are canonical, and how deep. Raises: RpcUnavailable."""
    *blocks, head = places
    for place in places:
        require_shown(place)
    latest = counted(head)
    canonical = {number: hash_of_block(block) for number, block in zip(numbers, blocks, strict=True)}
    listed = {number: transactions_of_block(block) for number, block in zip(numbers, blocks, strict=True)}
    sightings = [NOTHING_SEEN] * len(wanted)
    for index, (verdict, number, block_hash) in shown.items():
        # Of a transaction that its block does not list, whatever a node shows was made up.
        if canonical.get(number) == block_hash and wanted[index].transaction_hash in listed[number]:
            is_deep = latest - number + 1 >= wanted[index].depth_blocks
            sightings[index] = Sighting(verdict, is_deep, number, block_hash)
    return sightings


def _block_of(receipt: dict[str, object]) -> tuple[int, str]:
    block_hash = receipt.get("blockHash")
    if not isinstance(block_hash, str):  # null while some nodes still build the block
        raise RpcUnavailable("the receipt names no block")
    return counted(receipt.get("blockNumber")), block_hash.lower()


def judge_receipt(expected: Expected, receipt: JsonObject) -> Verdict:
    """Judge the transfer by this receipt. Raises: RpcUnavailable if it is not that transaction's receipt."""
    try:
        if receipt["transactionHash"].lower() != expected.transaction_hash:
            raise RpcUnavailable("the node answered with another transaction's receipt")
        if quantity(receipt["status"]) != 1:
            return Verdict.REVERTED
        is_shown = shows_transfer([read_log(log) for log in receipt["logs"]], expected.transfer)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RpcUnavailable("the node's receipt cannot be read") from error
    return Verdict.TRANSFERRED if is_shown else Verdict.MISMATCH
