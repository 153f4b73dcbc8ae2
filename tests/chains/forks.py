"""Blocks that anvil takes back, also while it is given transactions (security F8).

anvil 1.7 unwinds its chain without the lock that it mines under (foundry pull request 16711): a block that is being
mined meanwhile is put where its parent was, above blocks that are gone, and whoever asks for one of those is told
"Resource not found". So nothing is mined while blocks are taken back, what came of it is looked at, and where a hole is
found all the same everything from the hole on is taken back once more. What the hub sees is the same: blocks that are
others than before, at any moment of its work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcFailure

_NOT_FOUND: Final = -32001
_TRIES: Final = 10
_STILL_SECONDS: Final = 0.05
_LOOKED_BACK: Final = 64


@contextmanager
def nothing_mined(chain: ChainUnderTest) -> Iterator[None]:
    """Until the block ends; what came meanwhile is mined then, where it would have been."""
    if not chain.rpc.call("anvil_getAutomine"):
        yield
        return
    chain.rpc.call("evm_setAutomine", False)
    try:
        yield
    finally:
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")


def take_back(chain: ChainUnderTest, depth: int, *raws: str) -> None:
    """So many blocks are replaced by as many others; the first new one holds these transactions."""
    with nothing_mined(chain):
        _take_back(chain, depth, raws)


def _take_back(chain: ChainUnderTest, depth: int, raws: tuple[str, ...]) -> None:
    for _ in range(_TRIES):
        top = _height_at_rest(chain)
        first = top - depth + 1
        before = _block(chain, first)
        # Another miner's: empty blocks in the place of empty ones would be the very same.
        chain.rpc.call("anvil_setCoinbase", "0x" + os.urandom(20).hex())
        try:
            chain.rpc.call("anvil_reorg", depth, [[raw, 0] for raw in raws])
        except RpcFailure as failure:
            if failure.code != _NOT_FOUND:
                raise
        _height_at_rest(chain)
        hole = _hole(chain)
        if hole is not None:
            # The hole, and all that was put on it: a fork too, and a deeper one.
            chain.rpc.call("anvil_reorg", _height_at_rest(chain) - hole + 1, [[raw, 0] for raw in raws])
            hole = _hole(chain)
        after = _block(chain, first)
        if hole is None and before is not None and after is not None and after["hash"] != before["hash"]:
            return
    msg = f"anvil did not take back {depth} blocks, {_TRIES} times"
    raise AssertionError(msg)


def _height_at_rest(chain: ChainUnderTest) -> int:
    """The newest block's number once no block is being added."""
    while True:
        height = _height(chain)
        time.sleep(_STILL_SECONDS)
        if _height(chain) == height:
            return height


def _height(chain: ChainUnderTest) -> int:
    return int(chain.rpc.call("eth_blockNumber"), 16)


def _hole(chain: ChainUnderTest) -> int | None:
    """The lowest number without a block, or whose block does not follow the one before it."""
    top = _height(chain)
    parent: str | None = None
    for number in range(max(0, top - _LOOKED_BACK), top + 1):
        block = _block(chain, number)
        if block is None or (parent is not None and block["parentHash"] != parent):
            return number
        parent = block["hash"]
    return None


def _block(chain: ChainUnderTest, number: int) -> dict[str, Any] | None:
    try:
        block: dict[str, Any] | None = chain.rpc.call("eth_getBlockByNumber", hex(number), False)
    except RpcFailure as failure:
        if failure.code != _NOT_FOUND:
            raise
        return None
    return block
