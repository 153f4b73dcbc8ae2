"""Which blocks a Solana node lacks, told by heights, at a node whose slots do not all have a block (A-15)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.history import has_every_block
from tollkeeper.sandbox.rpc_server import JsonRpcApp
from tollkeeper.sandbox.solana.node import SolanaNode

FIRST, SKIPPED = 100, {103, 104, 110}
SOME = range(FIRST, FIRST + 20)


def keeps(node: SolanaNode, made: Iterable[int], lacks: Collection[int]) -> None:
    """From now on the node answers as one of a chain with blocks in these slots, some of which it lacks."""
    blocks: dict[int, dict[str, Any]] = {}
    parent = FIRST - 1
    for height, slot in enumerate(made, start=50):
        blocks[slot] = {"parentSlot": parent, "blockHeight": height, "blockTime": 1_000 + slot}
        parent = slot
    listed = [slot for slot in blocks if slot not in lacks]
    node.rpc = JsonRpcApp(
        {
            "getBlocks": lambda first, last, _config: [slot for slot in listed if first <= slot <= last],
            "getBlock": lambda slot, _config: blocks[slot],
        }
    )


@pytest.mark.parametrize(
    ("asked", "lacks"),
    [
        (SOME, ()),
        (range(103, 120), ()),  # it begins with slots that were skipped
        (range(105, 106), ()),
        (range(101, 120), (100,)),
        (range(105, 120), (102,)),
    ],
)
async def test_a_node_has_all_blocks_of_some_slots_where_heights_leave_none_out(
    node: SolanaNode, solana: SolanaChain, asked: range, lacks: Collection[int]
) -> None:
    keeps(node, [slot for slot in SOME if slot not in SKIPPED], lacks)
    assert await has_every_block(solana.reader, asked)


@pytest.mark.parametrize("lacks", [(107,), (100,), (100, 101, 102), (119,), SOME])  # what is at the end nobody knows
async def test_a_node_lacks_blocks_that_others_heights_count(
    node: SolanaNode, solana: SolanaChain, lacks: Collection[int]
) -> None:
    keeps(node, [slot for slot in SOME if slot not in SKIPPED], lacks)
    assert not await has_every_block(solana.reader, SOME)


async def test_what_comes_behind_does_not_matter_and_what_is_too_young_is_no_beginning(
    node: SolanaNode, solana: SolanaChain
) -> None:
    keeps(node, SOME, (118, 119))
    assert await has_every_block(solana.reader, SOME, lambda block: block.slot >= 117)
    assert not await has_every_block(solana.reader, SOME, lambda block: block.slot >= 118)
    for since, is_old_enough in ((1_100, True), (1_099, False)):
        assert await has_every_block(solana.reader, range(100, 118), since=since) is is_old_enough


async def test_many_slots_are_asked_for_in_parts(node: SolanaNode, solana: SolanaChain) -> None:
    made = range(FIRST, 15_000)
    keeps(node, made, ())
    assert await has_every_block(solana.reader, made)
    for lacks in (range(5_100, 10_100), range(12_000, 12_001), range(14_000, 15_000)):  # a whole part, one, the end
        keeps(node, made, lacks)
        assert not await has_every_block(solana.reader, made)
    ever = range(FIRST, 10**8)
    assert await has_every_block(solana.reader, ever, lambda block: block.slot > 1_000)
    keeps(node, made, ())
    with pytest.raises(RpcUnavailable, match="too many blocks"):
        await has_every_block(solana.reader, ever)
